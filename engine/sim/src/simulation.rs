//! Plays a workload against engines.
//!
//! All that happens at one moment happens before anything is planned at it, so that requests which come together can start together.
//! A request goes to the engine with the fewest requests that haven't ended, the first one of equals.

use kvasir_engine_core::{
    ConfigError, Event as CoreEvent, FinishReason, Policies, Reject, SchedulerConfig, Stats,
};

use crate::collect::{Collector, Completion, Failure};
use crate::cost::{CostError, CostModel};
use crate::engine::{Engine, Live};
use crate::goodput::{Objectives, Times, p99};
use crate::queue::EventQueue;
use crate::report::Report;
use crate::source::{Job, Source};
use crate::time::{MAX_SECONDS, SimTime};
use crate::workload::{MAX_REQUESTS, Workload, WorkloadError, in_range};

/// KV blocks of all engines together; each takes some dozen bytes of memory.
const MAX_BLOCKS: u64 = 1 << 25;

/// Longest model, in tokens: prompts are held in memory.
const MAX_MODEL_LEN: f64 = (1 << 24) as f64;

/// Engines that are all alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Engines {
    /// The limits of each scheduler.
    pub limits: SchedulerConfig,
    /// The rules of each scheduler.
    pub policies: Policies,
    /// How long the steps of each device take.
    pub cost: CostModel,
    /// How many there are.
    pub count: u32,
}

/// One engine with the limits and rules that `kvasir serve` has by default, 10,000 KV blocks, and the default cost model.
impl Default for Engines {
    fn default() -> Self {
        Self {
            limits: SchedulerConfig {
                max_num_batched_tokens: 2048,
                max_num_seqs: 128,
                max_num_active_seqs: 128,
                max_model_len: 8192,
                block_size: 16,
                num_blocks: 10_000,
                enable_prefix_caching: true,
                long_prefill_token_threshold: 0,
                max_num_queued_reqs: 1024,
                max_num_queued_tokens: 16 << 20,
                ..SchedulerConfig::default()
            },
            policies: Policies::serve(),
            cost: CostModel::DEFAULT,
            count: 1,
        }
    }
}

/// What is played, and which part of it is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// Requests to play; all of a recording if there is none.
    pub num_requests: Option<u64>,
    /// Length of the window that is counted; until all requests have ended if there is none.
    pub seconds: Option<f64>,
    /// What comes before the window.
    pub warmup_seconds: f64,
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// Limits or policies can't work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The schedulers would need more memory than a machine has.
    #[error(
        "{count} engines of {num_blocks} KV blocks are more than {MAX_BLOCKS} blocks in all; lower --engines, --num-gpu-blocks-override, \
         --max-num-seqs or --max-model-len"
    )]
    TooManyBlocks {
        /// Engines.
        count: u32,
        /// Blocks of each.
        num_blocks: u32,
    },
    /// The cost model can't work.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The workload can't work.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// Nothing is left after warming up.
    #[error(
        "all requests had ended after {ended_seconds:.3} s, within the warm-up of {warmup_seconds} s; shorten it or play more requests"
    )]
    EmptyWindow {
        /// When the last one ended.
        ended_seconds: f64,
        /// The warm-up.
        warmup_seconds: f64,
    },
}

/// Plays a workload and reports what its clients saw.
///
/// # Errors
/// If a value can't be used, or nothing happens inside the window.
pub fn simulate(
    engines: &Engines,
    workload: &Workload,
    span: &Span,
    objectives: &Objectives,
) -> Result<Report, SimError> {
    span.validate(workload)?;
    engines.cost.validate()?;
    in_range("the number of engines", f64::from(engines.count), 1.0, 1000.0)?;
    engines.limits.validate()?;
    in_range(
        "the model's length in tokens",
        f64::from(engines.limits.max_model_len),
        2.0,
        MAX_MODEL_LEN,
    )?;
    let num_blocks = engines.limits.num_blocks;
    if u64::from(engines.count) * u64::from(num_blocks) > MAX_BLOCKS {
        return Err(SimError::TooManyBlocks {
            count: engines.count,
            num_blocks,
        });
    }
    workload.validate(engines.limits.max_model_len)?;
    let start = SimTime::from_seconds(span.warmup_seconds);
    let end = span.seconds.map(|seconds| start.after(seconds));
    let engine = || Engine::new(engines.limits.clone(), engines.policies.clone(), engines.cost);
    let mut simulation = Simulation {
        queue: EventQueue::new(),
        engines: (0..engines.count).map(|_| engine()).collect::<Result<_, _>>()?,
        has_news: vec![false; engines.count as usize],
        source: Source::new(
            workload,
            span.num_requests.unwrap_or(MAX_REQUESTS),
            engines.limits.max_model_len,
        ),
        collector: Collector::new(*objectives, workload.tenant_names(), start, end),
        events: Vec::new(),
    };
    let before = simulation.run(start, end);
    let ended_seconds = simulation.queue.now().as_seconds();
    simulation.report(&before).ok_or(SimError::EmptyWindow {
        ended_seconds,
        warmup_seconds: span.warmup_seconds,
    })
}

impl Span {
    fn validate(&self, workload: &Workload) -> Result<(), WorkloadError> {
        if let Some(num_requests) = self.num_requests {
            in_range(
                "the number of requests",
                num_requests as f64,
                1.0,
                MAX_REQUESTS as f64,
            )?;
        } else if workload.comes_at_once() || self.seconds.is_none() && !workload.is_finite() {
            return Err(WorkloadError::Endless);
        }
        in_range(
            "the duration in seconds",
            self.seconds.unwrap_or(1.0),
            1e-6,
            MAX_SECONDS,
        )?;
        in_range("the warm-up in seconds", self.warmup_seconds, 0.0, MAX_SECONDS)
    }
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request that waits for nobody.
    Arrive,
    /// The next request of a client or conversation.
    Ask(u32),
    /// The oldest step of an engine ends.
    StepEnds(usize),
}

struct Simulation<'a> {
    queue: EventQueue<Event>,
    engines: Vec<Engine>,
    /// Engines to which something happened at this moment.
    has_news: Vec<bool>,
    source: Source<'a>,
    collector: Collector,
    /// A buffer.
    events: Vec<CoreEvent>,
}

impl Simulation<'_> {
    /// Plays until the end or until nothing is left, and gives the counters at the start of the window.
    fn run(&mut self, start: SimTime, end: Option<SimTime>) -> Vec<Stats> {
        let mut before = None;
        self.announce();
        while let Some(now) = self.queue.next_at() {
            if end.is_some_and(|end| now >= end) {
                break;
            }
            if before.is_none() && now >= start {
                before = Some(self.stats());
            }
            while self.queue.next_at() == Some(now) {
                let Some((_, event)) = self.queue.pop() else { break };
                self.handle(now, event);
            }
            self.plan(now);
        }
        before.unwrap_or_else(|| self.stats())
    }

    fn report(self, before: &[Stats]) -> Option<Report> {
        let outstanding: Vec<_> = self
            .engines
            .iter()
            .flat_map(Engine::live)
            .map(|live| live.tenant)
            .collect();
        let after = self.stats();
        self.collector
            .report(self.queue.now(), &outstanding, before, &after)
    }

    fn stats(&self) -> Vec<Stats> {
        self.engines.iter().map(Engine::stats).collect()
    }

    /// Plans the next arrival.
    fn announce(&mut self) {
        if let Some(at) = self.source.next_arrival() {
            self.queue.push(at, Event::Arrive);
        }
    }

    fn handle(&mut self, now: SimTime, event: Event) {
        match event {
            Event::Arrive => {
                if let Some(job) = self.source.arrive(now) {
                    self.submit(now, job);
                }
                self.announce();
            }
            Event::Ask(slot) => {
                if let Some(job) = self.source.ask(slot, now) {
                    self.submit(now, job);
                }
            }
            Event::StepEnds(index) => {
                self.has_news[index] = true;
                let mut events = std::mem::take(&mut self.events);
                self.engines[index].complete(now, &mut self.collector, &mut events);
                self.tell(now, index, &mut events);
                self.events = events;
            }
        }
    }

    fn submit(&mut self, now: SimTime, job: Job) {
        let (tenant, slot) = (job.tenant, job.slot);
        self.collector.arrived(now, tenant);
        let index = self.choose();
        match self.engines[index].submit(now, job) {
            Ok(()) => self.has_news[index] = true,
            Err(reject) => {
                self.collector.failed(now, tenant, failure(&reject));
                self.go_on(now, slot, None);
            }
        }
    }

    fn choose(&self) -> usize {
        let loads = self
            .engines
            .iter()
            .enumerate()
            .map(|(index, engine)| (engine.num_live(), index));
        loads.min().map_or(0, |(_, index)| index)
    }

    /// Gives every engine that something happened to the chance to start steps.
    fn plan(&mut self, now: SimTime) {
        for index in 0..self.engines.len() {
            if !std::mem::take(&mut self.has_news[index]) {
                continue;
            }
            let mut events = std::mem::take(&mut self.events);
            let queue = &mut self.queue;
            self.engines[index].plan(now, &mut self.collector, &mut events, |ends| {
                queue.push(ends, Event::StepEnds(index));
            });
            self.tell(now, index, &mut events);
            self.events = events;
        }
    }

    /// Takes note of what an engine's scheduler did.
    fn tell(&mut self, now: SimTime, index: usize, events: &mut Vec<CoreEvent>) {
        for event in events.drain(..) {
            match event {
                CoreEvent::Token { seq, .. } => {
                    self.collector.token(now);
                    if let Some(live) = self.engines[index].get_mut(seq) {
                        live.take_token(now);
                    }
                }
                CoreEvent::Scheduled { seq, .. } => {
                    if let Some(live) = self.engines[index].get_mut(seq) {
                        live.scheduled.get_or_insert(now);
                    }
                }
                CoreEvent::Finished { seq, reason } => {
                    if let Some(live) = self.engines[index].remove(seq) {
                        self.finish(now, index, live, reason);
                    }
                }
                // The scheduler counts them itself.
                CoreEvent::Preempted { .. } => {}
            }
        }
    }

    fn finish(&mut self, now: SimTime, index: usize, mut live: Live, reason: FinishReason) {
        let num_output = match reason {
            FinishReason::Eos | FinishReason::StopToken(_) | FinishReason::Length => {
                self.collector.completed(now, live.completion(now));
                Some(live.num_output)
            }
            FinishReason::Deadline | FinishReason::Abort | FinishReason::Error => {
                self.collector.failed(now, live.tenant, Failure::TimedOut);
                None
            }
        };
        self.go_on(now, live.slot, num_output);
        self.engines[index].recycle(live);
    }

    fn go_on(&mut self, now: SimTime, slot: Option<u32>, num_output: Option<u32>) {
        if let Some(slot) = slot
            && let Some(at) = self.source.follow_up(slot, now, num_output)
        {
            self.queue.push(at, Event::Ask(slot));
        }
    }
}

impl Live {
    fn take_token(&mut self, now: SimTime) {
        self.num_output += 1;
        if self.first_token.is_none() {
            self.first_token = Some(now);
        } else {
            let gap = now.micros_since(self.last_token);
            self.gaps.push(u32::try_from(gap).unwrap_or(u32::MAX));
        }
        self.last_token = now;
    }

    fn completion(&mut self, now: SimTime) -> Completion {
        let first = self.first_token.unwrap_or(now);
        let num_gaps = self.num_output.saturating_sub(1);
        let decoding = self.last_token.micros_since(first) as f64;
        Completion {
            tenant: self.tenant,
            is_cut: self.num_output < self.wanted,
            queued: self.scheduled.unwrap_or(now).micros_since(self.arrived),
            times: Times {
                ttft: first.micros_since(self.arrived),
                itl_p99: p99(&mut self.gaps).map(u64::from),
                tpot: (num_gaps > 0).then(|| decoding / f64::from(num_gaps)),
                e2el: self.last_token.micros_since(self.arrived),
            },
        }
    }
}

fn failure(reject: &Reject) -> Failure {
    match reject {
        Reject::QueueFull { .. } | Reject::QueuedTokensFull { .. } => Failure::QueueFull,
        Reject::EmptyPrompt
        | Reject::ZeroMaxTokens
        | Reject::PromptTooLong { .. }
        | Reject::NeverFits { .. } => Failure::TooLong,
    }
}
