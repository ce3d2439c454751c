//! What the scheduler is asked to do.

use std::sync::Arc;

use kvasir_cache_key::CacheRoot;

use crate::ids::TokenId;

/// One sequence to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt: Arc<[TokenId]>,
    /// When it ends.
    pub stop: StopConditions,
    /// Lower runs earlier under the priority policy.
    pub priority: i64,
    /// The identity its blocks are cached under: equal roots and equal tokens share blocks.
    pub cache_root: CacheRoot,
    /// False for requests that need every prompt position computed, such as those for prompt log probabilities.
    pub reads_prefix_cache: bool,
}

/// When a sequence ends (rule S17): end of sequence, stop token, length, in this order.
#[derive(Clone, Debug, Default)]
pub struct StopConditions {
    /// Output tokens, at least 1.
    pub max_tokens: u32,
    /// The stop tests are not made before this many output tokens exist (the length test is).
    pub min_tokens: u32,
    /// End-of-sequence ids; empty to ignore them.
    pub eos_token_ids: Vec<TokenId>,
    /// Further ids that end the sequence and are reported.
    pub stop_token_ids: Vec<TokenId>,
}
