//! The end of a sequence, at the caller's wish or by its own conditions.

use super::Scheduler;
use super::preempt::give_back;
use crate::arena::Slot;
use crate::event::{Event, FinishReason};
use crate::ids::SeqId;
use crate::sequence::Phase;
use crate::trace::Input;

impl Scheduler {
    /// Ends a sequence with [`FinishReason::Abort`]. Unknown and ended ids are ignored, so that aborting twice is harmless.
    ///
    /// Its blocks are free at once, or when the last step that touches them completes.
    pub fn abort(&mut self, seq: SeqId, events: &mut Vec<Event>) {
        self.note(|| Input::Abort(seq));
        if let Some(slot) = self.seqs.slot_of(seq) {
            self.end(slot, FinishReason::Abort, events);
        }
    }

    /// Takes a sequence out of its queue and frees its blocks.
    pub(super) fn end(&mut self, slot: Slot, reason: FinishReason, events: &mut Vec<Event>) {
        let Some(mut seq) = self.seqs.remove(slot) else {
            return;
        };
        match seq.phase {
            Phase::Running => {
                self.running.retain(|&running| running != slot);
                self.adapters.leave(seq.options.adapter);
            }
            Phase::Waiting => self.waiting.remove(&seq),
        }
        if let Some(deadline) = seq.options.deadline {
            self.deadlines.remove(&(deadline, seq.id));
        }
        self.shares.leave(seq.options.tenant);
        give_back(&mut seq, &mut self.pool, &mut self.in_flight);
        events.push(Event::Finished { seq: seq.id, reason });
    }
}
