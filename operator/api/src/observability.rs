//! Metrics, alerts, traces and logs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::Unbuilt;

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
    /// Spans over OTLP (not built).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Unbuilt>,
    /// Least severe message.
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
