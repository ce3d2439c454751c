//! Where engines are, how they are reached, and how one is chosen.

use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::CertificateNames;

/// Where engines are: exactly one of the three.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnginesConfig {
    /// These addresses.
    #[serde(default, rename = "static")]
    pub fixed: Vec<EngineAddressConfig>,
    /// All addresses of a DNS name, as of a headless service.
    pub dns: Option<DnsConfig>,
    /// The endpoints of a service of the cluster.
    pub endpoint_slices: Option<EndpointSlicesConfig>,
    /// Mutual TLS; may be left out only where all engines are static and on loopback addresses.
    pub tls: Option<EngineTlsConfig>,
}

/// One engine.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineAddressConfig {
    /// Its gRPC port.
    pub address: SocketAddr,
}

/// A name that resolves to all engines.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DnsConfig {
    /// The name.
    pub name: String,
    /// Engines' gRPC port.
    pub port: NonZeroU16,
    /// How often it's resolved, in seconds.
    #[serde(default = "default_interval")]
    #[schemars(range(min = 1, max = 3600))]
    pub interval_seconds: u32,
}

/// A service of the cluster.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointSlicesConfig {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub service: String,
    /// Engines' gRPC port.
    pub port: NonZeroU16,
}

/// Mutual TLS towards engines.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineTlsConfig {
    /// PEM file of the authorities of engines' certificates.
    pub authorities: PathBuf,
    /// PEM file of the gateway's certificate.
    pub certificate: PathBuf,
    /// PEM file of its key.
    pub key: PathBuf,
    /// Names of which an engine's certificate must carry one.
    pub names: CertificateNames,
}

/// A revision of the model. Engines of a revision that isn't in the list get requests while no engine of a listed one can be used; without a
/// list each revision gets its part by its engines.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevisionConfig {
    /// Its name, as its engines report it.
    pub name: String,
    /// Its part of the requests; 0 for none.
    pub weight: u32,
}

/// How an engine is chosen.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoutingConfig {
    /// The policy.
    #[serde(default)]
    pub policy: RoutingPolicyConfig,
    /// The request header that names a session; left out: x-session-id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_header: Option<String>,
    /// Characters at a prompt's beginning that count for the choice by what engines have cached: Unicode scalar values of the text that the
    /// prompt's tokens stand for, special tokens with their text. Blocks of tokens that go beyond them aren't looked up. Left out: the whole
    /// prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_chars: Option<NonZeroU32>,
    /// Most blocks in the prefix index, counted once for each engine that holds them; 30 bytes each at most.
    #[serde(default = "default_index")]
    pub max_index_blocks: NonZeroU32,
    /// Longest wait for a connection, in milliseconds.
    #[serde(default = "default_connect")]
    #[schemars(range(min = 1, max = 60000))]
    pub connect_timeout_millis: u32,
    /// Longest wait for the first token, in seconds.
    #[serde(default = "default_first_token")]
    #[schemars(range(min = 1, max = 3600))]
    pub first_token_timeout_seconds: u32,
    /// Longest wait for each token after the first, in seconds: a request whose engine stands still ends with an error then.
    #[serde(
        default = "default_inter_token",
        skip_serializing_if = "is_default_inter_token"
    )]
    #[schemars(range(min = 1, max = 3600))]
    pub inter_token_timeout_seconds: u32,
    /// Engines that one request may be sent to, as long as none has begun to answer.
    #[serde(default = "default_attempts")]
    #[schemars(range(min = 1, max = 10))]
    pub max_attempts: u32,
}

/// A policy.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum RoutingPolicyConfig {
    /// Least work, with what the engine has cached.
    #[default]
    PrefixAware,
    /// Least part of KV blocks in use.
    LeastKV,
    /// Fewest requests.
    LeastRequests,
    /// The one with fewer requests of two drawn by chance.
    PowerOfTwoChoices,
    /// One after the other.
    RoundRobin,
    /// By session.
    Session,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self {
            policy: RoutingPolicyConfig::PrefixAware,
            session_header: None,
            prefix_chars: None,
            max_index_blocks: default_index(),
            connect_timeout_millis: default_connect(),
            first_token_timeout_seconds: default_first_token(),
            inter_token_timeout_seconds: default_inter_token(),
            max_attempts: default_attempts(),
        }
    }
}

fn default_interval() -> u32 {
    5
}

fn default_index() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(9_999_999)
}

fn default_connect() -> u32 {
    1000
}

fn default_first_token() -> u32 {
    120
}

fn default_inter_token() -> u32 {
    60
}

/// A gateway of the version before, which knows no such field, can still read what the operator writes.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_default_inter_token(seconds: &u32) -> bool {
    *seconds == default_inter_token()
}

fn default_attempts() -> u32 {
    3
}
