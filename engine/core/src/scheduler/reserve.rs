//! Free blocks that an admission must leave.
//!
//! Laws. While a preempted sequence waits, nobody starts beside running sequences unless
//! [`readmission_reserve`](crate::Policies::readmission_reserve) blocks of each KV group stay free for each of them: what preempted it once would otherwise
//! preempt it again at the next token, and all throughput would go into computing again (vllm#25538). And nobody starts beside
//! running sequences unless the [`watermark`](crate::Policies::watermark) stays free (S13). When nothing runs, neither applies, so neither
//! can keep the last sequence waiting.

use super::Scheduler;

impl Scheduler {
    /// Blocks that must stay free if a sequence starts now.
    pub(super) fn reserve(&self) -> u32 {
        let num_running = self.running.len() as u32;
        if num_running == 0 {
            return 0;
        }
        let per_seq = if self.waiting.num_preempted() > 0 {
            self.policies.readmission_reserve
        } else {
            0
        };
        per_seq
            .saturating_mul(num_running)
            .saturating_mul(self.layout.num_groups())
            .max(self.policies.watermark)
    }
}
