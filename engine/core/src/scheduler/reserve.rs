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

#[cfg(test)]
mod tests {
    use kvasir_cache_key::CacheRoot;

    use crate::{
        KvGroup, Micros, Policies, Request, Scheduler, SchedulerConfig, StepOutcome, StepPlan, StopConditions,
    };

    fn request(len: u32) -> Request {
        Request {
            prompt: (0..len).collect(),
            stop: StopConditions {
                max_tokens: 20,
                ..StopConditions::default()
            },
            priority: 0,
            cache_root: CacheRoot([0; 32]),
            reads_prefix_cache: true,
        }
    }

    #[test]
    fn each_running_sequence_is_left_a_block_of_every_group() {
        let config = SchedulerConfig {
            groups: vec![KvGroup::Full, KvGroup::Window { positions: 50 }],
            block_size: 4,
            num_blocks: 13,
            ..SchedulerConfig::default()
        };
        let policies = Policies {
            readmission_reserve: 3,
            ..Policies::vllm()
        };
        let mut scheduler = Scheduler::with_policies(config, policies).expect("the limits work");
        for len in [8, 7, 6] {
            scheduler.submit(Micros(0), request(len)).expect("it fits");
        }
        let (mut plan, mut events) = (StepPlan::new(), Vec::new());
        assert_eq!(scheduler.reserve(), 0);
        while scheduler.stats().num_preemptions == 0 {
            assert!(scheduler.schedule(Micros(0), &mut plan, &mut events));
            let sampled = plan
                .seqs
                .iter()
                .filter(|part| part.samples)
                .map(|part| (part.seq, 1));
            let outcome = StepOutcome {
                sampled: sampled.collect(),
            };
            scheduler
                .complete(plan.step, &outcome, &mut events)
                .expect("it is the step's");
        }
        assert_eq!(scheduler.running.len(), 2);
        assert_eq!(scheduler.reserve(), 3 * 2 * 2);
    }
}
