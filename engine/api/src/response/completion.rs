//! Answers of `POST /v1/completions`.

use serde::Serialize;

use super::{CompletionLogprobs, FinishReason, PromptLogprobs, StopReason, Timeline, Usage};

/// A whole answer, or one event of a streamed one.
#[derive(Clone, Debug, Serialize)]
pub struct CompletionResponse<'a> {
    /// `cmpl-` and the request's id; the same on every event.
    pub id: &'a str,
    /// `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model's name.
    pub model: &'a str,
    /// All sequences in order of index; in an event one, or none if it only carries usage.
    pub choices: Vec<CompletionChoice>,
    /// In an event only on the usage chunk, or on every chunk if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// In a stream only on the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<&'a str>,
}

/// One sequence, or what is new in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompletionChoice {
    /// Prompt number x n + sequence number.
    pub index: u32,
    /// The text.
    pub text: String,
    /// If asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// Set when the sequence ended.
    pub finish_reason: Option<FinishReason>,
    /// What stopped it.
    pub stop_reason: Option<StopReason>,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// If asked for; in a stream only on the first chunk of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// If asked for; in a stream only on the first chunk of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_text: Option<String>,
    /// If asked for and the engine ended the sequence; in a stream only on its last chunk: a stop string ends it at the edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}
