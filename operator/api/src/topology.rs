//! How a group's ranks divide the model and lie in pods.
//!
//! A group is `data * pipeline * tensor` ranks that together hold one copy of the model (or `data` coupled copies). Ranks
//! are numbered data-major, `r = (dp * pipeline + pp) * tensor + tp`; rank `r` runs in pod `r / devicesPerPod` of its group
//! on that pod's device `r % devicesPerPod`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// How a group's ranks divide the model and lie in pods. A change replaces whole groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::TOPOLOGY.json()))]
pub struct TopologySpec {
    /// Ranks that share each layer.
    #[schemars(range(min = 1, max = 64))]
    pub tensor: i32,
    /// Stages of layers.
    #[schemars(range(min = 1, max = 64))]
    pub pipeline: i32,
    /// Coupled copies in a group. Independent copies are spec.replicas.
    #[schemars(range(min = 1, max = 256))]
    pub data: i32,
    /// Ranks in each pod. Pods of a group: tensor * pipeline * data / devicesPerPod.
    #[schemars(range(min = 1, max = 16))]
    pub devices_per_pod: i32,
    /// Divides experts (not built).
    pub expert_parallel: bool,
    /// Keeps a group together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementSpec>,
}

impl Default for TopologySpec {
    fn default() -> Self {
        Self {
            tensor: 1,
            pipeline: 1,
            data: 1,
            devices_per_pod: 1,
            expert_parallel: false,
            placement: None,
        }
    }
}

/// Keeps a group's pods near each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementSpec {
    /// Node label that a group shares.
    ///
    /// Node label whose value all pods of a group share, for example topology.kubernetes.io/rack.
    #[schemars(length(min = 1, max = 317))]
    pub pack_topology_key: String,
    /// Pods that don't fit stay pending.
    ///
    /// A pod that doesn't fit stays pending (true) or goes elsewhere (false).
    #[serde(default = "yes")]
    pub required: bool,
    /// One group per value of the key.
    #[serde(default)]
    pub exclusive: bool,
}

fn yes() -> bool {
    true
}
