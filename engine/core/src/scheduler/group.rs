//! Sequences of one request that share the blocks of their prompt (copy on write).
//!
//! Law: when the first of a group, its leader, has computed the prompt, the others start behind all of it but the last position, whether or
//! not there is a prefix cache. Whole blocks are shared; of a block that isn't full, and that each of them goes on writing, they get a copy,
//! which the plan orders. Until the leader has computed the prompt, the others wait without being in anybody's way; if it
//! is preempted or ends before, they start like any sequence. A copied block stays the leader's until the copying step completes.
//!
//! The last position is computed by each of them: its logits are what they sample from.

use super::Scheduler;
use super::admit::Prefix;
use crate::arena::Slot;
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
        let num_blocks = num_tokens / self.config.block_size;
        let is_cut = !num_tokens.is_multiple_of(self.config.block_size);
        let holder = &self.seqs[leader];
        let copy = is_cut.then(|| (leader, holder.id, holder.blocks[num_blocks as usize].id()));
        (num_tokens > 0).then_some(Prefix {
            num_blocks,
            num_free: 0,
            num_tokens,
            leader: Some(leader),
            copy,
        })
    }

    pub(super) fn share_with_leader(&mut self, slot: Slot, leader: Slot, num_blocks: u32) {
        let mut table = std::mem::take(&mut self.seqs[slot].blocks);
        let leader = &self.seqs[leader];
        table.extend(
            leader.blocks[..num_blocks as usize]
                .iter()
                .map(|block| self.pool.share_held(block)),
        );
        self.seqs[slot].blocks = table;
    }
}
