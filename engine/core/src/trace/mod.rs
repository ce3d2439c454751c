//! What went into a scheduler, as data, and running it again.
//!
//! Law: a scheduler that gets the same inputs from the same state gives byte-equal plans and equal events. A recording is bounded, begins wherever
//! its first input came and always has the state from which that input was taken (`recorder.rs`), so a server that never rests can
//! be recorded, and what is kept of it when it gets stuck can be run again.

mod codec;
mod image;
mod recorder;
mod requests;

pub use codec::TraceError;
pub use image::Image;
pub(crate) use image::{PoolImage, SequenceImage, StepImage, TableImage, WorkImage};
pub(crate) use recorder::Recorder;
pub use requests::RecordedRequest;

use crate::block::BlockEventDetail;
use crate::config::{ConfigError, SchedulerConfig};
use crate::event::Event;
use crate::ids::{Micros, SeqId, StepId};
use crate::invariant::Violation;
use crate::plan::{StepOutcome, StepPlan};
use crate::policy::Policies;
use crate::request::{Request, RequestOptions};
use crate::scheduler::Scheduler;

/// One call to a scheduler, as it came in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// [`Scheduler::submit_group_with`], or with one request [`Scheduler::submit_with`].
    Submit {
        /// The caller's clock.
        now: Micros,
        /// The sequences, in order.
        requests: Vec<Request>,
        /// Of all of them.
        options: RequestOptions,
    },
    /// [`Scheduler::abort`].
    Abort(SeqId),
    /// [`Scheduler::undefer`].
    Undefer(SeqId),
    /// [`Scheduler::schedule`].
    Schedule(Micros),
    /// [`Scheduler::complete`].
    Complete(StepId, StepOutcome),
    /// [`Scheduler::fail_step`].
    FailStep(StepId),
    /// [`Scheduler::reset_prefix_cache`].
    ResetPrefixCache,
}

/// A recording.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trace {
    /// The scheduler's limits.
    pub config: SchedulerConfig,
    /// The scheduler's policies.
    pub policies: Policies,
    /// The state in front of the first input.
    pub start: Image,
    /// In order.
    pub inputs: Vec<Input>,
}

/// Why a recording can't be run again.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// Its limits would take more memory than a recording is worth, whoever wrote it.
    #[error("the recording's {name} is {value}; a replay takes at most {limit}")]
    TooLarge {
        /// The limit's name.
        name: &'static str,
        /// What the recording says.
        value: u32,
        /// What a replay takes.
        limit: u32,
    },
    /// Its limits or policies can't work.
    #[error("the recording's limits can't work: {0}")]
    Config(#[from] ConfigError),
    /// Its start is no state that a scheduler with these limits can be in.
    #[error("the recording's start isn't possible under its limits: {0}")]
    Start(#[source] Violation),
}

/// Blocks of a pool in a replay. A server knows its own memory; whoever replays a file has it from somebody else. This many take 1.5 GiB.
const MAX_REPLAYED_BLOCKS: u32 = 1 << 24;

/// Tokens of a sequence in a replay; more than any model takes. One with a very long prompt gets room for them when it is submitted.
const MAX_REPLAYED_MODEL_LEN: u32 = 1 << 24;

impl Trace {
    /// Runs the inputs through a new scheduler, and gives every plan and the events since the last one to `on_plan`. Calls that were refused when
    /// they were recorded are refused again, with the same effect: none.
    ///
    /// # Errors
    /// If its limits can't work or are too large, or its start isn't possible under them.
    pub fn replay(&self, mut on_plan: impl FnMut(&StepPlan, &[Event])) -> Result<(), ReplayError> {
        let mut scheduler = self.restore()?;
        let (mut plan, mut events) = (StepPlan::new(), Vec::new());
        for input in &self.inputs {
            if scheduler.apply(input, &mut plan, &mut events) {
                on_plan(&plan, &events);
                events.clear();
            }
        }
        Ok(())
    }
}

impl Scheduler {
    /// Begins to record every input, at any moment, keeping at most `limit` of them, or stops with 0.
    ///
    /// Recording computes everything a second time, when an input becomes too old to be kept. Beginning copies the state, which takes time for the
    /// whole pool.
    pub fn record(&mut self, limit: usize) {
        let start = if limit > 0 { self.copy() } else { None };
        self.recorder = start.map(|start| Recorder::new(limit, start));
    }

    /// Another scheduler in the same state, which tells nobody of blocks.
    fn copy(&self) -> Option<Self> {
        let policies = Policies {
            block_events: BlockEventDetail::Off,
            ..self.policies.clone()
        };
        let mut copy = Self::with_policies(self.config.clone(), policies).ok()?;
        let restored = copy.restore(&self.image());
        debug_assert_eq!(
            restored,
            Ok(()),
            "what a scheduler is in is possible under its limits"
        );
        restored.is_ok().then_some(copy)
    }

    /// The recording so far, if there is one. Takes time for the whole pool.
    pub fn trace(&self) -> Option<Trace> {
        let recorder = self.recorder.as_ref()?;
        Some(Trace {
            config: self.config.clone(),
            policies: self.policies.clone(),
            start: recorder.start(),
            inputs: recorder.inputs().cloned().collect(),
        })
    }

    pub(crate) fn note(&mut self, input: impl FnOnce() -> Input) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(input());
        }
    }

    pub(crate) fn note_submit(&mut self, now: Micros, requests: &[Request], options: RequestOptions) {
        self.note(|| Input::Submit {
            now,
            requests: requests.to_vec(),
            options,
        });
    }

    /// Does what an input says. True if `plan` is a new plan.
    fn apply(&mut self, input: &Input, plan: &mut StepPlan, events: &mut Vec<Event>) -> bool {
        match input {
            Input::Submit {
                now,
                requests,
                options,
            } => {
                // A refusal is part of the recording.
                drop(self.submit_group_with(*now, requests.clone(), *options));
            }
            Input::Abort(seq) => self.abort(*seq, events),
            Input::Undefer(seq) => self.undefer(*seq),
            Input::Schedule(now) => return self.schedule(*now, plan, events),
            Input::Complete(step, outcome) => drop(self.complete(*step, outcome, events)),
            Input::FailStep(step) => self.fail_step(*step, events),
            Input::ResetPrefixCache => drop(self.reset_prefix_cache()),
        }
        false
    }
}
