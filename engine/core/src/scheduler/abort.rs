//! The end of a sequence, at the caller's wish or by its own conditions.

use super::Scheduler;
use crate::event::{Event, FinishReason};
use crate::ids::SeqId;
use crate::sequence::Phase;

impl Scheduler {
    /// Ends a sequence with [`FinishReason::Abort`]. Unknown and ended ids are ignored, so that aborting twice is harmless.
    ///
    /// Its blocks are free at once, or when the step that still writes to them completes.
    pub fn abort(&mut self, seq: SeqId, events: &mut Vec<Event>) {
        self.end(seq, FinishReason::Abort, events);
    }

    /// Takes a sequence out of its queue and frees its blocks, the last one first.
    pub(super) fn end(&mut self, id: SeqId, reason: FinishReason, events: &mut Vec<Event>) {
        let Some(mut seq) = self.seqs.remove(&id) else {
            return;
        };
        match seq.phase {
            Phase::Running => self.running.retain(|&running| running != id),
            Phase::Waiting => {
                self.waiting.retain(|&waiting| waiting != id);
                self.num_queued_tokens -= u64::from(seq.prompt_len);
            }
        }
        // The last step that names it is the last to write to its blocks. A table is released from its end, as `release_all` does.
        match self.in_flight.iter_mut().rev().find(|step| step.names(id)) {
            Some(step) => step.parked.append(&mut seq.blocks),
            None => self.pool.release_all(&mut seq.blocks),
        }
        events.push(Event::Finished { seq: id, reason });
    }
}
