//! The scheduler's limits.

/// Limits, validated by [`SchedulerConfig::validate`]. Names are vLLM's.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Token budget of a step.
    pub max_num_batched_tokens: u32,
    /// Sequences in one step.
    pub max_num_seqs: u32,
    /// Sequences in the running set, at most `max_num_seqs`.
    pub max_num_active_seqs: u32,
    /// Prompt plus output of one sequence, in tokens.
    pub max_model_len: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks, with the null block.
    pub num_blocks: u32,
    /// Whether full blocks are shared.
    pub enable_prefix_caching: bool,
    /// Largest prefill chunk per step and sequence; 0 is off.
    pub long_prefill_token_threshold: u32,
    /// Waiting requests; more are refused.
    pub max_num_queued_reqs: u32,
    /// Prompt tokens of all waiting requests; more are refused.
    pub max_num_queued_tokens: u64,
}
