//! The gateway's configuration: one YAML file.
//!
//! [`parse_gateway`] reads a text and checks everything that can be checked without other files and hosts. It reports all faults of a
//! readable file at once, each with the path of its field. What comes out is complete: names of tenants resolve, numbers are in range,
//! and secrets are only ever named by their files.

mod auth;
mod check;
mod engines;
mod file;
mod text;

use std::fmt;

pub use auth::{
    AnonymousConfig, ApiKeyConfig, ApiKeysConfig, AuthConfig, CertificateConfig, ClaimConfig, JwksConfig,
    JwtConfig, ReviewRuleConfig, TokenReviewConfig,
};
pub use engines::{
    DnsConfig, EndpointSlicesConfig, EngineAddressConfig, EngineTlsConfig, EnginesConfig, RevisionConfig,
    RoutingConfig, RoutingPolicyConfig,
};
pub use file::{
    CacheSaltConfig, GatewayConfig, GatewayLimitsConfig, LimitStoreConfig, ScopeConfig, ServerTlsConfig,
    TenantConfig, TenantLimitsConfig, WaitingConfig,
};
pub use text::{CertificateName, Names};

/// Longest file, in bytes: a thousand tenants take a tenth of it.
const MAX_FILE_BYTES: usize = 4 << 20;

/// Reads and checks a gateway's configuration.
///
/// # Errors
/// All faults that could be found, at least one.
pub fn parse_gateway(yaml: &str) -> Result<GatewayConfig, GatewayFaults> {
    if yaml.len() > MAX_FILE_BYTES {
        let message = format!("{} bytes are more than {MAX_FILE_BYTES}", yaml.len());
        return Err(GatewayFaults(vec![Fault::new("", message)]));
    }
    let deserializer = serde_yaml::Deserializer::from_str(yaml);
    let config: GatewayConfig = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = match error.path().to_string() {
            root if root == "." => String::new(),
            path => path,
        };
        GatewayFaults(vec![Fault::new(&path, error.inner().to_string())])
    })?;
    let faults = check::faults(&config);
    if faults.is_empty() {
        Ok(config)
    } else {
        Err(GatewayFaults(faults))
    }
}

/// The JSON Schema of the file, for editors and for the operator's tests.
pub fn gateway_schema() -> serde_json::Value {
    schemars::schema_for!(GatewayConfig).to_value()
}

/// Everything that is wrong with a file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub struct GatewayFaults(pub Vec<Fault>);

/// One thing that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// The field, as in `tenants[2].limits.concurrency`; empty for the whole file.
    pub path: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl Fault {
    pub(super) fn new(path: &str, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

impl fmt::Display for GatewayFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, fault) in self.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { "\n" };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
