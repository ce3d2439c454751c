//! What must hold between any two calls. [`Scheduler::check`] verifies all of it, slowly, for tests and for dumps of a stuck engine.

use std::collections::BTreeMap;

use crate::block::CachedBlock;
use crate::ids::{BlockId, GroupId, SeqId};
use crate::scheduler::Scheduler;
use crate::sequence::{Phase, Sequence};

/// An invariant that doesn't hold, in words. Always a bug of this crate.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("scheduler invariant broken: {0}")]
pub struct Violation(String);

impl Violation {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

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
        let tables = self.seqs.iter().flat_map(|seq| seq.tables.handles());
        let parked = self.in_flight.iter().flat_map(|step| &step.parked);
        self.pool
            .check(tables.chain(parked).map(crate::block::BlockRef::id))?;
        self.check_queues()?;
        for seq in self.seqs.iter() {
            self.check_progress(seq)?;
            self.check_tables(seq)?;
            self.check_content(seq)?;
        }
        self.check_steps()
    }

    fn check_queues(&self) -> Result<(), Violation> {
        let mut phases: BTreeMap<SeqId, Phase> = BTreeMap::new();
        let waiting = self
            .waiting
            .iter()
            .map(|slot| (self.seqs[slot].id, Phase::Waiting));
        let running = self
            .running
            .iter()
            .map(|&slot| (self.seqs[slot].id, Phase::Running));
        for (id, phase) in waiting.chain(running) {
            let is_second = phases.insert(id, phase).is_some();
            Violation::ensure(!is_second, || format!("sequence {} is queued twice", id.0))?;
        }
        Violation::ensure(phases.len() == self.seqs.len(), || {
            format!("{} sequences exist, {} are queued", self.seqs.len(), phases.len())
        })?;
        for seq in self.seqs.iter() {
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
            .map(|slot| u64::from(self.seqs[slot].prompt_len))
            .sum();
        let counted = self.waiting.num_tokens();
        Violation::ensure(queued == counted && self.waiting.is_consistent(), || {
            format!("{queued} tokens are queued, {counted} are counted")
        })?;
        let (active, limit) = (self.adapters.num_active(), self.policies.max_active_adapters);
        Violation::ensure(limit.is_none_or(|limit| active <= limit as usize), || {
            format!("{active} adapters run, the limit is {limit:?}")
        })
    }

    fn check_progress(&self, seq: &Sequence) -> Result<(), Violation> {
        let Sequence {
            id: SeqId(id),
            num_computed,
            num_written,
            ..
        } = *seq;
        let num_tokens = seq.target();
        let ordered = num_written <= num_computed && num_computed <= num_tokens;
        Violation::ensure(ordered, || {
            format!("sequence {id}: {num_written} <= {num_computed} <= {num_tokens} fails")
        })?;
        if seq.phase == Phase::Waiting {
            Violation::ensure(num_computed == 0, || {
                format!("sequence {id} waits with {num_computed} computed tokens")
            })?;
        }
        let (have, pending, limit) = (seq.num_output(), seq.num_pending, seq.stop.max_tokens);
        Violation::ensure(have < limit && have + pending <= limit, || {
            format!("sequence {id} has {have} output tokens of {limit}, {pending} in the making, and runs on")
        })?;
        let named = self.in_flight.iter().flat_map(|step| &step.work).map(|work| {
            let reads = work.copy.is_some_and(|(_, leader)| leader == seq.id);
            (
                u32::from(work.seq == seq.id) + u32::from(reads),
                u32::from(work.seq == seq.id && work.samples),
            )
        });
        let (steps, samples) = named.fold((0, 0), |(steps, samples), (a, b)| (steps + a, samples + b));
        Violation::ensure((steps, samples) == (seq.num_in_flight, pending), || {
            format!(
                "sequence {id} counts {} steps and {pending} samples in flight, there are {steps} and {samples}",
                seq.num_in_flight
            )
        })
    }

    /// In each group a table covers the computed positions, and begins with the null block as far as the window of the next position to be written
    /// leaves blocks behind, neither more nor less.
    fn check_tables(&self, seq: &Sequence) -> Result<(), Violation> {
        let SeqId(id) = seq.id;
        let needed = seq.num_computed.div_ceil(self.config.block_size);
        for (at, (&group, table)) in self.config.groups.iter().zip(seq.tables.iter()).enumerate() {
            let len = table.len();
            Violation::ensure(len == needed, || {
                format!("sequence {id} has {len} blocks in group {at}, needs {needed}")
            })?;
            let dropped = table.num_dropped();
            let behind = group.num_behind(seq.num_written, self.config.block_size);
            Violation::ensure(dropped == behind, || {
                format!(
                    "sequence {id} dropped {dropped} blocks of group {at}, {behind} are behind its window"
                )
            })?;
        }
        let (tables, groups) = (seq.tables.iter().count(), self.config.groups.len());
        Violation::ensure(tables == groups, || {
            format!("sequence {id} has {tables} tables for {groups} groups")
        })
    }

    /// Sealed blocks are complete and, with a prefix cache, found under what the chain says; the others are its own and can't be found.
    fn check_content(&self, seq: &Sequence) -> Result<(), Violation> {
        let SeqId(id) = seq.id;
        let (published, written) = (seq.num_published, seq.num_written / self.config.block_size);
        Violation::ensure(published <= written, || {
            format!("sequence {id} published {published} of {written} full blocks")
        })?;
        let hashes = seq.recomputed_hashes(self.config.block_size);
        let entries = seq.tables.iter().enumerate().flat_map(|(group, table)| {
            let indices = table.num_dropped()..table.len();
            indices.filter_map(move |index| Some((group, index, table.get(index)?)))
        });
        for (group, index, block) in entries {
            let BlockId(block_id) = block.id();
            let (content, refs) = (self.pool.content_of(block.id()), self.pool.num_refs(block.id()));
            if index < published {
                let hash = hashes
                    .get(index as usize)
                    .filter(|_| self.config.enable_prefix_caching);
                let expected = hash.map(|&hash| CachedBlock {
                    group: GroupId(group as u8),
                    hash,
                });
                Violation::ensure(content == expected, || {
                    format!("sequence {id}: block {block_id} holds other content than its hash")
                })?;
            } else {
                let is_private = content.is_none() && refs == 1;
                Violation::ensure(is_private, || {
                    format!("sequence {id}: block {block_id} is shared while it is written")
                })?;
            }
        }
        Ok(())
    }

    fn check_steps(&self) -> Result<(), Violation> {
        let in_flight = self.in_flight.len();
        Violation::ensure(in_flight <= self.policies.max_in_flight as usize, || {
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
