//! What the load report counts.

use kvasir_client::types::LoadReport;
use kvasir_engine_core::{Reject, Stats};

use super::times::{Histograms, StepTime};

/// Upper bounds of the buckets of `vllm:iteration_tokens_total`; the last bucket has none.
const ITERATION_TOKENS_BOUNDS: [u64; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];

/// Counts beside those of the scheduler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Steps by tokens, not cumulative.
    iteration_tokens: [u64; ITERATION_TOKENS_BOUNDS.len() + 1],
    iteration_tokens_sum: u64,
    rejected_reqs: u64,
    rejected_tokens: u64,
    times: Histograms,
    last: Stats,
}

impl Counters {
    pub(super) fn count_reject(&mut self, reject: &Reject) {
        match reject {
            Reject::QueueFull { .. } => self.rejected_reqs += 1,
            Reject::QueuedTokensFull { .. } => self.rejected_tokens += 1,
            Reject::EmptyPrompt
            | Reject::ZeroMaxTokens
            | Reject::PromptTooLong { .. }
            | Reject::NeverFits { .. } => {}
        }
    }

    pub(super) fn count_step(&mut self, time: &StepTime) {
        self.times.observe(time);
    }

    /// Takes the scheduler's figures, and counts the tokens of the step if one was completed since the last call: prompt tokens computed
    /// and tokens sampled.
    pub(super) fn update(&mut self, stats: &Stats) {
        if stats.num_steps > self.last.num_steps {
            let tokens = (stats.num_prompt_tokens + stats.num_generation_tokens)
                - (self.last.num_prompt_tokens + self.last.num_generation_tokens);
            let bucket = ITERATION_TOKENS_BOUNDS.partition_point(|&bound| bound < tokens);
            self.iteration_tokens[bucket] += 1;
            self.iteration_tokens_sum += tokens;
        }
        self.last = *stats;
    }

    /// The report of the last known state. What holds at the moment of reading is left to be filled in.
    pub(crate) fn report(&self) -> LoadReport {
        let stats = &self.last;
        let mut cumulative = 0;
        let buckets = self.iteration_tokens.iter().map(|count| {
            cumulative += count;
            cumulative
        });
        LoadReport {
            iteration_tokens_bucket: buckets.collect(),
            num_running: stats.num_running,
            num_waiting: stats.num_waiting,
            kv_cache_usage: stats.usage,
            num_free_blocks: stats.num_free_blocks,
            prefix_cache_queries: stats.prefix_cache_queries,
            prefix_cache_hits: stats.prefix_cache_hits,
            num_preemptions: stats.num_preemptions,
            num_steps: stats.num_steps,
            prompt_tokens: stats.num_prompt_tokens,
            generation_tokens: stats.num_generation_tokens,
            iteration_tokens_sum: self.iteration_tokens_sum,
            num_queued_tokens: stats.num_queued_tokens,
            rejected_max_num_queued_reqs: self.rejected_reqs,
            rejected_max_num_queued_tokens: self.rejected_tokens,
            step_times: Some(self.times.to_wire()),
            ..LoadReport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(num_steps: u64, num_prompt_tokens: u64, num_generation_tokens: u64) -> Stats {
        Stats {
            num_steps,
            num_prompt_tokens,
            num_generation_tokens,
            ..Stats::default()
        }
    }

    #[test]
    fn each_step_counts_once_in_the_bucket_of_its_tokens() {
        let mut counters = Counters::default();
        counters.update(&stats(1, 8, 0));
        counters.update(&stats(1, 8, 0));
        counters.update(&stats(2, 16, 1));
        counters.update(&stats(3, 100_000, 1));
        let report = counters.report();
        assert_eq!(
            report.iteration_tokens_bucket,
            [0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3]
        );
        assert_eq!(report.iteration_tokens_sum, 100_001);
    }

    #[test]
    fn refusals_are_counted_by_limit() {
        let mut counters = Counters::default();
        counters.count_reject(&Reject::QueueFull {
            queued: 1,
            requested: 1,
            limit: 1,
        });
        counters.count_reject(&Reject::QueuedTokensFull {
            queued: 1,
            requested: 1,
            limit: 1,
        });
        counters.count_reject(&Reject::QueuedTokensFull {
            queued: 1,
            requested: 1,
            limit: 1,
        });
        counters.count_reject(&Reject::EmptyPrompt);
        let report = counters.report();
        assert_eq!(
            (
                report.rejected_max_num_queued_reqs,
                report.rejected_max_num_queued_tokens
            ),
            (1, 2)
        );
    }
}
