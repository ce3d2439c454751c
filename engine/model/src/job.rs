//! What goes to the executor's thread and what comes back.

use std::collections::BTreeMap;

use kvasir_backend::{ExecError, StepResult};
use kvasir_engine_core::{SeqId, StepPlan};

use crate::runner::LogitsObserver;
use crate::sequence::Sequence;

/// An order to the executor's thread. Each gets one reply, in their order.
pub(crate) enum Command {
    /// Run a step.
    Step(Job),
    /// Run this many tokens of nobody.
    Warmup(usize),
}

/// What became of a command.
pub(crate) struct Reply {
    /// The step, so that its memory is used again; an empty one for a warm-up.
    pub(crate) job: Job,
    /// Empty for a warm-up.
    pub(crate) result: Result<StepResult, ExecError>,
}

/// A step, with what has changed since the step before it.
#[derive(Default)]
pub(crate) struct Job {
    pub(crate) plan: StepPlan,
    pub(crate) changes: Changes,
}

/// News that travel with the next step, so that they neither wait for the steps in flight nor overtake them.
#[derive(Default)]
pub(crate) struct Changes {
    /// Sequences to forget; before `admitted`, since an id may come again.
    pub(crate) released: Vec<SeqId>,
    /// New sequences.
    pub(crate) admitted: BTreeMap<SeqId, Sequence>,
    /// Another observer, or none any more.
    pub(crate) observer: Option<Observe>,
}

/// Who sees the logits from now on, if anybody.
pub(crate) struct Observe(pub(crate) Option<LogitsObserver>);

impl Job {
    /// Copies the plan into memory that the job already has.
    pub(crate) fn set_plan(&mut self, plan: &StepPlan) {
        let StepPlan {
            step,
            seqs,
            tokens,
            num_groups,
            blocks,
            copies,
        } = plan;
        self.plan.step = *step;
        self.plan.num_groups = *num_groups;
        self.plan.seqs.clone_from(seqs);
        self.plan.tokens.clone_from(tokens);
        self.plan.blocks.clone_from(blocks);
        self.plan.copies.clone_from(copies);
    }
}
