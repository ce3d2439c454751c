//! Kvasir serves large language models.
//!
//! This crate is the `kvasir` command, and a library for those who want a model inside their own program: [`Llm`] loads one and
//! answers prompts and conversations with the same engine, batching and text handling as the server.

mod answerer;
mod chat;
pub mod cli;
mod copy;
mod disk;
mod doctor;
mod exit;
pub mod fetch;
mod generate;
mod llm;
mod load;
mod logging;
mod memory;
mod progress;
mod signals;
mod simulate;

pub use answerer::{Answer, AnswerChoice, AnswerError, Piece, PieceStream, TokenUsage};
pub use llm::{GenerationParams, Llm, LlmOptions, Message};
pub use load::{ExpectationError, LoadError};
