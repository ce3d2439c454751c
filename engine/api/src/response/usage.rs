//! Token counts.

use serde::Serialize;

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of all prompts, each counted once.
    pub prompt_tokens: u64,
    /// Both together.
    pub total_tokens: u64,
    /// Output tokens of all sequences.
    pub completion_tokens: u64,
    /// Only if the server is told to show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

/// Where prompt tokens came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Read from the prefix cache.
    pub cached_tokens: u64,
}

impl Usage {
    /// Usage of so many prompt and output tokens.
    pub fn new(prompt_tokens: u64, completion_tokens: u64) -> Self {
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        Self {
            prompt_tokens,
            total_tokens,
            completion_tokens,
            prompt_tokens_details: None,
        }
    }
}
