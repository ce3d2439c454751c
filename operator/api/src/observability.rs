//! Metrics, alerts, traces and logs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Metrics, alerts, traces and logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservabilitySpec {
    /// Makes a PodMonitor.
    ///
    /// Where the cluster knows that kind.
    pub pod_monitor: bool,
    /// Makes a ServiceMonitor instead of the PodMonitor.
    ///
    /// Where the cluster knows that kind. Both would count everything twice.
    pub service_monitor: bool,
    /// Makes a PrometheusRule.
    ///
    /// Where the cluster knows that kind.
    pub rules: bool,
    /// Labels of these objects.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub labels: BTreeMap<String, String>,
    /// Spans of requests; none if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<TracingSpec>,
    /// Least severe message; of new pods.
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

/// Where the gateway sends a span for each request, in the client's own trace if it brings a traceparent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TracingSpec {
    /// OTLP collector (gRPC). network.gatewayEgress must allow it.
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s@]+$"))]
    pub endpoint: String,
    /// Share of new traces.
    ///
    /// Requests out of a hundred that begin a trace; those in a client's trace are recorded as the client says.
    #[serde(default = "hundred")]
    #[schemars(range(min = 1, max = 100))]
    pub sample_percent: i32,
}

fn hundred() -> i32 {
    100
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
