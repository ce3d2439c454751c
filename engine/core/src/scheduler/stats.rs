//! Gauges and counters for load reports and metrics.

use super::Scheduler;
use crate::ids::Micros;

/// The state of queues and pool, and what was counted since the scheduler was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Sequences in the running set.
    pub num_running: u32,
    /// Sequences that wait, preempted ones included.
    pub num_waiting: u32,
    /// Those of them that wait for something else than room.
    pub num_deferred: u32,
    /// Prompt tokens of the sequences that wait.
    pub num_queued_tokens: u64,
    /// How long the sequence at the head of the queue has existed, in microseconds; 0 if none waits.
    pub head_age: Micros,
    /// Blocks that nobody holds; cached ones among them.
    pub num_free_blocks: u32,
    /// Blocks that sequences can use: all but the null block.
    pub num_usable_blocks: u32,
    /// Blocks whose content can be found.
    pub num_cached_blocks: u32,
    /// `1 - free / usable`, in `[0, 1]` (rule B1).
    pub usage: f64,
    /// Tokens of new sequences that were looked up in the prefix cache.
    pub prefix_cache_queries: u64,
    /// Those of them that were found.
    pub prefix_cache_hits: u64,
    /// Tokens of preempted sequences that were looked up when they resumed.
    pub resumed_cache_queries: u64,
    /// Those of them that were found.
    pub resumed_cache_hits: u64,
    /// Times that a running sequence lost its blocks.
    pub num_preemptions: u64,
    /// Steps completed.
    pub num_steps: u64,
    /// Prompt tokens computed, those computed again included.
    pub num_prompt_tokens: u64,
    /// Tokens sampled, without those of aborted sequences.
    pub num_generation_tokens: u64,
}

/// What is counted as it happens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    prefix_cache_queries: u64,
    prefix_cache_hits: u64,
    resumed_cache_queries: u64,
    resumed_cache_hits: u64,
    pub(super) num_preemptions: u64,
    pub(super) num_steps: u64,
    pub(super) num_prompt_tokens: u64,
    pub(super) num_generation_tokens: u64,
}

impl Counters {
    /// Counts the lookup of a sequence that was admitted; failed attempts don't count, or a full pool would inflate the hit rate (S11).
    pub(super) fn count_lookup(&mut self, resumed: bool, num_tokens: u32, cached_tokens: u32) {
        let (queries, hits) = if resumed {
            (&mut self.resumed_cache_queries, &mut self.resumed_cache_hits)
        } else {
            (&mut self.prefix_cache_queries, &mut self.prefix_cache_hits)
        };
        *queries += u64::from(num_tokens);
        *hits += u64::from(cached_tokens);
    }
}

impl Scheduler {
    /// A snapshot. Costs nothing that grows with the number of sequences.
    pub fn stats(&self) -> Stats {
        let head = self.waiting.front().map(|(_, slot)| &self.seqs[slot]);
        let (free, usable) = (self.pool.num_free(), self.pool.num_usable());
        Stats {
            num_running: self.running.len() as u32,
            num_waiting: self.waiting.len() as u32,
            num_deferred: self.waiting.num_deferred() as u32,
            num_queued_tokens: self.waiting.num_tokens(),
            head_age: Micros(head.map_or(0, |seq| self.now.0.saturating_sub(seq.arrival.0))),
            num_free_blocks: free,
            num_usable_blocks: usable,
            num_cached_blocks: self.pool.num_cached(),
            usage: 1.0 - f64::from(free) / f64::from(usable),
            prefix_cache_queries: self.counters.prefix_cache_queries,
            prefix_cache_hits: self.counters.prefix_cache_hits,
            resumed_cache_queries: self.counters.resumed_cache_queries,
            resumed_cache_hits: self.counters.resumed_cache_hits,
            num_preemptions: self.counters.num_preemptions,
            num_steps: self.counters.num_steps,
            num_prompt_tokens: self.counters.num_prompt_tokens,
            num_generation_tokens: self.counters.num_generation_tokens,
        }
    }
}
