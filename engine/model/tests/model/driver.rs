//! A model driven by the real scheduler, with everything that came out of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kvasir_backend::{Backend, Executor, NewSequence};
use kvasir_cache_key::CacheRoot;
use kvasir_engine_core::{
    Event, KvGroup, Micros, Request, Scheduler, SchedulerConfig, SeqId, StepOutcome, StepPlan, StopConditions,
};
use kvasir_model::Model;
use kvasir_sampling::{SamplingParams, TokenLogprobs};

/// One sequence to generate.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: u32,
    pub(crate) sampling: SamplingParams,
    pub(crate) prompt_logprobs: bool,
}

impl Job {
    pub(crate) fn greedy(prompt: &[u32], max_tokens: u32) -> Self {
        let sampling = SamplingParams {
            temperature: 0.0,
            logprobs: Some(5),
            ..SamplingParams::default()
        };
        Self {
            prompt: prompt.to_vec(),
            max_tokens,
            sampling,
            prompt_logprobs: false,
        }
    }

    pub(crate) fn with_prompt_logprobs(self) -> Self {
        Self {
            prompt_logprobs: true,
            ..self
        }
    }
}

/// What one sequence gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Output {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<Option<TokenLogprobs>>,
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
    /// All logits that were computed, by the position they follow, bit for bit.
    pub(crate) logits: BTreeMap<usize, Vec<u32>>,
}

impl Output {
    pub(crate) fn logits_after(&self, position: usize) -> Vec<f32> {
        self.logits[&position]
            .iter()
            .copied()
            .map(f32::from_bits)
            .collect()
    }
}

type SeenLogits = Arc<Mutex<Vec<(SeqId, usize, Vec<u32>)>>>;

/// A scheduler and a model.
pub(crate) struct Driver<B: Backend> {
    pub(crate) model: Model<B>,
    pub(crate) scheduler: Scheduler,
    pub(crate) num_preemptions: usize,
    pub(crate) num_cached_tokens: usize,
    pub(crate) largest_step: usize,
    seen: SeenLogits,
}

impl<B: Backend> Driver<B> {
    pub(crate) fn new(mut model: Model<B>, config: SchedulerConfig) -> Self {
        let seen = SeenLogits::default();
        let sink = Arc::clone(&seen);
        model.observe_logits(Some(Box::new(move |seq, position, logits| {
            let bits = logits.iter().map(|logit| logit.to_bits()).collect();
            sink.lock().unwrap().push((seq, position, bits));
        })));
        let scheduler = Scheduler::new(config).unwrap();
        Self {
            model,
            scheduler,
            num_preemptions: 0,
            num_cached_tokens: 0,
            largest_step: 0,
            seen,
        }
    }

    /// Runs all jobs together, to their ends.
    pub(crate) fn run(&mut self, jobs: &[Job]) -> Vec<Output> {
        let seqs: Vec<SeqId> = jobs.iter().map(|job| self.start(job)).collect();
        let mut outputs: BTreeMap<SeqId, Output> = seqs.iter().map(|seq| (*seq, Output::default())).collect();
        let (mut plan, mut events) = (StepPlan::new(), Vec::new());
        while self.scheduler.schedule(Micros(0), &mut plan, &mut events) {
            self.largest_step = self.largest_step.max(plan.num_tokens());
            let ticket = self.model.submit(&plan).unwrap();
            let result = self.model.sample(ticket).unwrap();
            let mut outcome = StepOutcome::default();
            for sampled in result.sampled {
                outcome.sampled.push((sampled.seq, sampled.token));
                let output = outputs.get_mut(&sampled.seq).unwrap();
                output.tokens.push(sampled.token);
                output.logprobs.push(sampled.logprobs);
            }
            for (seq, logprobs) in result.prompt_logprobs {
                outputs.get_mut(&seq).unwrap().prompt_logprobs.extend(logprobs);
            }
            self.scheduler.complete(plan.step, &outcome, &mut events).unwrap();
            self.scheduler.check().unwrap();
            for event in events.drain(..) {
                self.note(event);
            }
        }
        for (seq, position, bits) in self.seen.lock().unwrap().drain(..) {
            let earlier = outputs.get_mut(&seq).unwrap().logits.insert(position, bits);
            assert_eq!(
                earlier, None,
                "the logits after position {position} were computed twice"
            );
        }
        seqs.iter().map(|seq| outputs.remove(seq).unwrap()).collect()
    }

    /// Runs the jobs one after the other.
    pub(crate) fn run_alone(&mut self, jobs: &[Job]) -> Vec<Output> {
        jobs.iter()
            .flat_map(|job| self.run(std::slice::from_ref(job)))
            .collect()
    }

    fn start(&mut self, job: &Job) -> SeqId {
        let prompt: Arc<[u32]> = job.prompt.clone().into();
        let request = Request {
            prompt: Arc::clone(&prompt),
            stop: StopConditions {
                max_tokens: job.max_tokens,
                ..StopConditions::default()
            },
            priority: 0,
            cache_root: CacheRoot([7; 32]),
            reads_prefix_cache: !job.prompt_logprobs,
        };
        let seq = self.scheduler.submit(Micros(0), request).unwrap();
        self.model.admit(NewSequence {
            seq,
            prompt,
            sampling: Arc::new(job.sampling.clone()),
            prompt_logprobs: job.prompt_logprobs.then_some(2),
        });
        seq
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Finished { seq, .. } => self.model.release(seq),
            Event::Preempted { .. } => self.num_preemptions += 1,
            Event::Scheduled { cached_tokens, .. } => self.num_cached_tokens += cached_tokens as usize,
            Event::Token { .. } => {}
        }
    }
}

/// Limits that change nothing, for tests to tighten.
pub(crate) fn roomy(block_size: usize, num_blocks: usize, max_model_len: usize) -> SchedulerConfig {
    SchedulerConfig {
        max_num_batched_tokens: 2048,
        max_num_seqs: 64,
        max_num_active_seqs: 64,
        max_model_len: max_model_len as u32,
        block_size: block_size as u32,
        num_blocks: num_blocks as u32,
        groups: vec![KvGroup::Full],
        enable_prefix_caching: false,
        long_prefill_token_threshold: 0,
        max_num_queued_reqs: 1000,
        max_num_queued_tokens: 1_000_000,
    }
}
