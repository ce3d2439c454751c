//! A model driven by the real scheduler, with everything that came out of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use kvasir_backend::{Executor, NewSequence, StepResult, Ticket};
use kvasir_cache_key::CacheRoot;
use kvasir_engine_core::{
    Event, KvGroup, Micros, Policies, Request, Scheduler, SchedulerConfig, SeqId, StepOutcome, StepPlan,
    StopConditions,
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
    /// Ends the output.
    pub(crate) eos: Option<u32>,
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
            eos: None,
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
    is_finished: bool,
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
pub(crate) struct Driver {
    pub(crate) model: Model,
    pub(crate) scheduler: Scheduler,
    pub(crate) num_preemptions: usize,
    pub(crate) num_cached_tokens: usize,
    pub(crate) num_copies: usize,
    pub(crate) largest_step: usize,
    max_in_flight: usize,
    prompt_lens: BTreeMap<SeqId, usize>,
    seen: SeenLogits,
}

impl Driver {
    pub(crate) fn new(model: Model, config: SchedulerConfig) -> Self {
        Self::with_policies(model, config, Policies::vllm())
    }

    pub(crate) fn with_policies(mut model: Model, config: SchedulerConfig, policies: Policies) -> Self {
        let max_in_flight = policies.max_in_flight as usize;
        let seen = SeenLogits::default();
        let sink = Arc::clone(&seen);
        model.observe_logits(Some(Box::new(move |seq, position, logits| {
            let bits = logits.iter().map(|logit| logit.to_bits()).collect();
            sink.lock().unwrap().push((seq, position, bits));
        })));
        let scheduler = Scheduler::with_policies(config, policies).unwrap();
        Self {
            model,
            scheduler,
            num_preemptions: 0,
            num_cached_tokens: 0,
            num_copies: 0,
            largest_step: 0,
            max_in_flight,
            prompt_lens: BTreeMap::new(),
            seen,
        }
    }

    /// Runs all jobs together, to their ends.
    pub(crate) fn run(&mut self, jobs: &[Job]) -> Vec<Output> {
        let seqs: Vec<SeqId> = jobs.iter().map(|job| self.start(job)).collect();
        self.finish(&seqs)
    }

    /// Runs the jobs as one group, which may share a prompt.
    pub(crate) fn run_group(&mut self, jobs: &[Job]) -> Vec<Output> {
        let seqs = self
            .scheduler
            .submit_group(Micros(0), jobs.iter().map(request).collect())
            .unwrap();
        for (&seq, job) in seqs.iter().zip(jobs) {
            self.admit(seq, job);
        }
        self.finish(&seqs)
    }

    /// Runs everything to its end, with as many steps in flight as the scheduler plans.
    fn finish(&mut self, seqs: &[SeqId]) -> Vec<Output> {
        let mut outputs: BTreeMap<SeqId, Output> = seqs.iter().map(|seq| (*seq, Output::default())).collect();
        let mut in_flight: VecDeque<(Ticket, StepPlan)> = VecDeque::new();
        let (mut plan, mut events) = (StepPlan::new(), Vec::new());
        loop {
            while self.scheduler.schedule(Micros(0), &mut plan, &mut events) {
                self.largest_step = self.largest_step.max(plan.num_tokens());
                self.num_copies += plan.copies.len();
                in_flight.push_back((self.model.submit(&plan).unwrap(), plan.clone()));
                assert!(in_flight.len() <= self.max_in_flight);
            }
            self.note_all(&mut events);
            let Some((ticket, plan)) = in_flight.pop_front() else {
                break;
            };
            let result = self.model.sample(ticket).unwrap();
            self.complete(&plan, result, &mut outputs, &mut events);
            self.note_all(&mut events);
        }
        for (seq, position, bits) in self.seen.lock().unwrap().drain(..) {
            let output = outputs.get_mut(&seq).unwrap();
            let num_prompt = self.prompt_lens[&seq];
            if position >= num_prompt + output.tokens.len() - 1 {
                // Computed ahead, behind the end.
                continue;
            }
            let earlier = output.logits.insert(position, bits);
            assert_eq!(
                earlier, None,
                "the logits after position {position} were computed twice"
            );
        }
        seqs.iter().map(|seq| outputs.remove(seq).unwrap()).collect()
    }

    fn complete(
        &mut self,
        plan: &StepPlan,
        result: StepResult,
        outputs: &mut BTreeMap<SeqId, Output>,
        events: &mut Vec<Event>,
    ) {
        assert_eq!(result.failed, []);
        let mut outcome = StepOutcome::default();
        for sampled in result.sampled {
            outcome.sampled.push((sampled.seq, sampled.token));
            let output = outputs.get_mut(&sampled.seq).unwrap();
            // A step that was planned ahead may sample once more than the sequence turned out to need.
            if !output.is_finished {
                output.tokens.push(sampled.token);
                output.logprobs.push(sampled.logprobs);
            }
        }
        for (seq, logprobs) in result.prompt_logprobs {
            outputs.get_mut(&seq).unwrap().prompt_logprobs.extend(logprobs);
        }
        self.scheduler.complete(plan.step, &outcome, events).unwrap();
        self.scheduler.check().unwrap();
        for event in events.iter() {
            if let Event::Finished { seq, .. } = event {
                outputs.get_mut(seq).unwrap().is_finished = true;
            }
        }
    }

    /// Runs the jobs one after the other.
    pub(crate) fn run_alone(&mut self, jobs: &[Job]) -> Vec<Output> {
        jobs.iter()
            .flat_map(|job| self.run(std::slice::from_ref(job)))
            .collect()
    }

    fn start(&mut self, job: &Job) -> SeqId {
        let seq = self.scheduler.submit(Micros(0), request(job)).unwrap();
        self.admit(seq, job);
        seq
    }

    fn admit(&mut self, seq: SeqId, job: &Job) {
        self.prompt_lens.insert(seq, job.prompt.len());
        self.model.admit(NewSequence {
            seq,
            prompt: job.prompt.clone().into(),
            sampling: Arc::new(job.sampling.clone()),
            prompt_logprobs: job.prompt_logprobs.then_some(2),
        });
    }

    fn note_all(&mut self, events: &mut Vec<Event>) {
        events.drain(..).for_each(|event| self.note(event));
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

fn request(job: &Job) -> Request {
    Request {
        prompt: job.prompt.clone().into(),
        stop: StopConditions {
            max_tokens: job.max_tokens,
            eos_token_ids: job.eos.into_iter().collect(),
            ..StopConditions::default()
        },
        priority: 0,
        cache_root: CacheRoot([7; 32]),
        reads_prefix_cache: !job.prompt_logprobs,
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
