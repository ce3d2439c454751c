//! What an engine is made of.

use std::net::SocketAddr;
use std::path::PathBuf;

use kvasir_backend::{ExecError, Executor};
use kvasir_cache_key::{CacheIdentity, CacheRoot};
use kvasir_client::types::{self, ModelInfo};
use kvasir_client::{TextAssetFiles, assets};
use kvasir_engine_core::{ConfigError, KvGroup, Policies, SchedulerConfig};

use crate::dump::DumpError;
use crate::watchdog::StallLimits;
use crate::zmq::{ZmqConfig, ZmqError};

/// Everything that [`Engine::start`](crate::Engine::start) needs.
pub struct EngineSetup {
    /// Runs the plans.
    pub executor: Box<dyn Executor>,
    /// The scheduler's limits.
    pub scheduler: SchedulerConfig,
    /// The scheduler's rules beside its limits. Steps in flight and shared prompts of groups need an executor that supports them.
    pub policies: Policies,
    /// What is served. Limits and digests that follow from the other fields are filled in: `max_model_len`, `block_size`, `num_blocks`,
    /// `max_num_seqs`, `max_logprobs`, `text_assets_digest` (checked, if it is given), `kv_dtype`, `weights_version`, `kv_groups` and `engine_version`.
    pub model: ModelInfo,
    /// The files that edges need for text.
    pub assets: TextAssetFiles,
    /// What cached KV depends on, beside tokens and salts.
    pub cache: CacheParts,
    /// Who it is, for those that read its news.
    pub identity: EngineIdentity,
    /// Publishes KV events, with the tokens of all prompts, to tools made for vLLM.
    pub kv_events: Option<ZmqConfig>,
    /// Limits of the service.
    pub limits: ServiceLimits,
    /// What is kept and done for the case that something goes wrong.
    pub diagnostics: Diagnostics,
}

/// Who an engine is: requests, cache news and load reports are addressed by it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EngineIdentity {
    /// The process, for example its pod's uid.
    pub instance_id: String,
    /// How often its group has joined; see [`Engine::begin_epoch`](crate::Engine::begin_epoch).
    pub epoch: u64,
    /// Which data-parallel rank it is.
    pub dp_rank: u32,
}

/// The parts of the cache identity that are the same for all requests.
#[derive(Clone, Debug, Default)]
pub struct CacheParts {
    /// Digest of the weights.
    pub weights_digest: Vec<u8>,
    /// Raised when weights are replaced in place.
    pub weights_version: u64,
    /// Storage type of the KV cache.
    pub kv_dtype: String,
}

impl CacheParts {
    /// The root of the chains of requests with these salts.
    pub(crate) fn root(&self, tenant_salt: &[u8], client_salt: &str) -> CacheRoot {
        CacheIdentity {
            weights_digest: &self.weights_digest,
            weights_version: self.weights_version,
            kv_dtype: &self.kv_dtype,
            tenant_salt,
            client_salt: client_salt.as_bytes(),
            ..CacheIdentity::default()
        }
        .root()
    }
}

/// Limits of the service. What happens when one is reached is said in the crate's documentation.
#[derive(Clone, Copy, Debug)]
pub struct ServiceLimits {
    /// Log probabilities per token.
    pub max_logprobs: u32,
    /// Outputs of one request that wait for its reader.
    pub output_buffer: usize,
    /// gRPC sessions.
    pub max_sessions: usize,
    /// Live requests of one session or in-process client.
    pub max_live_requests: usize,
    /// Requests that wait for the scheduler thread to take them.
    pub max_untaken_requests: usize,
    /// Readers of cache and load news.
    pub max_watches: usize,
    /// Tokens of the step that warms the executor up, at most the step's budget. On a device that sets up little at its first
    /// step a few are enough, and the engine is ready sooner.
    pub max_warmup_tokens: usize,
    /// Whether a request without its tenant's cache salt is refused, as behind a gateway: unsalted requests of two tenants would share blocks.
    pub require_tenant_salt: bool,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        // 20 is vLLM's default. The buffer holds a minute of a fast stream.
        Self {
            max_logprobs: 20,
            output_buffer: 4096,
            max_sessions: 64,
            max_live_requests: 4096,
            max_untaken_requests: 4096,
            max_watches: 64,
            max_warmup_tokens: usize::MAX,
            require_tenant_salt: false,
        }
    }
}

/// What is kept and done for the case that something goes wrong.
#[derive(Clone, Debug)]
pub struct Diagnostics {
    /// When a step is taken for stuck.
    pub stall: StallLimits,
    /// The last inputs of the scheduler, kept so that it can be run again; 0 keeps none.
    pub recorded_inputs: usize,
    /// Records of the last steps.
    pub step_records: usize,
    /// Where the watchdog leaves dumps; it is made if it doesn't exist.
    pub dump_dir: Option<PathBuf>,
}

impl Default for Diagnostics {
    /// No recording and no folder. 256 steps are several seconds of a fast decode.
    fn default() -> Self {
        Self {
            stall: StallLimits::default(),
            recorded_inputs: 0,
            step_records: 256,
            dump_dir: None,
        }
    }
}

/// Why an engine can't start or serve.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A limit of the scheduler can't work.
    #[error("the scheduler's configuration can't work: {0}")]
    Config(#[source] ConfigError),
    /// The executor takes fewer steps at a time than the scheduler would plan.
    #[error("{asked} steps in flight were asked for, the executor takes {limit}")]
    StepsInFlight {
        /// By the policies.
        asked: u32,
        /// Of the executor.
        limit: usize,
    },
    /// The model has no vocabulary.
    #[error("the model's vocab_size is {0}, it must be at least 1 and below 2^32 - 1")]
    VocabSize(u32),
    /// The text assets aren't the ones that were announced.
    #[error("the text assets have digest {found}, the model info says {given}")]
    AssetsDigest {
        /// Of the model info.
        given: String,
        /// Of the files.
        found: String,
    },
    /// The executor can't run a step.
    #[error("the executor failed to warm up: {0}")]
    Warmup(#[source] ExecError),
    /// The folder for dumps can't be used.
    #[error(transparent)]
    DumpDir(DumpError),
    /// KV events can't be published.
    #[error("can't publish KV events: {0}")]
    KvEvents(#[source] ZmqError),
    /// The operating system gave no thread.
    #[error("can't start the scheduler thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The scheduler thread ended before it was ready.
    #[error("the scheduler thread panicked while it started")]
    StartPanicked,
    /// Plain gRPC would be reachable from elsewhere.
    #[error(
        "won't serve plain gRPC on {0}, where anybody on the network could read prompts: use mutual TLS, a loopback address or a Unix socket"
    )]
    NotLoopback(SocketAddr),
    /// TLS would let anybody in.
    #[error("won't serve gRPC on {0} with TLS that doesn't demand named certificates of clients")]
    OpenTls(SocketAddr),
    /// A TCP address can't be listened on.
    #[error("can't listen on {address}: {source}")]
    BindTcp {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A socket can't be made.
    #[error("can't listen on the socket {path}: {source}", path = .path.display())]
    BindUnix {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The server ended with an error.
    #[error("the gRPC server failed: {0}")]
    Serve(#[source] tonic::transport::Error),
}

/// Fills in what follows from the rest of the setup.
pub(crate) fn resolve_model(setup: &EngineSetup) -> Result<ModelInfo, ServiceError> {
    let EngineSetup {
        scheduler,
        model,
        assets,
        limits,
        ..
    } = setup;
    scheduler.validate().map_err(ServiceError::Config)?;
    if model.vocab_size == 0 || model.vocab_size == u32::MAX {
        return Err(ServiceError::VocabSize(model.vocab_size));
    }
    let found = assets::digest(assets);
    if !model.text_assets_digest.is_empty() && model.text_assets_digest != found {
        return Err(ServiceError::AssetsDigest {
            given: model.text_assets_digest.clone(),
            found,
        });
    }
    Ok(ModelInfo {
        max_model_len: scheduler.max_model_len,
        block_size: scheduler.block_size,
        num_blocks: scheduler.num_blocks - 1,
        max_num_seqs: scheduler.max_num_seqs,
        max_logprobs: limits.max_logprobs.min(model.vocab_size),
        text_assets_digest: found,
        kv_dtype: setup.cache.kv_dtype.clone(),
        weights_version: setup.cache.weights_version,
        kv_groups: scheduler.groups.iter().copied().map(kv_group).collect(),
        engine_version: env!("CARGO_PKG_VERSION").to_owned(),
        ..model.clone()
    })
}

fn kv_group(group: KvGroup) -> types::KvGroup {
    types::KvGroup {
        window_positions: match group {
            KvGroup::Full => None,
            KvGroup::Window { positions } => Some(positions),
        },
    }
}
