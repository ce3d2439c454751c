//! Metrics, alerts, traces and logs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Metrics, alerts, traces and logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservabilitySpec {
    /// Makes a PodMonitor where the cluster knows that kind.
    pub pod_monitor: bool,
    /// Makes a ServiceMonitor where the cluster knows that kind. Not built yet: refused with Accepted=False/Unsupported.
    pub service_monitor: bool,
    /// Makes a PrometheusRule where the cluster knows that kind. Not built yet: refused with Accepted=False/Unsupported.
    pub rules: bool,
    /// Labels of these objects, by which a Prometheus selects them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub labels: BTreeMap<String, String>,
    /// Spans over OTLP. Not built yet: refused with Accepted=False/Unsupported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<TracingSpec>,
    /// Least severe message: trace, debug, info, warn or error.
    pub log_level: LogLevel,
}

impl Default for ObservabilitySpec {
    fn default() -> Self {
        Self {
            pod_monitor: true,
            service_monitor: false,
            rules: false,
            labels: BTreeMap::new(),
            tracing: None,
            log_level: LogLevel::default(),
        }
    }
}

/// Spans over OTLP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TracingSpec {
    /// Address of the collector, with scheme and port.
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s]+$"))]
    pub endpoint: String,
    /// Share of the requests that are traced, in percent.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 100))]
    pub sample_percent: i32,
}

fn one() -> i32 {
    1
}

/// Least severe message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Everything.
    Trace,
    /// Details.
    Debug,
    /// What happens.
    #[default]
    Info,
    /// What may become a problem.
    Warn,
    /// What is one.
    Error,
}
