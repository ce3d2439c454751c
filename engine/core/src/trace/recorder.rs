//! The last inputs, and a second scheduler that stands where they begin.
//!
//! When an input becomes too old to be kept, the second scheduler takes it, which is what brings it to the new beginning: equal inputs give
//! equal states. So a recording always has a start, and no step ever has to copy the state. The price is that every input is computed
//! twice, and the memory of a second set of books (about 100 bytes per block).

use std::collections::VecDeque;

use super::{Image, Input};
use crate::event::Event;
use crate::plan::StepPlan;
use crate::scheduler::Scheduler;

#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct Recorder {
    limit: usize,
    /// In the state in front of the first input.
    start: Box<Scheduler>,
    inputs: VecDeque<Input>,
    /// What the second scheduler says, which nobody reads.
    plan: StepPlan,
    events: Vec<Event>,
}

impl Recorder {
    /// Keeps at most `limit` inputs, at least 1, behind `start`.
    pub(super) fn new(limit: usize, start: Scheduler) -> Self {
        Self {
            limit,
            start: Box::new(start),
            inputs: VecDeque::new(),
            plan: StepPlan::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn start(&self) -> Image {
        self.start.image()
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = &Input> {
        self.inputs.iter()
    }

    pub(super) fn push(&mut self, input: Input) {
        if self.inputs.len() >= self.limit
            && let Some(oldest) = self.inputs.pop_front()
        {
            self.start.apply(&oldest, &mut self.plan, &mut self.events);
            self.events.clear();
        }
        self.inputs.push_back(input);
    }
}
