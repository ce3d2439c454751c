//! How an edge talks to an engine: the trait [`EngineClient`], its types, and the gRPC client.
//!
//! The types are the wire messages themselves, so the in-process client and the gRPC client can't drift apart.

use std::pin::Pin;

use async_trait::async_trait;
use futures::Stream;

pub mod assets;
mod buffer;
mod error;
mod grpc;
mod kv_cache;
mod recurring;

pub use assets::TextAssetFiles;
pub use buffer::{Delivery, OutputReceiver, OutputSender, output_buffer};
pub use error::{invalid, is_retryable, refusal};
pub use grpc::{ConnectError, Dial, Dialled, GrpcClient, GrpcClientOptions, TargetError};
pub use kv_cache::{KvCacheChange, KvCacheFollower, KvCacheView, KvCacheViewError};
pub use kvasir_proto::engine::{MODEL_BYTES, v1 as types};
pub use recurring::Recurring;
use types::{
    Error, ErrorCode, GenerateRequest, KvCachePosition, KvCacheUpdate, LoadReport, ModelInfo, SequenceOutput,
};

/// Most sequences of one request, as vLLM's `VLLM_MAX_N_SEQUENCES`. An engine may allow fewer.
pub const MAX_SEQUENCES_PER_REQUEST: u32 = 16_384;

/// Longest request id, in bytes. The wire allows 512: the gRPC client adds a serial number.
pub const MAX_REQUEST_ID_BYTES: usize = 256;

/// Largest encoded `GenerateRequest`: room for prompts of three million tokens.
pub const MAX_REQUEST_BYTES: usize = 16 << 20;

/// Largest encoded `StepOutputs`: above what an engine sends, which keeps prompt log probabilities below 32 MiB.
pub const MAX_OUTPUT_BYTES: usize = 64 << 20;

/// Upper bounds of the buckets of [`types::Durations`], in microseconds; the last bucket has none. Part of the wire: they never change.
pub const DURATION_BOUNDS_US: [u64; 20] = [
    5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// The outputs of one request, all of its sequences interleaved in the order the engine made them.
///
/// Ends after every sequence has sent its `finish`. Dropping it aborts what still runs.
pub type OutputStream = Pin<Box<dyn Stream<Item = SequenceOutput> + Send>>;

/// Load reports of one engine. Ends when the engine does; an error is the last item.
pub type LoadStream = Pin<Box<dyn Stream<Item = Result<LoadReport, Error>> + Send>>;

/// What one engine's prefix cache holds and how that changes. Ends when the engine does; an error is the last item.
pub type KvCacheStream = Pin<Box<dyn Stream<Item = Result<KvCacheUpdate, Error>> + Send>>;

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

    /// Starts a request. All of its `n` sequences are queued, or none. Dropping the future aborts the request.
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

    /// The state of the engine as a JSON document (`kvasir_service::dump`), for finding out what went wrong: as it is now, or as it was at the last stall.
    /// It holds the token ids of prompts.
    ///
    /// # Errors
    /// If there was no stall, or [`types::ErrorCode::Unavailable`] if the engine can't be reached.
    async fn dump(&self, last_stall: bool) -> Result<bytes::Bytes, Error>;

    /// The load report, at once and whenever it has changed, at most ten times a second.
    ///
    /// # Errors
    /// [`ErrorCode::Unavailable`] if the engine can't be reached, [`ErrorCode::QueueFull`] if too many readers are there, and
    /// [`ErrorCode::Internal`] from an engine that knows no such stream.
    async fn watch_load(&self) -> Result<LoadStream, Error> {
        Err(refusal(ErrorCode::Internal, "this engine tells no load changes"))
    }

    /// What the prefix cache holds: a snapshot and then changes, or the changes since a position. [`KvCacheFollower`] reads it, keeps the set
    /// and comes back after losses.
    ///
    /// # Errors
    /// As `watch_load`.
    async fn watch_kv_cache(&self, resume_after: Option<KvCachePosition>) -> Result<KvCacheStream, Error> {
        drop(resume_after);
        Err(refusal(
            ErrorCode::Internal,
            "this engine tells nothing about its cache",
        ))
    }

    /// Stops admission and waits for running requests, at most `deadline`. Returns how many still run.
    ///
    /// # Errors
    /// [`types::ErrorCode::Unavailable`] if the engine can't be reached.
    async fn drain(&self, deadline: std::time::Duration) -> Result<u32, Error>;
}
