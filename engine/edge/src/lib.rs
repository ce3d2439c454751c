//! The HTTP edge: OpenAI JSON over any engine, with one table of routes.
//!
//! [`Edge`] serves the routes; [`Pipeline`] is what they are made of (tokenize, generate, detokenize, stop strings) and
//! also serves offline callers. The edge holds no model: it needs an [`kvasir_client::EngineClient`] and nothing else, or a [`Host`] that
//! decides who may ask and which engine answers.

pub mod config;
mod connections;
pub mod error;
mod framing;
mod gate;
mod handlers;
pub mod host;
mod idle;
mod keys;
mod listener;
mod metrics;
mod patience;
pub mod pipeline;
mod read;
mod reply;
pub mod routes;
mod seeds;
mod server;
mod spans;
mod state;

pub use config::{EdgeConfig, GenerationConfig};
pub use error::EdgeError;
pub use handlers::conversation;
pub use host::{Host, Visit};
pub use keys::ApiKey;
pub use listener::{ConnectionIo, Handshake, Listener, PeerAddress};
pub use metrics::{EngineMetrics, Figures, one_exposition};
pub use pipeline::{Pipeline, PipelineOptions, Prompt, Source, TextDelta, TextRequest, TextStream};
pub use routes::{Route, Scope};
pub use server::{Edge, Shutdown};
pub use spans::{Spans, SpansError};
