//! The scheduler's limits.

use crate::kv_group::KvGroup;

/// Limits, validated by [`SchedulerConfig::validate`]. Names are vLLM's.
#[derive(Clone, Debug, Eq, PartialEq)]
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
    /// KV blocks of all groups together, with the null block.
    pub num_blocks: u32,
    /// The KV groups, at least one; most models have one with full attention.
    pub groups: Vec<KvGroup>,
    /// Whether full blocks are shared.
    pub enable_prefix_caching: bool,
    /// Largest prefill chunk per step and sequence; 0 is off.
    pub long_prefill_token_threshold: u32,
    /// Waiting sequences (each of the `n` of a request counts); more are refused.
    pub max_num_queued_reqs: u32,
    /// Prompt tokens of all waiting sequences; more are refused.
    pub max_num_queued_tokens: u64,
}

/// A limit that can't work.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A limit is below its smallest value.
    #[error("{name} is {value}, it must be at least {min}")]
    TooSmall {
        /// The limit's name.
        name: &'static str,
        /// What was given.
        value: u64,
        /// Smallest value that works.
        min: u64,
    },
    /// A limit is above the limit it must respect.
    #[error("{name} is {value}, which is above {limit_name} {limit}; lower {name} or raise {limit_name}")]
    AboveLimit {
        /// The limit's name.
        name: &'static str,
        /// What was given.
        value: u32,
        /// The other limit's name.
        limit_name: &'static str,
        /// The other limit.
        limit: u32,
    },
    /// A policy that compares classes without an order of classes.
    #[error("{name} needs the priority order; turn the one off or the other on")]
    NeedsPriorityOrder {
        /// The policy's name.
        name: &'static str,
    },
    /// More blocks than positions can be counted in 32 bits.
    #[error(
        "num_blocks {num_blocks} of block_size {block_size} tokens are more positions than 2^31; lower num_blocks"
    )]
    PoolTooLarge {
        /// KV blocks.
        num_blocks: u32,
        /// Tokens per block.
        block_size: u32,
    },
}

/// Positions are counted in 32 bits; half of that range leaves room for sums of two counts.
pub(crate) const MAX_POSITIONS: u32 = 1 << 31;

/// More than any model has, and few enough for a step to look at each of them.
const MAX_GROUPS: u32 = 16;

impl SchedulerConfig {
    /// Checks the limits one by one and against each other.
    ///
    /// # Errors
    /// The first limit that can't work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at_least = [
            (
                "max_num_batched_tokens",
                u64::from(self.max_num_batched_tokens),
                1,
            ),
            ("max_num_seqs", u64::from(self.max_num_seqs), 1),
            ("max_num_active_seqs", u64::from(self.max_num_active_seqs), 1),
            // One token of prompt and one of output.
            ("max_model_len", u64::from(self.max_model_len), 2),
            ("block_size", u64::from(self.block_size), 1),
            ("the number of groups", self.groups.len() as u64, 1),
            // The null block, and for each group one that can be used.
            (
                "num_blocks",
                u64::from(self.num_blocks),
                1 + self.groups.len() as u64,
            ),
            ("max_num_queued_reqs", u64::from(self.max_num_queued_reqs), 1),
            ("max_num_queued_tokens", self.max_num_queued_tokens, 1),
        ];
        for (name, value, min) in at_least {
            if value < min {
                return Err(ConfigError::TooSmall { name, value, min });
            }
        }
        self.validate_groups()?;
        let (seqs, active) = (self.max_num_seqs, self.max_num_active_seqs);
        // Every running sequence can decode in every step.
        at_most(
            "max_num_seqs",
            seqs,
            "max_num_batched_tokens",
            self.max_num_batched_tokens,
        )?;
        at_most("max_num_active_seqs", active, "max_num_seqs", seqs)?;
        // The last token of a sequence at the model's length needs no KV, so one more than 2^31 tokens would still work;
        // no model is near it.
        at_most(
            "max_model_len",
            self.max_model_len,
            "2^31 positions",
            MAX_POSITIONS,
        )?;
        if u64::from(self.num_blocks) * u64::from(self.block_size) > u64::from(MAX_POSITIONS) {
            let Self {
                num_blocks,
                block_size,
                ..
            } = *self;
            return Err(ConfigError::PoolTooLarge {
                num_blocks,
                block_size,
            });
        }
        Ok(())
    }

    fn validate_groups(&self) -> Result<(), ConfigError> {
        let num_groups = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        at_most(
            "the number of groups",
            num_groups,
            "the most that are supported,",
            MAX_GROUPS,
        )?;
        for group in &self.groups {
            if let KvGroup::Window { positions } = *group {
                if positions == 0 {
                    return Err(ConfigError::TooSmall {
                        name: "a group's window",
                        value: 0,
                        min: 1,
                    });
                }
                at_most("a group's window", positions, "2^31 positions", MAX_POSITIONS)?;
            }
        }
        Ok(())
    }
}

/// vLLM's defaults where it has any, a pool of one sequence of the model's length, and a queue without bounds.
impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            max_num_batched_tokens: 2048,
            max_num_seqs: 128,
            max_num_active_seqs: 128,
            max_model_len: 4096,
            block_size: 16,
            num_blocks: 257,
            groups: vec![KvGroup::Full],
            enable_prefix_caching: true,
            long_prefill_token_threshold: 0,
            max_num_queued_reqs: u32::MAX,
            max_num_queued_tokens: u64::MAX,
        }
    }
}

fn at_most(name: &'static str, value: u32, limit_name: &'static str, limit: u32) -> Result<(), ConfigError> {
    if value <= limit {
        Ok(())
    } else {
        Err(ConfigError::AboveLimit {
            name,
            value,
            limit_name,
            limit,
        })
    }
}
