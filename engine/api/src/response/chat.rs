//! Answers of `POST /v1/chat/completions`.

use serde::Serialize;

use super::{ChatLogprobs, FinishReason, PromptLogprobs, StopReason, Timeline, Usage};

/// A whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct ChatResponse {
    /// `chatcmpl-` and the request's id.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model's name.
    pub model: String,
    /// One per sequence, in order of index.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
    /// Which server and weights made it.
    pub system_fingerprint: String,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_text: Option<String>,
}

/// One sequence of a whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct ChatChoice {
    /// Which of the n.
    pub index: u32,
    /// What the model said.
    pub message: ChatMessage,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What stopped it.
    pub stop_reason: Option<StopReason>,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// If asked for and the engine ended the sequence: a stop string ends it at the edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// What the model said.
#[derive(Clone, Debug, Serialize)]
pub struct ChatMessage {
    /// `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
}

/// One event of a streamed answer.
#[derive(Clone, Debug, Serialize)]
pub struct ChatChunk<'a> {
    /// The same on every chunk.
    pub id: &'a str,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970, the same on every chunk.
    pub created: u64,
    /// The served model's name.
    pub model: &'a str,
    /// One choice, or none on the chunk that only carries usage.
    pub choices: Vec<ChatChunkChoice<'a>>,
    /// On the usage chunk, or on every chunk if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// On the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<&'a str>,
    /// On the first chunk of a choice, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
    /// On the first chunk of a choice, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_text: Option<&'a str>,
}

/// A sequence's part of an event.
#[derive(Clone, Debug, Serialize)]
pub struct ChatChunkChoice<'a> {
    /// Which of the n.
    pub index: u32,
    /// What is new.
    pub delta: ChatDelta<'a>,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Set on the last chunk of the sequence.
    pub finish_reason: Option<FinishReason>,
    /// What stopped it; only on the last chunk of the sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Option<StopReason>>,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<&'a [u32]>,
    /// If asked for and the engine ended the sequence, on its last chunk: a stop string ends it at the edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// What is new in an event.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ChatDelta<'a> {
    /// `assistant`, on the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
}
