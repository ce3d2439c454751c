//! What must hold between any two calls. [`Scheduler::check`] verifies all of it, slowly, for tests and for dumps of a stuck engine.

use std::collections::BTreeMap;

use crate::ids::{BlockId, SeqId};
use crate::scheduler::Scheduler;
use crate::sequence::{Phase, Sequence};

/// An invariant that doesn't hold, in words. Always a bug of this crate.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("scheduler invariant broken: {0}")]
pub struct Violation(String);

impl Violation {
    pub(crate) fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self(text())) }
    }
}

impl Scheduler {
    /// Verifies every invariant that the scheduler's module doc lists.
    ///
    /// # Errors
    /// The first one that doesn't hold.
    pub fn check(&self) -> Result<(), Violation> {
        let tables = self.seqs.values().flat_map(|seq| &seq.blocks);
        let parked = self.in_flight.iter().flat_map(|step| &step.parked);
        self.pool
            .check(tables.chain(parked).map(crate::block::BlockRef::id))?;
        self.check_queues()?;
        for seq in self.seqs.values() {
            self.check_progress(seq)?;
            self.check_content(seq)?;
        }
        self.check_steps()
    }

    fn check_queues(&self) -> Result<(), Violation> {
        let mut phases: BTreeMap<SeqId, Phase> = BTreeMap::new();
        let waiting = self.waiting.iter().map(|&id| (id, Phase::Waiting));
        let running = self.running.iter().map(|&id| (id, Phase::Running));
        for (id, phase) in waiting.chain(running) {
            let is_second = phases.insert(id, phase).is_some();
            Violation::ensure(!is_second, || format!("sequence {} is queued twice", id.0))?;
        }
        Violation::ensure(phases.len() == self.seqs.len(), || {
            format!("{} sequences exist, {} are queued", self.seqs.len(), phases.len())
        })?;
        for seq in self.seqs.values() {
            let queue = phases.get(&seq.id);
            Violation::ensure(queue == Some(&seq.phase), || {
                format!("sequence {} is in another queue than it says", seq.id.0)
            })?;
        }
        let (running, limit) = (self.running.len(), self.config.max_num_active_seqs);
        Violation::ensure(running <= limit as usize, || {
            format!("{running} sequences run, the limit is {limit}")
        })?;
        let queued: u64 = self
            .waiting
            .iter()
            .map(|id| u64::from(self.seqs[id].prompt_len))
            .sum();
        let counted = self.num_queued_tokens;
        Violation::ensure(queued == counted, || {
            format!("{queued} tokens are queued, {counted} are counted")
        })
    }

    fn check_progress(&self, seq: &Sequence) -> Result<(), Violation> {
        let Sequence {
            id: SeqId(id),
            num_computed,
            num_written,
            ..
        } = *seq;
        let num_tokens = seq.num_tokens();
        let ordered = num_written <= num_computed && num_computed <= num_tokens;
        Violation::ensure(ordered, || {
            format!("sequence {id}: {num_written} <= {num_computed} <= {num_tokens} fails")
        })?;
        if seq.phase == Phase::Waiting {
            Violation::ensure(num_computed == 0, || {
                format!("sequence {id} waits with {num_computed} computed tokens")
            })?;
        }
        let (held, needed) = (seq.blocks.len(), num_computed.div_ceil(self.config.block_size));
        Violation::ensure(held == needed as usize, || {
            format!("sequence {id} holds {held} blocks, needs {needed}")
        })?;
        let (have, limit) = (seq.num_output(), seq.stop.max_tokens);
        Violation::ensure(have < limit, || {
            format!("sequence {id} has {have} output tokens of {limit} and runs on")
        })
    }

    /// Published blocks hold what the chain says and are complete; the others are its own and can't be found.
    fn check_content(&self, seq: &Sequence) -> Result<(), Violation> {
        let SeqId(id) = seq.id;
        let (published, written) = (seq.num_published, seq.num_written / self.config.block_size);
        Violation::ensure(published <= written, || {
            format!("sequence {id} published {published} of {written} full blocks")
        })?;
        let hashes = seq.recomputed_hashes(self.config.block_size);
        for (index, block) in seq.blocks.iter().enumerate() {
            let BlockId(block_id) = block.id();
            let (hash, refs) = (self.pool.hash_of(block.id()), self.pool.num_refs(block.id()));
            if index < published as usize {
                let matches = hash.is_some() && hash == hashes.get(index).copied();
                Violation::ensure(matches, || {
                    format!("sequence {id}: block {block_id} holds other content than its hash")
                })?;
            } else {
                let is_private = hash.is_none() && refs == 1;
                Violation::ensure(is_private, || {
                    format!("sequence {id}: block {block_id} is shared while it is written")
                })?;
            }
        }
        Ok(())
    }

    fn check_steps(&self) -> Result<(), Violation> {
        let in_flight = self.in_flight.len();
        Violation::ensure(in_flight <= crate::scheduler::MAX_IN_FLIGHT, || {
            format!("{in_flight} steps are in flight")
        })?;
        for step in &self.in_flight {
            let total: u32 = step.work.iter().map(|work| work.num_tokens).sum();
            let limit = self.config.max_num_batched_tokens;
            Violation::ensure(total <= limit, || {
                format!("step {} has {total} tokens of {limit}", step.id.0)
            })?;
            let (seqs, limit) = (step.work.len(), self.config.max_num_seqs);
            Violation::ensure(seqs <= limit as usize, || {
                format!("step {} has {seqs} sequences of {limit}", step.id.0)
            })?;
        }
        Ok(())
    }
}
