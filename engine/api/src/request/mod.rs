//! Requests: JSON in, resolved and checked values out.

mod chat;
mod common;
mod completion;
mod sampling;
mod tokenize;
mod unsupported;

pub use chat::{ChatRequest, Content, Message};
pub use common::{Common, StreamOptions, Truncation};
pub use completion::{CompletionRequest, Prompt};
pub use sampling::Sampling;
pub use tokenize::{DetokenizeRequest, TokenizeInput, TokenizeRequest};

/// A request and the fields in it that nobody knows, by name.
#[derive(Clone, Debug)]
pub struct Parsed<T> {
    /// The request.
    pub request: T,
    /// Names of unknown fields, sorted within each object.
    pub unknown: Vec<String>,
}

/// Refuses token ids outside the vocabulary.
pub(crate) fn check_token_ids(
    param: &str,
    ids: &[u32],
    vocab_size: u32,
) -> Result<(), crate::error::ApiError> {
    match ids.iter().find(|&&id| id >= vocab_size) {
        None => Ok(()),
        Some(id) => {
            let message = format!("token ids must be below the vocabulary size {vocab_size}");
            Err(crate::error::ApiError::value(param, id, &message))
        }
    }
}
