//! What chat and batch generation need from a model: a request goes in as the JSON of the HTTP routes, text comes out.
//!
//! [`Llm`](crate::Llm) answers with the engine in this process; tests answer from a script.

use std::pin::Pin;

use async_trait::async_trait;
use futures::Stream;
use serde::Serialize;
use serde_json::{Map, Value};

/// Pieces of an answer, in order; the last one has the finish reason and the usage.
pub type PieceStream = Pin<Box<dyn Stream<Item = Result<Piece, AnswerError>> + Send>>;

/// Something that answers requests.
#[async_trait]
pub(crate) trait Answerer: Send + Sync {
    /// The whole answer.
    ///
    /// # Errors
    /// If the request is refused or the engine fails.
    async fn answer(&self, request: AnswerRequest) -> Result<Answer, AnswerError>;

    /// The answer as it is made, of one sequence. Dropping the stream ends the work.
    ///
    /// # Errors
    /// As for `answer`; later errors come through the stream.
    async fn stream(&self, request: AnswerRequest) -> Result<PieceStream, AnswerError>;
}

/// A request as it would be sent to a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnswerRequest {
    /// Which route's body it is.
    pub(crate) route: Route,
    /// The body: `messages` or `prompt`, and sampling fields.
    pub(crate) body: Map<String, Value>,
}

/// The route whose fields and rules apply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Route {
    /// `/v1/chat/completions`: the chat template makes the prompt.
    Chat,
    /// `/v1/completions`: the prompt is what was given.
    Completion,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// One per sequence, in order of index.
    pub choices: Vec<AnswerChoice>,
    /// Token counts.
    pub usage: TokenUsage,
}

/// One sequence of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerChoice {
    /// The text.
    pub text: String,
    /// `stop`, `length`, `abort` or `error`.
    pub finish_reason: String,
    /// As in the route's answer, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Value>,
}

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Output tokens of all sequences.
    pub completion_tokens: u64,
}

/// More of an answer.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Piece {
    /// More text; may be empty.
    pub text: String,
    /// Set on the last piece.
    pub finish_reason: Option<String>,
    /// Set on the last piece.
    pub usage: Option<TokenUsage>,
}

/// Why there is no answer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct AnswerError {
    /// What is wrong.
    pub message: String,
    /// The HTTP status a server would answer with: 4xx is the request's fault.
    pub status: u16,
    /// The request field at fault, if one is.
    pub param: Option<String>,
}

impl AnswerError {
    /// A request that can't be answered, with the field at fault.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            status: 400,
            param: Some(param.to_owned()),
        }
    }

    /// True if another try of the same request can't succeed.
    pub fn is_final(&self) -> bool {
        (400..500).contains(&self.status)
    }
}
