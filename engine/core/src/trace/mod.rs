//! What went into a scheduler, as data, and running it again.
//!
//! Law: a scheduler that gets the same inputs from the same start gives byte-equal plans. A recording is bounded: when it grows old it is cut
//! at a moment at which nothing was running, and begins with an image of the pool as it was then. Should the engine never come to rest for as long as
//! the recording may grow, the oldest inputs are dropped; the rest still tells what happened, but can't be replayed
//! ([`ReplayError::NoStart`]) until there is another moment of rest.

mod codec;
mod recorder;

pub use codec::TraceError;
pub(crate) use recorder::Recorder;

use crate::block::CachedBlock;
use crate::config::{ConfigError, SchedulerConfig};
use crate::event::Event;
use crate::ids::{BlockId, Micros, SeqId, StepId, TenantId};
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

/// A scheduler at rest: no sequence and no step in flight.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Image {
    /// The free queue, the next block to be handed out first; empty for a scheduler that has never run.
    pub(crate) free: Vec<BlockId>,
    /// What can be found; of equal contents the one that is found first comes first.
    pub(crate) content: Vec<(CachedBlock, BlockId)>,
    /// What each tenant that isn't level with the others was served.
    pub(crate) served: Vec<(TenantId, u64)>,
    /// Where a tenant that comes begins.
    pub(crate) served_floor: u64,
    pub(crate) next_seq: u64,
    pub(crate) next_step: u64,
    pub(crate) now: Micros,
}

/// A recording.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trace {
    /// The scheduler's limits.
    pub config: SchedulerConfig,
    /// The scheduler's policies.
    pub policies: Policies,
    /// The state in front of the first input; `None` if it is lost.
    pub start: Option<Image>,
    /// In order.
    pub inputs: Vec<Input>,
}

/// Why a recording can't be run again.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// It began in the middle of work, and the inputs before were dropped.
    #[error(
        "the recording's start is lost: more than {num_inputs} inputs came without a moment of rest; record with a larger limit"
    )]
    NoStart {
        /// Inputs that are left.
        num_inputs: usize,
    },
    /// Its limits or policies can't work.
    #[error("the recording's limits can't work: {0}")]
    Config(#[from] ConfigError),
    /// Its image names blocks that the pool doesn't have, or one twice.
    #[error("the recording's image doesn't fit a pool of {num_blocks} blocks")]
    Image {
        /// Blocks of the pool.
        num_blocks: u32,
    },
}

impl Trace {
    /// Runs the inputs through a new scheduler, and gives every plan and the events since the last one to `on_plan`. Calls that were refused when
    /// they were recorded are refused again, with the same effect: none.
    ///
    /// # Errors
    /// If the recording has no start or its limits can't work.
    pub fn replay(&self, mut on_plan: impl FnMut(&StepPlan, &[Event])) -> Result<(), ReplayError> {
        let start = self.start.as_ref().ok_or(ReplayError::NoStart {
            num_inputs: self.inputs.len(),
        })?;
        let mut scheduler = Scheduler::with_policies(self.config.clone(), self.policies.clone())?;
        if !scheduler.restore(start) {
            return Err(ReplayError::Image {
                num_blocks: self.config.num_blocks,
            });
        }
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
    /// Begins to record every input, keeping at most `limit` of them, or stops with 0. A scheduler that isn't at rest has a recording with a
    /// start from its next moment of rest on.
    pub fn record(&mut self, limit: usize) {
        let image = self.image();
        self.recorder = (limit > 0).then(|| Recorder::new(limit, image));
    }

    /// The recording so far, if there is one.
    pub fn trace(&self) -> Option<Trace> {
        let recorder = self.recorder.as_ref()?;
        Some(Trace {
            config: self.config.clone(),
            policies: self.policies.clone(),
            start: recorder.start().cloned(),
            inputs: recorder.inputs().cloned().collect(),
        })
    }

    pub(crate) fn note(&mut self, input: impl FnOnce() -> Input) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(input(), None);
        }
    }

    /// Notes the input that may end a moment of rest.
    pub(crate) fn note_submit(&mut self, now: Micros, requests: &[Request], options: RequestOptions) {
        let is_old = self.recorder.as_ref().is_some_and(Recorder::wants_image);
        let image = if is_old { self.image() } else { None };
        if let Some(recorder) = &mut self.recorder {
            let requests = requests.to_vec();
            let input = Input::Submit {
                now,
                requests,
                options,
            };
            recorder.push(input, image);
        }
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
