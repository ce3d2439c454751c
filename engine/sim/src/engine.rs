//! One engine: the real scheduler, and a device that takes as long as the cost model says.
//!
//! The host plans a step as soon as one more may be in flight, which takes it `host` seconds, and hands it to the device, which runs steps one
//! after the other. With one step in flight the host's time adds to each step; with two it is hidden behind the step before.

use std::collections::VecDeque;
use std::sync::Arc;

use kvasir_engine_core::{
    ConfigError, Event, Policies, Reject, Scheduler, SchedulerConfig, SeqId, Stats, StepOutcome, StepPlan,
    TokenId,
};

use crate::collect::{Collector, TenantIndex};
use crate::cost::{CostModel, MIN_STEP_SECONDS, StepShape};
use crate::source::Job;
use crate::time::SimTime;

/// What every sequence generates unless a recording says otherwise. Contents don't matter to a scheduler, equality does.
pub(crate) const OUTPUT_TOKEN: TokenId = 0;

/// A request between its arrival and its end.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) tenant: TenantIndex,
    pub(crate) slot: Option<u32>,
    pub(crate) arrived: SimTime,
    pub(crate) scheduled: Option<SimTime>,
    pub(crate) first_token: Option<SimTime>,
    pub(crate) last_token: SimTime,
    pub(crate) num_output: u32,
    /// What it should have generated.
    pub(crate) wanted: u32,
    /// Between its tokens, in microseconds.
    pub(crate) gaps: Vec<u32>,
    outputs: Option<Arc<[TokenId]>>,
}

/// A planned step that the device hasn't finished.
#[derive(Debug)]
struct Flight {
    plan: StepPlan,
    shape: StepShape,
    began: SimTime,
    ends: SimTime,
}

/// Scheduler, device and the requests in them.
#[derive(Debug)]
pub(crate) struct Engine {
    scheduler: Scheduler,
    cost: CostModel,
    max_in_flight: usize,
    in_flight: VecDeque<Flight>,
    host_free: SimTime,
    device_free: SimTime,
    live: LiveMap,
    spare_plans: Vec<StepPlan>,
    spare_gaps: Vec<Vec<u32>>,
    outcome: StepOutcome,
    usage: (SimTime, f64),
}

impl Engine {
    pub(crate) fn new(
        config: SchedulerConfig,
        policies: Policies,
        cost: CostModel,
    ) -> Result<Self, ConfigError> {
        let max_in_flight = policies.max_in_flight as usize;
        Ok(Self {
            scheduler: Scheduler::with_policies(config, policies)?,
            cost,
            max_in_flight,
            in_flight: VecDeque::new(),
            host_free: SimTime(0),
            device_free: SimTime(0),
            live: LiveMap::default(),
            spare_plans: Vec::new(),
            spare_gaps: Vec::new(),
            outcome: StepOutcome::default(),
            usage: (SimTime(0), 0.0),
        })
    }

    /// Takes a request in, or gives back why not.
    pub(crate) fn submit(&mut self, now: SimTime, job: Job) -> Result<(), Reject> {
        let wanted = job.request.stop.max_tokens;
        let seq = self
            .scheduler
            .submit_with(now.as_micros(), job.request, job.options)?;
        self.live.insert(
            seq,
            Live {
                tenant: job.tenant,
                slot: job.slot,
                arrived: now,
                scheduled: None,
                first_token: None,
                last_token: now,
                num_output: 0,
                wanted,
                gaps: self.spare_gaps.pop().unwrap_or_default(),
                outputs: job.outputs,
            },
        );
        Ok(())
    }

    /// Plans as many steps as may be in flight, appends what happened to `events`, and gives the ends of the new steps to `on_step`.
    pub(crate) fn plan(
        &mut self,
        now: SimTime,
        collector: &mut Collector,
        events: &mut Vec<Event>,
        mut on_step: impl FnMut(SimTime),
    ) {
        while self.in_flight.len() < self.max_in_flight {
            let mut plan = self.spare_plans.pop().unwrap_or_default();
            if !self.scheduler.schedule(now.as_micros(), &mut plan, events) {
                self.spare_plans.push(plan);
                break;
            }
            let shape = StepShape::of(&plan);
            let seconds = self.cost.step_seconds(shape).max(MIN_STEP_SECONDS);
            self.host_free = self.host_free.max(now).after(self.cost.host);
            let began = self.host_free.max(self.device_free);
            let ends = began.after(seconds);
            self.device_free = ends;
            self.in_flight.push_back(Flight {
                plan,
                shape,
                began,
                ends,
            });
            on_step(ends);
        }
        self.note_usage(now, collector);
    }

    /// Ends the oldest step in flight, and appends what happened to `events`.
    pub(crate) fn complete(&mut self, now: SimTime, collector: &mut Collector, events: &mut Vec<Event>) {
        let Some(flight) = self.in_flight.pop_front() else {
            return;
        };
        collector.step(flight.began, flight.ends, flight.shape);
        self.outcome.sampled.clear();
        for part in flight.plan.seqs.iter().filter(|part| part.samples) {
            let recorded = self.live.get(part.seq).and_then(|live| live.outputs.as_ref());
            let token = recorded.and_then(|outputs| outputs.get(part.output_index as usize));
            self.outcome
                .sampled
                .push((part.seq, token.copied().unwrap_or(OUTPUT_TOKEN)));
        }
        let completed = self.scheduler.complete(flight.plan.step, &self.outcome, events);
        debug_assert!(
            completed.is_ok(),
            "the outcome is made from the plan: {completed:?}"
        );
        self.spare_plans.push(flight.plan);
        self.note_usage(now, collector);
    }

    fn note_usage(&mut self, now: SimTime, collector: &mut Collector) {
        let (since, usage) = self.usage;
        collector.usage(since, now, usage);
        self.usage = (now, self.scheduler.stats().usage);
    }

    pub(crate) fn get_mut(&mut self, seq: SeqId) -> Option<&mut Live> {
        self.live.get_mut(seq)
    }

    /// Takes a request that ended out; [`Engine::recycle`] wants it back.
    pub(crate) fn remove(&mut self, seq: SeqId) -> Option<Live> {
        self.live.remove(seq)
    }

    pub(crate) fn recycle(&mut self, mut live: Live) {
        live.gaps.clear();
        self.spare_gaps.push(live.gaps);
    }

    pub(crate) fn num_live(&self) -> usize {
        self.live.count
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &Live> {
        self.live.places.iter().flatten()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.scheduler.stats()
    }
}

/// Requests by their sequence. Sequences are numbered in the order of their arrival, so that those that live are a window of all numbers.
#[derive(Debug, Default)]
struct LiveMap {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Option<Live>>,
    count: usize,
}

impl LiveMap {
    fn index(&self, seq: SeqId) -> Option<usize> {
        usize::try_from(seq.0.checked_sub(self.first)?).ok()
    }

    fn insert(&mut self, seq: SeqId, live: Live) {
        if self.places.is_empty() {
            self.first = seq.0;
        }
        if let Some(index) = self.index(seq) {
            while self.places.len() <= index {
                self.places.push_back(None);
            }
            self.places[index] = Some(live);
            self.count += 1;
        }
    }

    fn get(&self, seq: SeqId) -> Option<&Live> {
        self.places.get(self.index(seq)?)?.as_ref()
    }

    fn get_mut(&mut self, seq: SeqId) -> Option<&mut Live> {
        let index = self.index(seq)?;
        self.places.get_mut(index)?.as_mut()
    }

    fn remove(&mut self, seq: SeqId) -> Option<Live> {
        let index = self.index(seq)?;
        let live = self.places.get_mut(index)?.take()?;
        self.count -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        Some(live)
    }
}
