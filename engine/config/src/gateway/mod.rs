//! The gateway's configuration: one YAML file.
//!
//! [`parse_gateway`] reads a text and checks everything that can be checked without other files and hosts. It reports all faults of a
//! readable file at once, each with the path of its field. What comes out is complete: names of tenants resolve, numbers are in range,
//! and secrets are only ever named by their files.

mod auth;
mod check;
mod check_models;
mod engines;
mod fault;
mod file;
mod model;
mod numbers;
mod text;

pub use auth::{
    AnonymousConfig, ApiKeyConfig, ApiKeysConfig, ApiServerConfig, AuthConfig, CertificateConfig,
    ClaimConfig, JwksConfig, JwtConfig, ReviewRuleConfig, TokenReviewConfig,
};
pub use check_models::MAX_MODELS;
pub use engines::{
    DnsConfig, EndpointSlicesConfig, EngineAddressConfig, EngineTlsConfig, EnginesConfig, RevisionConfig,
    RoutingConfig, RoutingPolicyConfig,
};
pub use fault::{Fault, GatewayFaults};
pub use file::{
    CacheSaltConfig, GatewayConfig, GatewayLimitsConfig, LimitStoreConfig, ScopeConfig, ServerTlsConfig,
    TenantConfig, TenantLimitsConfig, TracingConfig, WaitingConfig,
};
pub use model::ModelConfig;
pub use text::{CertificateName, Names};

use crate::yaml::check_yaml;

/// Longest file, in bytes: what a ConfigMap of Kubernetes holds. A thousand tenants take a third of it.
pub const MAX_GATEWAY_FILE_BYTES: usize = 1 << 20;

/// Reads and checks a gateway's configuration.
///
/// # Errors
/// All faults that could be found, at least one.
pub fn parse_gateway(yaml: &str) -> Result<GatewayConfig, GatewayFaults> {
    let whole = |message: String| GatewayFaults(vec![Fault::new("", message)]);
    if yaml.len() > MAX_GATEWAY_FILE_BYTES {
        return Err(whole(format!(
            "{} bytes are more than {MAX_GATEWAY_FILE_BYTES}; keys may be in files of their own, under auth.apiKeys.files",
            yaml.len()
        )));
    }
    check_yaml(yaml).map_err(|refusal| whole(refusal.to_string()))?;
    let deserializer = serde_yaml::Deserializer::from_str(yaml);
    let config: GatewayConfig = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let fault = Fault::of_parser(&error.path().to_string(), &error.inner().to_string());
        GatewayFaults(vec![fault])
    })?;
    let faults = check::faults(&config);
    if faults.is_empty() {
        Ok(config)
    } else {
        Err(GatewayFaults(faults))
    }
}

/// Writes a configuration as [`parse_gateway`] reads it: JSON, which is YAML too, without what is left out.
#[expect(
    clippy::missing_panics_doc,
    reason = "a configuration is plain data and always serializes"
)]
pub fn write_gateway(config: &GatewayConfig) -> String {
    let mut value = serde_json::to_value(config).expect("a configuration is plain data");
    drop_nulls(&mut value);
    value.to_string()
}

fn drop_nulls(value: &mut serde_json::Value) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, inner| !inner.is_null());
        map.values_mut().for_each(drop_nulls);
    }
    if let Some(items) = value.as_array_mut() {
        items.iter_mut().for_each(drop_nulls);
    }
}

/// The JSON Schema of the file, for editors and for the operator's tests.
pub fn gateway_schema() -> serde_json::Value {
    schemars::schema_for!(GatewayConfig).to_value()
}

#[cfg(test)]
mod tests;
