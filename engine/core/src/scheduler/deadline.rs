//! Deadlines.
//!
//! Law: the first `schedule` at or after a sequence's deadline ends it with [`FinishReason::Deadline`], wherever it is and before anything is
//! planned; nobody computes for a client that has given up.

use super::Scheduler;
use crate::event::{Event, FinishReason};

impl Scheduler {
    /// Ends what is too late.
    pub(super) fn expire(&mut self, events: &mut Vec<Event>) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > self.now {
                return;
            }
            self.deadlines.pop_first();
            if let Some(slot) = self.seqs.slot_of(id) {
                self.end(slot, FinishReason::Deadline, events);
            }
        }
    }
}
