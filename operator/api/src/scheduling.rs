//! Where engine pods may run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// Where engine pods may run. A change replaces all groups under spec.rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingSpec {
    /// Labels that a node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub tolerations: Vec<Toleration>,
    /// PriorityClass of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Scheduler of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
    /// RuntimeClass of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// Spreads groups. Counts the first pod of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        extend(
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["topologyKey", "whenUnsatisfiable"]
        )
    )]
    pub topology_spread_constraints: Vec<SpreadConstraint>,
    /// Only None is built.
    pub gang: Gang,
}

/// A taint that pods tolerate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::TOLERATION.json()))]
pub struct Toleration {
    /// Key of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub key: Option<String>,
    /// How the value is compared.
    pub operator: TolerationOperator,
    /// Value of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long pods stay; for ever if left out.
    ///
    /// How long a pod stays on a node that gains the taint; for ever if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub toleration_seconds: Option<i64>,
}

/// How a toleration compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// Key and value are the taint's.
    #[default]
    Equal,
    /// The key is the taint's.
    Exists,
}

/// What a taint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// New pods stay away.
    NoSchedule,
    /// New pods stay away where they can.
    PreferNoSchedule,
    /// Running pods are evicted.
    NoExecute,
}

/// Spreads groups over the values of a node label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpreadConstraint {
    /// Node label.
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: String,
    /// Largest difference between values.
    ///
    /// Largest difference between the fullest and the emptiest value.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_skew: i32,
    /// What happens when it can't be kept.
    ///
    /// DoNotSchedule leaves a pod pending, ScheduleAnyway only prefers.
    #[serde(default)]
    pub when_unsatisfiable: WhenUnsatisfiable,
}

fn one() -> i32 {
    1
}

/// What happens when a spread can't be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenUnsatisfiable {
    /// The pod stays pending.
    #[default]
    DoNotSchedule,
    /// The pod goes where the spread suffers least.
    ScheduleAnyway,
}

/// Who schedules a group's pods all or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Gang {
    /// Nobody: pods are scheduled one by one.
    #[default]
    None,
    /// The PodGroup of Kubernetes.
    PodGroup,
    /// Volcano's PodGroup.
    Volcano,
}
