//! Sequences of one request that share the blocks of their prompt (copy on write).
//!
//! Law: when the first of a group, its leader, has computed the prompt, the others start behind all of it but the last position, whether or
//! not there is a prefix cache. Whole blocks are shared; of a block that isn't full, and that each of them goes on writing, they get a copy,
//! which the plan orders. Until the leader has computed the prompt, the others wait without being in anybody's way; if it
//! is preempted or ends before, or has gone on so far that a window has left what they would read, they start like any sequence. A copied block
//! stays the leader's until the copying step completes.
//!
//! The last position is computed by each of them: its logits are what they sample from.

use super::Scheduler;
use super::admit::Prefix;
use super::step::Pass;
use crate::arena::Slot;
use crate::block::{BlockRef, Tables};
use crate::sequence::Phase;

impl Scheduler {
    /// Whether a sequence would rather wait, since the leader of its group is about to have what it needs.
    pub(super) fn waits_for_leader(&self, slot: Slot) -> bool {
        self.running_leader(slot)
            .is_some_and(|leader| self.seqs[leader].num_written < self.seqs[slot].prompt_len)
    }

    fn running_leader(&self, slot: Slot) -> Option<Slot> {
        let seq = &self.seqs[slot];
        let leader = self.seqs.slot_of(seq.leader?)?;
        let is_running = self.seqs[leader].phase == Phase::Running;
        // One that has output already has other tokens than the leader behind the prompt.
        (is_running && seq.num_output() == 0).then_some(leader)
    }

    /// What a sequence shares with the leader of its group, if that is running and has computed the prompt.
    pub(super) fn find_group_prefix(&self, slot: Slot) -> Option<Prefix> {
        let leader = self.running_leader(slot)?;
        let num_tokens = self.seqs[slot].prompt_len - 1;
        let block_size = self.config.block_size;
        let has_all = self.layout.windows().iter().all(|&(at, group)| {
            let table = self.seqs[leader].tables.get(at);
            table.num_dropped() <= group.num_behind(num_tokens, block_size)
        });
        (num_tokens > 0 && has_all).then_some(Prefix {
            num_blocks: num_tokens / block_size,
            num_tokens,
            leader: Some(leader),
        })
    }

    pub(super) fn share_with_leader(&mut self, slot: Slot, leader: Slot, prefix: &Prefix) {
        let seq = &mut self.seqs[slot];
        seq.skip_to(prefix.num_tokens, &self.layout);
        let mut tables = std::mem::replace(&mut seq.tables, Tables::new(0));
        for (table, source) in tables.iter_mut().zip(self.seqs[leader].tables.iter()) {
            let shared = (table.num_dropped()..prefix.num_blocks).filter_map(|index| source.get(index));
            for block in shared {
                table.push(self.pool.share_held(block));
            }
        }
        self.seqs[slot].tables = tables;
    }

    /// Orders a copy of the block within which the shared positions end, if they do, in every group.
    pub(super) fn copy_from_leader(&self, slot: Slot, leader: Slot, prefix: &Prefix, pass: &mut Pass<'_>) {
        if prefix.num_tokens.is_multiple_of(self.config.block_size) {
            return;
        }
        let (seq, source) = (&self.seqs[slot], &self.seqs[leader]);
        let from = source
            .tables
            .iter()
            .filter_map(|table| table.get(prefix.num_blocks));
        pass.copy_from(seq.id, (leader, source.id), from.map(BlockRef::id));
    }
}
