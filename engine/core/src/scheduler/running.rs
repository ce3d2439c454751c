//! The running set's share of a step: in the order of their start, before anything is admitted (S2, S3).
//!
//! Law: a sequence that finds the budget used up, or has nothing to compute before a step in flight completes, is passed over; those behind it
//! may still run. One that waits for blocks that a step in flight holds keeps those behind it from taking any.

use super::Scheduler;
use super::preempt::Room;
use super::step::Pass;

impl Scheduler {
    /// Gives each running sequence its next positions.
    pub(super) fn schedule_running(&mut self, pass: &mut Pass<'_>) {
        let mut index = 0;
        // Preemption shortens the list.
        while let Some(&slot) = self.running.get(index) {
            let seq = &mut self.seqs[slot];
            let num_tokens = pass.chunk(seq, seq.num_computed);
            let blocks_from = seq.tables.len();
            let end = seq.num_computed + num_tokens;
            let num_blocks = end.div_ceil(self.config.block_size).saturating_sub(blocks_from);
            if num_tokens > 0 && num_blocks == 0 {
                pass.push(seq, slot, num_tokens, blocks_from);
                self.shares.charge(&seq.options, num_tokens);
            } else if num_tokens > 0 && !pass.waits_for_blocks {
                match self.make_room(index, num_blocks * self.layout.num_groups(), pass) {
                    Room::Made(at) => index = at,
                    Room::Later => continue,
                    Room::Gone => return,
                }
                let seq = &mut self.seqs[slot];
                self.pool.log().act_for(seq.id);
                let allocated = seq.tables.grow(num_blocks, &mut self.pool);
                debug_assert!(allocated, "room was made above");
                pass.push(seq, slot, num_tokens, blocks_from);
                self.shares.charge(&seq.options, num_tokens);
            }
            index += 1;
        }
    }
}
