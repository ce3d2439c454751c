//! What the scheduler is asked to do.

use std::sync::Arc;

use kvasir_cache_key::CacheRoot;

use crate::ids::{AdapterId, Micros, TenantId, TokenId};

/// One sequence to generate.
#[derive(Clone, Debug, Eq, PartialEq)]
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
#[derive(Clone, Debug, Default, Eq, PartialEq)]
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

/// What a request may carry beside its prompt; the default is a request without any of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RequestOptions {
    /// Whose share its tokens are counted in.
    pub tenant: TenantId,
    /// Tokens that its tenant may get for one token of a tenant of weight 1; at least 1.
    pub weight: u32,
    /// The adapter it runs with.
    pub adapter: Option<AdapterId>,
    /// When it ends with [`FinishReason::Deadline`](crate::FinishReason::Deadline) if it hasn't ended before, on the caller's clock.
    pub deadline: Option<Micros>,
    /// Why it can't start yet. It waits beside the queue until [`Scheduler::undefer`](crate::Scheduler::undefer) is called.
    pub deferral: Option<Deferral>,
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self {
            tenant: TenantId(0),
            weight: 1,
            adapter: None,
            deadline: None,
            deferral: None,
        }
    }
}

/// Why a sequence can't start yet, through no lack of room (S9). It holds up nobody behind it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Deferral {
    /// The grammar of its structured output is being compiled (S19).
    StructuredOutput,
    /// Its adapter is being loaded.
    Adapter,
}
