//! The scheduler thread.
//!
//! Each turn takes the commands that came, plans and submits steps until as many as may be are in flight, waits for the oldest one's result,
//! and routes what happened; without work it sleeps in the mailbox. Within a turn the order is: commands, load report, answers, outputs of the
//! commands; then plans, the oldest step's result, load report, outputs of that step. So whoever was answered sees itself in the load report,
//! and what a client dropped is free before the next step is planned.
//!
//! With two steps in flight the next one is planned, checked and submitted while the executor works on the one before; results are taken in
//! order. A step that fails ends its sequences and nothing else, also if it failed when it was submitted and an older one still runs:
//! nothing is planned on top of it until its turn came. A panic ends all requests and the thread: the state of scheduler and executor
//! is unknown then.
//!
//! No lock of [`Host`](crate::host::Host) is held while the executor is called, so that others can look at a thread that is stuck in it.

mod blocks;
mod commands;
mod counters;
mod flight;
mod live;
mod records;
mod routing;
mod step;
mod timeline;
mod times;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use kvasir_backend::Executor;
use kvasir_client::refusal;
use kvasir_client::types::ErrorCode;
use kvasir_engine_core::{Event, Micros, StepOutcome};

use self::blocks::BlockReporter;
pub(crate) use self::blocks::Published;
use self::commands::Answer;
pub(crate) use self::counters::Counters;
use self::flight::Flight;
pub(crate) use self::live::LiveRequests;
pub(crate) use self::times::StepTime;
use crate::mailbox::Command;
use crate::shared::{EngineState, Shared};
use crate::watchdog::Pace;

/// Owns the executor and drives the scheduler.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    executor: Box<dyn Executor>,
    epoch: Instant,
    flight: Flight,
    /// How long steps take, for the watchdog.
    pace: Pace,
    counters: Counters,
    blocks: BlockReporter,
    /// When the last step completed, or work came to an idle engine.
    progress: Option<Instant>,
    commands: VecDeque<Command>,
    answers: Vec<Answer>,
    events: Vec<Event>,
    outcome: StepOutcome,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        executor: Box<dyn Executor>,
        max_in_flight: u32,
        published: Option<Published>,
    ) -> Self {
        let mut worker = Self {
            epoch: shared.host.epoch,
            shared,
            executor,
            flight: Flight::new(max_in_flight as usize),
            pace: Pace::default(),
            counters: Counters::default(),
            blocks: BlockReporter::new(published),
            progress: None,
            commands: VecDeque::new(),
            answers: Vec::new(),
            events: Vec::new(),
            outcome: StepOutcome::default(),
        };
        worker.report_blocks();
        worker.publish();
        worker
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) {
        let mut failed = None;
        let end = catch_unwind(AssertUnwindSafe(|| self.turns()));
        let error = match end {
            Ok(()) => refusal(ErrorCode::Unavailable, "the engine was stopped"),
            Err(panic) => {
                let message = panic_message(&*panic);
                tracing::error!(message, "the scheduler thread panicked; all requests fail");
                failed = Some(EngineState::Failed(message));
                refusal(ErrorCode::Internal, "the engine failed; its log says why")
            }
        };
        self.shared.mailbox.close(&mut self.commands);
        self.fail_everything(&error);
        // Last, so that whoever ends the process on it finds the requests answered.
        if let Some(state) = failed {
            self.shared.advance(state);
        }
    }

    fn turns(&mut self) {
        loop {
            let has_work = !self.shared.host.live().is_empty() || self.blocks.has_work();
            let is_idle = self.flight.is_empty() && !has_work;
            self.shared.mailbox.take(&mut self.commands, is_idle);
            if self.run_commands() {
                return;
            }
            self.step();
        }
    }

    fn now(&self) -> Micros {
        Micros(u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|message| (*message).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
