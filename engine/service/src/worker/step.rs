//! Plans out, results in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_backend::{ExecError, StepResult};
use kvasir_client::refusal;
use kvasir_client::types::ErrorCode;
use kvasir_engine_core::{Micros, SeqId, StepPlan};

use super::Worker;
use super::flight::InFlight;
use super::times::StepTime;

impl Worker {
    /// Plans and submits steps while there is room, then takes the oldest one's result.
    pub(super) fn step(&mut self) {
        while self.flight.has_room() && self.launch() {}
        match self.flight.pop() {
            Some(oldest) => self.land(oldest),
            None => self.rest(),
        }
    }

    /// Plans a step and gives it to the executor. Says whether there was one.
    fn launch(&mut self) -> bool {
        let mut laps = Laps::start();
        let now = self.now();
        let mut plan = self.flight.blank_plan();
        // Only a dump that is being written shares the buffer still, and keeps what it has.
        let planned = self
            .shared
            .host
            .scheduler()
            .schedule(now, Arc::make_mut(&mut plan), &mut self.events);
        self.apply_events();
        if !planned {
            self.flight.keep(plan);
            return false;
        }
        self.note_planned(&plan, now);
        let schedule = laps.lap();
        self.beat(Some(plan.num_tokens()));
        let submitted = Instant::now();
        let ticket = self.executor.submit(&plan);
        let time = StepTime {
            schedule,
            launch: submitted.elapsed(),
            ..StepTime::default()
        };
        self.flight.push(InFlight {
            plan,
            ticket,
            submitted,
            time,
        });
        true
    }

    fn note_planned(&mut self, plan: &Arc<StepPlan>, now: Micros) {
        let stats = self.shared.host.scheduler().stats();
        let live = self.shared.host.live();
        self.shared
            .host
            .journal()
            .begin(plan, now, &stats, |planned| live.describe(planned));
    }

    /// Waits for a step's result and passes it on.
    fn land(&mut self, step: InFlight) {
        let InFlight {
            plan,
            ticket,
            submitted,
            mut time,
        } = step;
        let mut laps = Laps::start();
        let result = ticket.and_then(|ticket| self.executor.sample(ticket));
        time.wait = laps.lap();
        time.execute = self.flight.executed(submitted);
        if result.is_ok() {
            self.pace.note(plan.num_tokens(), time.execute);
        }
        let result = result.and_then(|result| self.complete(&plan, result));
        if let Err(error) = &result {
            self.fail_step(&plan, error);
        }
        self.apply_events();
        self.report_blocks();
        time.complete = laps.lap();
        self.progress = Some(Instant::now());
        self.publish();
        self.flush();
        time.deliver = laps.lap();
        self.note_landed(plan, time, result.err());
    }

    fn note_landed(&mut self, plan: Arc<StepPlan>, time: StepTime, failure: Option<ExecError>) {
        self.counters.count_step(&time);
        self.shared.publish(&self.counters, self.progress);
        self.shared.host.journal().end(plan.step, time, failure);
        self.flight.keep(plan);
    }

    /// There is nothing to run.
    fn rest(&mut self) {
        self.report_blocks();
        // Planning may have ended the last sequences, whose time was over.
        if !self.shared.host.live().is_empty() {
            self.publish();
            self.flush();
        }
        // The scheduler plans something whenever a sequence exists and no step is in flight.
        assert!(
            self.shared.host.live().is_empty(),
            "the scheduler has sequences and plans no step"
        );
    }

    fn complete(&mut self, plan: &StepPlan, result: StepResult) -> Result<(), ExecError> {
        let StepResult {
            sampled,
            prompt_logprobs,
            failed,
        } = result;
        for (seq, reason) in &failed {
            self.fail_sequence(*seq, reason);
        }
        let mut live = self.shared.host.live();
        live.note_step(plan, Instant::now());
        for (seq, logprobs) in prompt_logprobs {
            live.note_prompt_logprobs(plan, seq, logprobs);
        }
        self.outcome.sampled.clear();
        let mut sampled = sampled.into_iter().peekable();
        for planned in plan.seqs.iter().filter(|planned| planned.samples) {
            if let Some(sampled) = sampled.next_if(|sampled| sampled.seq == planned.seq) {
                self.outcome.sampled.push((sampled.seq, sampled.token));
                live.note_logprobs(sampled.seq, sampled.logprobs);
            } else if failed.iter().any(|(seq, _)| *seq == planned.seq) {
                // The scheduler drops what an ended sequence sampled.
                self.outcome.sampled.push((planned.seq, 0));
            }
        }
        drop(live);
        self.shared
            .host
            .scheduler()
            .complete(plan.step, &self.outcome, &mut self.events)
            .map_err(|error| ExecError::Device(error.to_string()))
    }

    /// Ends a sequence that failed alone; the others of its step go on.
    fn fail_sequence(&mut self, seq: SeqId, reason: &str) {
        tracing::error!(sequence = seq.0, reason, "a sequence failed and ends");
        let fault = refusal(
            ErrorCode::Internal,
            format!("this sequence can't go on: {reason}"),
        );
        self.shared.host.live().blame(seq, &fault);
        self.shared.host.scheduler().abort(seq, &mut self.events);
    }

    fn fail_step(&mut self, plan: &StepPlan, error: &ExecError) {
        tracing::error!(step = plan.step.0, sequences = plan.seqs.len(), %error, "a step failed; its sequences end");
        let fault = refusal(
            ErrorCode::Internal,
            format!("the step that computed this sequence failed: {error}"),
        );
        let mut live = self.shared.host.live();
        for planned in &plan.seqs {
            live.blame(planned.seq, &fault);
        }
        drop(live);
        self.shared
            .host
            .scheduler()
            .fail_step(plan.step, &mut self.events);
    }
}

/// Times one thing after another.
struct Laps(Instant);

impl Laps {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.0, now))
    }
}
