//! The steps that the executor has and whose results weren't taken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_backend::{ExecError, Ticket};
use kvasir_engine_core::StepPlan;

use super::times::StepTime;

/// A step that was given to the executor.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Shared with the journal until the step ends.
    pub(super) plan: Arc<StepPlan>,
    /// Or why the executor didn't take it; the step fails when its turn comes.
    pub(super) ticket: Result<Ticket, ExecError>,
    pub(super) submitted: Instant,
    pub(super) time: StepTime,
}

/// They, oldest first.
#[derive(Debug)]
pub(super) struct Flight {
    limit: usize,
    steps: VecDeque<InFlight>,
    /// Buffers of steps that ended.
    spare: Vec<Arc<StepPlan>>,
    /// When the executor gave its last result.
    last_result: Instant,
}

impl Flight {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            steps: VecDeque::with_capacity(limit),
            spare: Vec::new(),
            last_result: Instant::now(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether another step may be planned: not on top of one that the executor didn't take, whose sequences are about to end.
    pub(super) fn has_room(&self) -> bool {
        let newest_failed = self.steps.back().is_some_and(|newest| newest.ticket.is_err());
        self.steps.len() < self.limit && !newest_failed
    }

    /// Input tokens of each step.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.steps.iter().map(|step| step.plan.num_tokens())
    }

    pub(super) fn push(&mut self, step: InFlight) {
        self.steps.push_back(step);
    }

    pub(super) fn pop(&mut self) -> Option<InFlight> {
        self.steps.pop_front()
    }

    /// How long the executor worked on a step that has just given its result: while an older one ran, it only waited.
    pub(super) fn executed(&mut self, submitted: Instant) -> Duration {
        let now = Instant::now();
        let begun = submitted.max(std::mem::replace(&mut self.last_result, now));
        now.saturating_duration_since(begun)
    }

    /// A buffer for a plan.
    pub(super) fn blank_plan(&mut self) -> Arc<StepPlan> {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn keep(&mut self, plan: Arc<StepPlan>) {
        self.spare.push(plan);
    }
}

#[cfg(test)]
mod tests {
    use kvasir_engine_core::StepId;

    use super::*;

    fn step(ticket: Result<Ticket, ExecError>) -> InFlight {
        InFlight {
            plan: Arc::default(),
            ticket,
            submitted: Instant::now(),
            time: StepTime::default(),
        }
    }

    #[test]
    fn nothing_is_planned_on_top_of_a_step_that_was_not_taken() {
        let mut flight = Flight::new(3);
        flight.push(step(Ok(Ticket(StepId(0)))));
        assert!(flight.has_room());
        flight.push(step(Err(ExecError::Device("gone".to_owned()))));
        assert!(!flight.has_room());
        flight.pop();
        assert!(!flight.has_room());
        flight.pop();
        assert!(flight.has_room());
    }

    #[test]
    fn time_behind_an_older_step_is_not_execution() {
        let mut flight = Flight::new(2);
        let submitted = Instant::now();
        let first = flight.executed(submitted);
        let second = flight.executed(submitted);
        assert!(first + second <= submitted.elapsed());
    }
}
