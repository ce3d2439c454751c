//! Taking the blocks of a running sequence; it is computed again later (S6, S16).

use super::{Scheduler, queued};
use crate::event::Event;
use crate::ids::SeqId;
use crate::sequence::Phase;

impl Scheduler {
    /// Preempts the sequence that started last, and says which. It keeps its output and waits at the front of the queue; its cached blocks
    /// stay findable until they are used for something else.
    ///
    /// It is never one that this step has scheduled already: those lie before the sequence that asks for blocks.
    pub(super) fn preempt_last(&mut self, events: &mut Vec<Event>) -> Option<SeqId> {
        let id = self.running.pop()?;
        let seq = queued(&mut self.seqs, id);
        self.pool.release_all(&mut seq.blocks);
        seq.phase = Phase::Waiting;
        seq.num_computed = 0;
        seq.num_written = 0;
        seq.num_published = 0;
        seq.num_preemptions += 1;
        self.num_queued_tokens += u64::from(seq.prompt_len);
        self.waiting.push_front(id);
        self.counters.num_preemptions += 1;
        events.push(Event::Preempted { seq: id });
        Some(id)
    }
}
