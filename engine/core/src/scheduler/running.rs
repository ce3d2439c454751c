//! The running set's share of a step: first come, first served, before anything is admitted (S2, S3).

use super::step::Pass;
use super::{Scheduler, queued};

impl Scheduler {
    /// Gives each running sequence its next positions. Says whether a sequence was preempted for it.
    pub(super) fn schedule_running(&mut self, pass: &mut Pass<'_>) -> bool {
        let mut preempted = false;
        let mut index = 0;
        // Preemption shortens the list behind `index`.
        while let Some(&id) = self.running.get(index) {
            let seq = queued(&mut self.seqs, id);
            let num_tokens = pass.chunk(seq, seq.num_computed);
            // With the budget used up, or its input in flight, a sequence is skipped; a later one may still run.
            if num_tokens > 0 {
                let needed = (seq.num_computed + num_tokens).div_ceil(self.config.block_size);
                let blocks_from = seq.blocks.len() as u32;
                while !self
                    .pool
                    .allocate(needed - blocks_from, &mut queued(&mut self.seqs, id).blocks)
                {
                    preempted = true;
                    if self.preempt_last(pass.events) == Some(id) {
                        return true;
                    }
                }
                pass.push(queued(&mut self.seqs, id), num_tokens, blocks_from);
            }
            index += 1;
        }
        preempted
    }
}
