//! The HTTP edge: OpenAI JSON over any engine, with one table of routes.
//!
//! [`Edge`] serves the routes; [`Pipeline`] is what they are made of (tokenize, generate, detokenize, stop strings) and
//! also serves offline callers. The edge holds no model: it needs an [`kvasir_client::EngineClient`] and nothing else.

pub mod config;
mod connections;
pub mod error;
mod gate;
mod handlers;
mod listener;
mod metrics;
mod patience;
pub mod pipeline;
mod read;
mod reply;
pub mod routes;
mod seeds;
mod server;
mod state;

pub use config::{ApiKey, EdgeConfig, GenerationConfig};
pub use error::EdgeError;
pub use handlers::conversation;
pub use listener::Listener;
pub use pipeline::{Pipeline, PipelineOptions, Prompt, TextDelta, TextRequest, TextStream};
pub use routes::{Route, Scope};
pub use server::{Edge, Shutdown};
