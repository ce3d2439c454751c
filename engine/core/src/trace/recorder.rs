//! A bounded buffer of inputs that begins at a moment of rest whenever it can.

use std::collections::VecDeque;

use super::{Image, Input};

#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct Recorder {
    limit: usize,
    start: Option<Image>,
    inputs: VecDeque<Input>,
}

impl Recorder {
    pub(super) fn new(limit: usize, start: Option<Image>) -> Self {
        Self {
            limit,
            start,
            inputs: VecDeque::new(),
        }
    }

    pub(super) fn start(&self) -> Option<&Image> {
        self.start.as_ref()
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = &Input> {
        self.inputs.iter()
    }

    /// Whether the recording should begin anew at the next moment of rest: it has no start, or is half full.
    pub(super) fn wants_image(&self) -> bool {
        self.start.is_none() || self.inputs.len() >= self.limit.div_ceil(2)
    }

    /// Takes an input; `rest` is the state before it, if that was one of rest and one is wanted.
    pub(super) fn push(&mut self, input: Input, rest: Option<Image>) {
        if rest.is_some() {
            self.start = rest;
            self.inputs.clear();
        } else if self.inputs.len() >= self.limit {
            self.start = None;
            self.inputs.pop_front();
        }
        self.inputs.push_back(input);
    }
}
