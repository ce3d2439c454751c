//! What exhaustive search needs of a scheduler beside copies of it: to know a state when it comes again.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::ids::BlockId;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

impl Scheduler {
    /// A digest of everything that decides what the scheduler does next. Counters, step numbers and the layout of memory are left out, so that
    /// states which differ in nothing else are one.
    pub fn fingerprint(&self) -> u128 {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            salt.hash(&mut hasher);
            self.hash_into(&mut hasher);
            u128::from(hasher.finish())
        };
        half(0) << 64 | half(1)
    }

    /// How many handles a block has, and whether its content can be found.
    pub fn block_state(&self, id: BlockId) -> (u32, bool) {
        (self.pool.num_refs(id), self.pool.content_of(id).is_some())
    }

    fn hash_into(&self, hasher: &mut impl Hasher) {
        self.now.hash(hasher);
        self.pool.hash_into(hasher);
        for seq in self.seqs.iter() {
            self.hash_sequence(seq, hasher);
        }
        hasher.write_u8(1);
        for &slot in &self.running {
            self.seqs[slot].id.hash(hasher);
        }
        hasher.write_u8(2);
        for slot in self.waiting.iter() {
            self.seqs[slot].id.hash(hasher);
        }
        hasher.write_u8(3);
        for entry in self.shares.iter() {
            entry.hash(hasher);
        }
        for step in &self.in_flight {
            hasher.write_u8(4);
            for work in &step.work {
                let seq = self.seqs.iter().find(|seq| seq.id == work.seq);
                let holds_blocks = seq.map(|seq| seq.num_preemptions == work.num_preemptions);
                let copied = work.copy.map(|(_, leader)| leader);
                (
                    work.seq,
                    holds_blocks,
                    work.first,
                    work.num_tokens,
                    work.samples,
                    copied,
                )
                    .hash(hasher);
            }
            step.copies.hash(hasher);
            hasher.write_u8(5);
            for block in &step.parked {
                block.id().hash(hasher);
            }
        }
    }

    fn hash_sequence(&self, seq: &Sequence, hasher: &mut impl Hasher) {
        let oldest = self.in_flight.front().map_or(0, |step| step.id.0);
        let last_step = (seq.num_in_flight > 0).then(|| seq.last_step.0 - oldest);
        (seq.id, seq.arrival, seq.blocked_since, seq.leader, seq.prompt_len).hash(hasher);
        (seq.options.deferral.is_some(), seq.num_preemptions > 0, last_step).hash(hasher);
        (seq.num_pending, seq.num_in_flight, seq.num_computed).hash(hasher);
        (seq.num_written, seq.num_published, seq.tokens.to_vec()).hash(hasher);
        let mut ids = Vec::new();
        seq.tables.write_from(0, &mut ids);
        (seq.tables.len(), ids).hash(hasher);
    }
}
