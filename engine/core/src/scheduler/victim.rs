//! Who gives way when a running sequence can't get a block (S6).
//!
//! Laws. [`Victim::Last`]: the one that started last, and under [`Order::Priority`] the last one by (priority, arrival, id); the first one in
//! that order never gives way while another one runs. [`Victim::CheapestToRestore`]: of the lowest class, the one with the fewest computed
//! positions, all of which may have to be computed again; among equals the one that started last. The most expensive one of the highest
//! class never gives way while another one runs, and what runs gets only more expensive: it ends. Either way somebody
//! always gets on, so preemption can't go round in circles.

use super::Scheduler;
use crate::policy::{Order, Victim};

impl Scheduler {
    /// The index in the running set of the one that gives way next. The set must not be empty.
    pub(super) fn victim(&self) -> usize {
        let last = self.running.len() - 1;
        let by_class = self.policies.order == Order::Priority;
        match self.policies.victim {
            Victim::Last if !by_class => last,
            Victim::Last => self.last_of_lowest_class(),
            Victim::CheapestToRestore => {
                let cost = |index: &usize| {
                    let seq = &self.seqs[self.running[*index]];
                    let class = if by_class { seq.priority } else { 0 };
                    (std::cmp::Reverse(class), seq.num_computed)
                };
                // `min_by_key` gives the first of equals, so the latest start comes first.
                (0..=last).rev().min_by_key(cost).unwrap_or(last)
            }
        }
    }

    /// The index in the running set of the last one by (priority, arrival, id). The set must not be empty.
    pub(super) fn last_of_lowest_class(&self) -> usize {
        let place = |index: &usize| {
            let seq = &self.seqs[self.running[*index]];
            (seq.priority, seq.arrival, seq.id)
        };
        (0..self.running.len()).max_by_key(place).unwrap_or(0)
    }
}
