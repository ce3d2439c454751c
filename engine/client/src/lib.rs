//! How an edge talks to an engine: the trait [`EngineClient`], its types, and the gRPC client.
//!
//! The types are the wire messages themselves, so the in-process client and the gRPC client can't drift apart.

use std::collections::BTreeMap;
use std::pin::Pin;

use async_trait::async_trait;
use futures::Stream;

pub use kvasir_proto::engine::v1 as types;
use types::{Error, GenerateRequest, LoadReport, ModelInfo, SequenceOutput};

/// The outputs of one request, all of its sequences interleaved in the order the engine made them.
///
/// Ends after every sequence has sent its `finish`. Dropping it aborts what still runs.
pub type OutputStream = Pin<Box<dyn Stream<Item = SequenceOutput> + Send>>;

/// The files an edge needs for text: name to content, for example `tokenizer.json`.
pub type TextAssetFiles = BTreeMap<String, Vec<u8>>;

/// An engine, in this process or behind gRPC.
#[async_trait]
pub trait EngineClient: Send + Sync + 'static {
    /// What is served, and its limits.
    ///
    /// # Errors
    /// [`types::ErrorCode::Unavailable`] if the engine can't be reached.
    async fn model_info(&self) -> Result<ModelInfo, Error>;

    /// The text assets with this digest; their digest is verified.
    ///
    /// # Errors
    /// If the engine holds other assets, can't be reached, or sent content that doesn't match the digest.
    async fn text_assets(&self, digest: &str) -> Result<TextAssetFiles, Error>;

    /// Starts a request. All of its `n` sequences are queued, or none.
    ///
    /// # Errors
    /// The engine's refusal: invalid, never fits, queue full, draining, unavailable.
    async fn generate(&self, request: GenerateRequest) -> Result<OutputStream, Error>;

    /// Ends one sequence of a request, or all of them. Unknown ids are ignored.
    /// The sequence still sends its `finish`, with reason abort.
    fn abort(&self, request_id: &str, index: Option<u32>);

    /// A snapshot of queues, KV usage and counters.
    ///
    /// # Errors
    /// [`types::ErrorCode::Unavailable`] if the engine can't be reached.
    async fn load(&self) -> Result<LoadReport, Error>;

    /// Stops admission and waits for running requests, at most `deadline`. Returns how many still run.
    ///
    /// # Errors
    /// [`types::ErrorCode::Unavailable`] if the engine can't be reached.
    async fn drain(&self, deadline: std::time::Duration) -> Result<u32, Error>;
}
