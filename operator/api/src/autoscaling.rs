//! How the number of groups follows the load.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::Quantity;
use crate::rules;

/// How the number of groups follows the load. Not built yet: refused with Accepted=False/Unsupported unless mode is Off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::AUTOSCALING.json()))]
pub struct AutoscalingSpec {
    /// Who scales.
    #[serde(default)]
    pub mode: AutoscalingMode,
    /// Fewest groups.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: i32,
    /// Most groups.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// Signals; the largest answer wins.
    #[serde(default = "default_metrics")]
    #[schemars(length(max = 5), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub metrics: Vec<MetricTarget>,
    /// How fast the number changes.
    #[serde(default)]
    pub behavior: ScalingBehavior,
    /// Stops idle services.
    #[serde(default)]
    pub scale_to_zero: ScaleToZero,
}

/// Who scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AutoscalingMode {
    /// Nobody: spec.replicas is yours.
    Off,
    /// A HorizontalPodAutoscaler on the operator's metrics API.
    HPA,
    /// A KEDA ScaledObject on the operator's external scaler.
    KEDA,
    /// The operator itself.
    #[default]
    Internal,
}

/// One signal and the value it should have per group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricTarget {
    /// The signal.
    ///
    /// KVUsage (share of blocks in use), QueueDepth, RunningRequests or TimeToFirstTokenP95 (seconds).
    pub r#type: MetricType,
    /// Average per group, for example 700m.
    ///
    /// Average per group to aim at, for example 700m for 70 % of the blocks.
    pub target_average: Quantity,
}

/// A scaling signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MetricType {
    /// KV blocks that running requests use, as a share of all. Idle cached blocks don't count.
    KVUsage,
    /// Requests that wait.
    QueueDepth,
    /// Requests that run.
    RunningRequests,
    /// 95th percentile of the time to the first token in seconds.
    TimeToFirstTokenP95,
}

/// How fast the number of groups changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingBehavior {
    /// Adding groups.
    pub scale_up: ScalingRules,
    /// Removing groups.
    pub scale_down: ScalingRules,
    /// Tolerated distance from the target.
    pub tolerance: Quantity,
}

impl Default for ScalingBehavior {
    fn default() -> Self {
        Self {
            scale_up: ScalingRules {
                stabilization_window_seconds: 0,
                max_groups: 4,
                period_seconds: 60,
            },
            scale_down: ScalingRules::default(),
            tolerance: Quantity("100m".to_owned()),
        }
    }
}

/// A speed limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingRules {
    /// How long to be cautious.
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: i32,
    /// Most groups per period.
    #[schemars(range(min = 1, max = 1000))]
    pub max_groups: i32,
    /// Length of the period.
    #[schemars(range(min = 1, max = 1800))]
    pub period_seconds: i32,
}

impl Default for ScalingRules {
    fn default() -> Self {
        Self {
            stabilization_window_seconds: 600,
            max_groups: 1,
            period_seconds: 120,
        }
    }
}

/// Stops all groups when nobody asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaleToZero {
    /// Switches it on.
    pub enabled: bool,
    /// Idle time before the last group stops.
    #[schemars(range(min = 10, max = 604_800))]
    pub idle_seconds: i32,
    /// How long requests wait for a start.
    #[schemars(range(min = 1, max = 3600))]
    pub hold_seconds: i32,
}

impl Default for ScaleToZero {
    fn default() -> Self {
        Self {
            enabled: false,
            idle_seconds: 900,
            hold_seconds: 600,
        }
    }
}

fn one() -> i32 {
    1
}

fn default_metrics() -> Vec<MetricTarget> {
    let target = |r#type, value: &str| MetricTarget {
        r#type,
        target_average: Quantity(value.to_owned()),
    };
    vec![
        target(MetricType::KVUsage, "700m"),
        target(MetricType::QueueDepth, "2"),
    ]
}
