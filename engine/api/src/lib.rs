//! The wire types of the OpenAI and vLLM routes: requests, answers, errors and stream frames, without any I/O.
//!
//! A request body becomes a resolved value in one step, [`ChatRequest::parse`] and its siblings: every field that vLLM
//! 0.32 knows is either honoured, or harmless, or refused by name; what nobody knows is reported by name. Nothing in
//! here panics or needs more memory than a small multiple of the body, whatever the body is.

mod body;
mod error;
mod limits;
mod request;
mod response;
pub mod sse;

pub use body::{Body, MAX_JSON_DEPTH};
pub use error::{ApiError, ErrorBody, ErrorKind};
pub use limits::{Context, Limits, SamplingDefaults};
pub use request::{
    ChatRequest, Common, CompletionRequest, Content, DetokenizeRequest, Message, Parsed, Prompt, Sampling,
    StreamOptions, TokenizeInput, TokenizeRequest, Truncation,
};
pub use response::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatLogprob, ChatLogprobs, ChatMessage, ChatResponse,
    CompletionChoice, CompletionLogprobs, CompletionResponse, DetokenizeResponse, FinishReason, Logprob,
    ModelCard, ModelList, PromptLogprob, PromptLogprobs, PromptTokensDetails, StopReason, Timeline,
    TimelineEntry, TokenizeResponse, TopChatLogprob, TopLogprobs, Usage, clamp_logprob,
};
