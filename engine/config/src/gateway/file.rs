//! The file as a whole, tenants, limits and waiting.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::auth::AuthConfig;
use super::engines::{EnginesConfig, RevisionConfig, RoutingConfig};
use super::model::ModelConfig;
use super::text::{CertificateName, Names};

/// A gateway.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayConfig {
    /// Where clients connect.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Names that clients may call the model by, the first one is in answers; left out: what the engines call it.
    #[serde(default)]
    pub served_model_names: Vec<String>,
    /// Where one line of JSON for each request goes: who, what, the decision and the tokens; left out: standard output. On
    /// SIGHUP the file is opened anew.
    pub audit_file: Option<PathBuf>,
    /// Longest request body, in bytes.
    #[serde(default = "default_body")]
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    pub max_body_bytes: u32,
    /// Longest time that one request may take, in seconds; left out: as long as it needs.
    pub request_timeout_seconds: Option<NonZeroU32>,
    /// Longest time that answers may go on after the gateway was told to stop, in seconds.
    #[serde(default = "default_shutdown")]
    #[schemars(range(max = 86400))]
    pub shutdown_timeout_seconds: u32,
    /// How long everything goes on after the gateway was told to stop, except that probes fail and connections end with their next answer, in
    /// seconds: whoever sends requests here needs a while to hear of the end. Left out: 10 in a pod of Kubernetes, 0 elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 3600))]
    pub leave_seconds: Option<u32>,
    /// Where probes and metrics are answered; not for clients.
    #[serde(default = "default_operations_listen")]
    pub operations_listen: SocketAddr,
    /// TLS towards clients; may be left out only where `listen` is a loopback address.
    pub tls: Option<ServerTlsConfig>,
    /// How clients prove who they are.
    pub auth: AuthConfig,
    /// Who may do what, and how much of it.
    pub tenants: Vec<TenantConfig>,
    /// How limits are shared with other replicas.
    #[serde(default)]
    pub limits: GatewayLimitsConfig,
    /// The secret that keeps tenants' caches apart.
    pub cache_salt: CacheSaltConfig,
    /// Where engines are and how they are reached.
    pub engines: EnginesConfig,
    /// Revisions of the model with their weights; left out, all engines serve alike.
    #[serde(default)]
    pub revisions: Vec<RevisionConfig>,
    /// How engines are chosen.
    #[serde(default)]
    pub routing: RoutingConfig,
    /// How long and how many requests wait.
    #[serde(default)]
    pub waiting: WaitingConfig,
    /// Further models behind the same door, with engines of their own. They come and go while the gateway runs.
    // A gateway of the version before, which knows no such field, can still read the file of one model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub models: Vec<ModelConfig>,
    /// Where spans of requests are sent; left out, nowhere. A change takes effect at the next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<TracingConfig>,
}

/// Where spans of requests are sent.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TracingConfig {
    /// An OpenTelemetry collector that takes OTLP over gRPC: `http://HOST:4317`, or `https://` for TLS.
    pub endpoint: String,
    /// Requests out of a hundred that are recorded, of those that belong to no trace of their client.
    #[serde(default = "all")]
    #[schemars(range(min = 1, max = 100))]
    pub sample_percent: u8,
}

fn all() -> u8 {
    100
}

/// Certificate and key of a server.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerTlsConfig {
    /// PEM file of the certificate and the authorities between it and the root.
    pub certificate: PathBuf,
    /// PEM file of its key.
    pub key: PathBuf,
    /// PEM file of the authorities of clients' certificates; needed for `auth.certificates`.
    pub client_authorities: Option<PathBuf>,
}

/// A tenant's rules. What isn't allowed here is denied.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TenantConfig {
    /// 1 to 63 of a-z, 0-9, - and ., with a letter or digit first and last.
    pub name: String,
    /// Kinds of routes.
    #[serde(default = "default_scopes")]
    pub scopes: Vec<ScopeConfig>,
    /// Models it may use.
    #[serde(default)]
    pub models: Names,
    /// Adapters it may use, on top of models it may use.
    #[serde(default)]
    pub adapters: Names,
    /// Class of urgency; lower runs first.
    #[serde(default)]
    pub priority: i32,
    /// Share among tenants of its class.
    #[serde(default = "one")]
    pub weight: NonZeroU32,
    /// Most output tokens of one sequence.
    pub max_tokens: Option<NonZeroU32>,
    /// How much it may have.
    #[serde(default)]
    pub limits: TenantLimitsConfig,
}

/// A kind of route.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScopeConfig {
    /// Using models.
    Inference,
    /// Reading figures and configuration.
    Operations,
    /// Changing the server.
    Admin,
}

/// How much a tenant may have; what is left out isn't limited.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TenantLimitsConfig {
    /// Requests per minute.
    pub requests_per_minute: Option<NonZeroU64>,
    /// Input and output tokens per minute.
    pub tokens_per_minute: Option<NonZeroU64>,
    /// Input tokens per minute.
    pub input_tokens_per_minute: Option<NonZeroU64>,
    /// Output tokens per minute.
    pub output_tokens_per_minute: Option<NonZeroU64>,
    /// Requests at one time.
    pub concurrency: Option<NonZeroU32>,
    /// The part of the waiting room that it may fill, in percent: less than all of it, so that one tenant can't keep the others out.
    #[serde(default = "half")]
    #[schemars(range(min = 1, max = 100))]
    pub queue_share_percent: u8,
}

/// How limits are shared.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayLimitsConfig {
    /// Gateways that serve together. Without a store, or while it's away, each enforces limit / replicas.
    #[serde(default = "one")]
    pub replicas: NonZeroU32,
    /// The store through which they share.
    pub store: Option<LimitStoreConfig>,
}

/// Where shared limits are kept.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitStoreConfig {
    /// A file with the URL of a Redis server, which may hold a password: `redis://`, `rediss://` for TLS, or `unix:`.
    pub redis_url_file: PathBuf,
    /// PEM file of the authorities of the server's certificate; left out, those that the system trusts.
    pub authorities: Option<PathBuf>,
    /// A file with the password, instead of one in the URL; read at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// What keys begin with; one for each service.
    #[serde(default = "default_prefix")]
    pub prefix: String,
}

/// The secret of the cache salt.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CacheSaltConfig {
    /// A file with 32 or more random bytes, the same at all gateways of a service.
    pub secret_file: PathBuf,
}

/// How requests wait.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitingConfig {
    /// Most requests that wait.
    #[serde(default = "default_capacity")]
    pub capacity: NonZeroU32,
    /// Longest wait in front of busy engines, in seconds.
    #[serde(default = "default_max_wait")]
    #[schemars(range(min = 1, max = 3600))]
    pub max_wait_seconds: u32,
    /// Longest wait for an engine while the service is scaled to zero, in seconds; 0 answers 503 at once.
    #[serde(default)]
    #[schemars(range(max = 3600))]
    pub hold_seconds: u32,
}

impl LimitStoreConfig {
    /// A Redis server whose URL a file holds, and the beginning of this service's keys.
    pub fn new(redis_url_file: PathBuf, prefix: String) -> Self {
        Self {
            redis_url_file,
            authorities: None,
            password_file: None,
            prefix,
        }
    }
}

impl TenantLimitsConfig {
    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        let per_minute = [
            self.requests_per_minute,
            self.tokens_per_minute,
            self.input_tokens_per_minute,
            self.output_tokens_per_minute,
        ];
        per_minute.iter().all(Option::is_none) && self.concurrency.is_none()
    }
}

impl Default for TenantLimitsConfig {
    fn default() -> Self {
        Self {
            requests_per_minute: None,
            tokens_per_minute: None,
            input_tokens_per_minute: None,
            output_tokens_per_minute: None,
            concurrency: None,
            queue_share_percent: half(),
        }
    }
}

impl Default for GatewayLimitsConfig {
    fn default() -> Self {
        Self {
            replicas: one(),
            store: None,
        }
    }
}

impl Default for WaitingConfig {
    fn default() -> Self {
        Self {
            capacity: default_capacity(),
            max_wait_seconds: default_max_wait(),
            hold_seconds: 0,
        }
    }
}

fn default_listen() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8443)
}

fn default_operations_listen() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090)
}

fn default_body() -> u32 {
    16 << 20
}

fn default_shutdown() -> u32 {
    30
}

fn default_scopes() -> Vec<ScopeConfig> {
    vec![ScopeConfig::Inference]
}

fn default_prefix() -> String {
    "kvasir".to_owned()
}

fn default_capacity() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(1023)
}

fn default_max_wait() -> u32 {
    60
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn half() -> u8 {
    50
}

/// Names in certificates that identify a role.
pub(super) type CertificateNames = Vec<CertificateName>;
