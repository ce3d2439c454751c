//! Step records from a real model, without a server: the scheduler plans, the executor runs, a clock is read.
//!
//! Each run submits one sequence a step, so that there are steps with prompts only, with decodes only, and with both; the runs differ in
//! the number of sequences and in their prompts. Prompts are random, the cache is off, and the first run is thrown away.

use std::io::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use kvasir_backend::{Executor, NewSequence};
use kvasir_cache_key::CacheIdentity;
use kvasir_config::{EngineConfig, ModelConfig};
use kvasir_engine_core::{
    Event, Micros, Policies, Request, Scheduler, SchedulerConfig, StepOutcome, StepPlan, StopConditions,
};
use kvasir_sampling::SamplingParams;
use kvasir_sim::{Rng, StepRecord, StepShape};
use rustix::time::{ClockId, clock_gettime};

use super::cost::{fit_text, unwritable};
use super::{print, usage};
use crate::cli::say;
use crate::exit::Failure;
use crate::load::{LoadedExecutor, load_executor};
use crate::progress::Bars;

/// Sequences and prompt tokens of each run. About 10,000 prompt tokens and 500 steps.
const RUNS: &[(u32, u32)] = &[
    (2, 16),
    (1, 16),
    (1, 128),
    (1, 512),
    (1, 1024),
    (2, 64),
    (2, 700),
    (4, 128),
    (8, 32),
    (8, 256),
    (16, 32),
    (16, 96),
    (32, 16),
    (32, 48),
];
const OUTPUT_TOKENS: u32 = 24;
/// Prompts longer than this are computed in chunks.
const TOKEN_BUDGET: u32 = 512;
const MAX_SEQS: u32 = 32;

/// What to measure, and how.
pub(crate) struct Calibration {
    /// The default model if there is none.
    pub(crate) model: Option<String>,
    /// Threads that compute; from the CPU quota if there are none.
    pub(crate) threads: Option<NonZeroU32>,
    /// Whether to take the time that the process computes instead of the clock's.
    pub(crate) cpu_time: bool,
    /// Where the step records go.
    pub(crate) output: Option<PathBuf>,
    pub(crate) json: bool,
}

/// Measures a model, writes the records, and prints the fitted cost model.
pub(crate) fn calibrate(calibration: &Calibration) -> Result<(), Failure> {
    // What is wrong with the output should be said before a minute of work.
    let output = calibration.output.as_deref();
    let mut file = match output {
        Some(path) => Some(std::fs::File::create(path).map_err(|error| unwritable(path, &error))?),
        None => None,
    };
    let mut bench = Bench::load(calibration)?;
    let mut records = Vec::new();
    for (index, &(num_seqs, prompt_len)) in RUNS.iter().enumerate() {
        if prompt_len + OUTPUT_TOKENS > bench.limits.max_model_len {
            say(&format!(
                "left out: prompts of {prompt_len} tokens are too long for the model"
            ));
            continue;
        }
        let run = bench.run(num_seqs, prompt_len)?;
        if index == 0 {
            continue;
        }
        let seconds: f64 = run.iter().map(|record| record.seconds).sum();
        say(&format!(
            "{num_seqs:>3} sequences of {prompt_len:>4} tokens: {:>3} steps in {seconds:.2} s",
            run.len()
        ));
        records.extend(run);
    }
    if let (Some(file), Some(path)) = (&mut file, output) {
        let lines: String = records.iter().map(|record| record.to_line() + "\n").collect();
        file.write_all(lines.as_bytes())
            .map_err(|error| unwritable(path, &error))?;
    }
    let fit = kvasir_sim::fit(&records).map_err(|error| usage(&error))?;
    print(&fit_text(&fit, calibration.json))
}

/// A model and the limits it is driven with.
struct Bench {
    executor: Box<dyn Executor>,
    vocab_size: u32,
    limits: SchedulerConfig,
    tokens: Rng,
    clock: Clock,
}

impl Bench {
    fn load(calibration: &Calibration) -> Result<Self, Failure> {
        let mut model_config = ModelConfig::default();
        let mut engine_config = EngineConfig::default();
        model_config.model.value.clone_from(&calibration.model);
        if calibration.threads.is_some() {
            model_config.threads.derive(calibration.threads, "--threads");
        }
        engine_config
            .max_num_batched_tokens
            .derive(budget(), "calibration");
        let LoadedExecutor {
            executor,
            limits,
            vocab_size,
            threads,
        } = load_executor(&mut model_config, &mut engine_config, &Bars::default())
            .map_err(|error| Failure::failed(&error))?;
        Ok(Self {
            executor,
            vocab_size,
            clock: Clock::new(calibration.cpu_time, threads),
            limits: SchedulerConfig {
                max_num_seqs: MAX_SEQS,
                max_num_active_seqs: MAX_SEQS,
                enable_prefix_caching: false,
                ..limits
            },
            tokens: Rng::new(0, 0),
        })
    }

    /// The steps of so many sequences, one more of which is submitted before each step.
    fn run(&mut self, num_seqs: u32, prompt_len: u32) -> Result<Vec<StepRecord>, Failure> {
        let mut scheduler =
            Scheduler::with_policies(self.limits.clone(), Policies::vllm()).map_err(|error| usage(&error))?;
        let (mut plan, mut events, mut outcome) = (StepPlan::new(), Vec::new(), StepOutcome::default());
        let mut records = Vec::new();
        let mut num_left = num_seqs;
        loop {
            if num_left > 0 {
                num_left -= 1;
                self.submit(&mut scheduler, prompt_len)?;
            }
            events.clear();
            let began = self.clock.seconds();
            if !scheduler.schedule(Micros(0), &mut plan, &mut events) {
                return Ok(records);
            }
            let sampled = (self.executor.submit(&plan))
                .and_then(|ticket| self.executor.sample(ticket))
                .map_err(|error| Failure::failed(&error))?
                .sampled;
            outcome.sampled.clear();
            outcome
                .sampled
                .extend(sampled.iter().map(|sampled| (sampled.seq, sampled.token)));
            scheduler
                .complete(plan.step, &outcome, &mut events)
                .map_err(|error| Failure::failed(&error))?;
            let seconds = self.clock.seconds() - began;
            for event in &events {
                if let Event::Finished { seq, .. } = event {
                    self.executor.release(*seq);
                }
            }
            records.push(record(StepShape::of(&plan), seconds));
        }
    }

    fn submit(&mut self, scheduler: &mut Scheduler, prompt_len: u32) -> Result<(), Failure> {
        let last = self.vocab_size.saturating_sub(1);
        let prompt: Arc<[u32]> = (0..prompt_len).map(|_| self.tokens.between(0, last)).collect();
        let request = Request {
            prompt: Arc::clone(&prompt),
            stop: StopConditions {
                max_tokens: OUTPUT_TOKENS,
                ..StopConditions::default()
            },
            priority: 0,
            cache_root: CacheIdentity::default().root(),
            reads_prefix_cache: false,
        };
        let seq = scheduler
            .submit(Micros(0), request)
            .map_err(|error| Failure::failed(&error))?;
        self.executor.admit(NewSequence {
            seq,
            prompt,
            sampling: Arc::new(SamplingParams {
                temperature: 0.0,
                ..SamplingParams::default()
            }),
            prompt_logprobs: None,
        });
        Ok(())
    }
}

/// What a step is timed with.
enum Clock {
    Wall(Instant),
    /// Of all threads of this process together.
    Cpu {
        threads: f64,
    },
}

impl Clock {
    fn new(cpu_time: bool, threads: u32) -> Self {
        if cpu_time {
            let threads = f64::from(threads.max(1));
            Self::Cpu { threads }
        } else {
            Self::Wall(Instant::now())
        }
    }

    /// Since a moment in the past.
    fn seconds(&self) -> f64 {
        match self {
            Self::Wall(start) => start.elapsed().as_secs_f64(),
            Self::Cpu { threads } => {
                let spent = clock_gettime(ClockId::ProcessCPUTime);
                (spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9) / threads
            }
        }
    }
}

fn budget() -> NonZeroU32 {
    NonZeroU32::new(TOKEN_BUDGET).unwrap_or(NonZeroU32::MIN)
}

fn record(shape: StepShape, seconds: f64) -> StepRecord {
    let StepShape {
        prefill_tokens,
        decode_seqs,
        context_tokens,
    } = shape;
    StepRecord {
        prefill_tokens,
        decode_seqs,
        context_tokens,
        seconds,
    }
}
