//! Answers: what goes out as JSON. Keys that are unset are left out.

mod chat;
mod completion;
mod logprobs;
mod models;
mod timeline;
mod usage;

pub use chat::{ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatMessage, ChatResponse};
pub use completion::{CompletionChoice, CompletionResponse};
pub use logprobs::{
    ChatLogprob, ChatLogprobs, CompletionLogprobs, Logprob, PromptLogprob, PromptLogprobs, TopChatLogprob,
    TopLogprobs, clamp_logprob,
};
pub use models::{DetokenizeResponse, ModelCard, ModelList, TokenizeResponse};
pub use timeline::{Timeline, TimelineEntry};
pub use usage::{PromptTokensDetails, Usage};

use serde::Serialize;

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// End of sequence, a stop token or a stop string.
    Stop,
    /// The limit of output tokens or of the context.
    Length,
    /// It was aborted.
    Abort,
    /// The engine failed.
    Error,
}

impl FinishReason {
    /// The wire name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// What stopped a sequence, if the request named it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    /// A stop string.
    Text(String),
    /// A stop token.
    Token(u32),
}
