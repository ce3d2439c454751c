//! The whole state as data, between any two calls.

use super::Scheduler;
use super::step::{Step, Work};
use crate::block::BlockRef;
use crate::sequence::Sequence;
use crate::trace::{Image, SequenceImage, StepImage, WorkImage};

impl Scheduler {
    /// The state. Takes time for the whole pool.
    pub(crate) fn image(&self) -> Image {
        let (served, served_floor) = self.shares.image();
        Image {
            pool: self.pool.image(),
            seqs: self.seqs.iter().map(Sequence::image).collect(),
            running: self.running.iter().map(|&slot| self.seqs[slot].id).collect(),
            in_flight: self.in_flight.iter().map(Step::image).collect(),
            ranks: self.waiting.ranks(),
            served,
            served_floor,
            next_seq: self.next_seq,
            next_step: self.next_step,
            now: self.now,
        }
    }
}

impl Sequence {
    fn image(&self) -> SequenceImage {
        SequenceImage {
            id: self.id,
            tokens: self.tokens.to_vec(),
            prompt_len: self.prompt_len,
            tables: self.tables.image(),
            num_written: self.num_written,
            num_preemptions: self.num_preemptions,
            reads_prefix_cache: self.reads_prefix_cache,
            stop: self.stop.clone(),
            root: self.root(),
            arrival: self.arrival,
            priority: self.priority,
            options: self.options,
            rank: self.key.rank,
            blocked_since: self.blocked_since,
            leader: self.leader,
        }
    }
}

impl Step {
    fn image(&self) -> StepImage {
        let work = |work: &Work| WorkImage {
            seq: work.seq,
            num_preemptions: work.num_preemptions,
            first: work.first,
            num_tokens: work.num_tokens,
            samples: work.samples,
            copies_from: work.copy.map(|(_, leader)| leader),
        };
        StepImage {
            work: self.work.iter().map(work).collect(),
            parked: self.parked.iter().map(BlockRef::id).collect(),
            copies: self.copies.clone(),
        }
    }
}
