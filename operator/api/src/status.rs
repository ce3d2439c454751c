//! What the operator reports. Lists and messages are bounded, so that a status stays well below 100 KB.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::time;
use crate::condition::{ConditionType, conditions};
use crate::group_status::GroupStatus;
use crate::network::NetworkMode;

/// Longest message in a condition, an event or a group, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1024;

/// What the operator observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InferenceServiceStatus {
    /// Generation that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The parts' states. Ready is the summary; kubectl wait --for=condition=Ready uses it.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Groups that exist.
    pub replicas: i32,
    /// Groups that are loaded and tested.
    pub ready_replicas: i32,
    /// Groups of the update revision.
    pub updated_replicas: i32,
    /// Groups that take requests.
    pub available_replicas: i32,
    /// Selector of the leading pods.
    ///
    /// Label selector of the groups' leading pods, one per group, for autoscalers.
    pub selector: String,
    /// Revision before the rollout.
    ///
    /// Revision that groups had before the rollout under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// Revision of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,
    /// The last rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// The groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub groups: Vec<GroupStatus>,
    /// Ids that rest before reuse.
    ///
    /// Ids of deleted groups that rest before they are used again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub resting_ids: Vec<RestingId>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelStatus>,
    /// The entrance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayStatus>,
    /// Load and scaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingStatus>,
    /// Network policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStatus>,
    /// What runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions: Option<VersionStatus>,
    /// The last accepted spec, as JSON.
    ///
    /// The last spec that was accepted, as JSON: while a newer one is refused, what runs follows this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub accepted_spec: Option<String>,
    /// Digest of the objects as written.
    ///
    /// Digest of all objects as they were when nothing was left to do, so that a restarted operator needn't write them
    /// again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub applied: Option<String>,
}

impl InferenceServiceStatus {
    /// What is said about one part.
    pub fn condition(&self, part: ConditionType) -> Option<&Condition> {
        self.conditions
            .iter()
            .find(|condition| condition.type_ == part.as_str())
    }
}

/// A rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub started_at: Option<Time>,
    /// When it last progressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub progressed_at: Option<Time>,
    /// When the canary began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub canary_since: Option<Time>,
    /// The canary was passed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub promoted: bool,
    /// Revision that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_revision: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The id of a deleted group. Policies, certificates and caches of the old group must be gone before it is used again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestingId {
    /// The id.
    pub id: i32,
    /// When its last pod was gone.
    ///
    /// When the last of its pods was seen to be gone; absent while one lingers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub since: Option<Time>,
}

/// The model that is served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelStatus {
    /// Model id that clients use.
    pub name: String,
    /// Digest of the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_digest: Option<String>,
    /// Bytes of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<i64>,
    /// Last time to load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_load_seconds: Option<i32>,
}

/// The entrance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayStatus {
    /// URL for clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// URL within the cluster.
    #[serde(rename = "internalURL", skip_serializing_if = "Option::is_none")]
    pub internal_url: Option<String>,
    /// Ready gateway pods.
    pub ready_replicas: i32,
}

/// Load and the decisions made from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalingStatus {
    /// Who scales.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<String>,
    /// KV blocks in use, in permille.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_usage_permille: Option<i32>,
    /// Requests that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<i32>,
    /// Groups asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
    /// Last decisions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5), extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<ScalingDecision>,
}

/// One scaling decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingDecision {
    /// When.
    #[schemars(schema_with = "time")]
    pub time: Time,
    /// Groups before.
    pub from: i32,
    /// Groups after.
    pub to: i32,
    /// Why.
    #[schemars(length(max = 256))]
    pub reason: String,
}

/// Network policies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkStatus {
    /// Policies that exist.
    pub policies: i32,
    /// Mode in force.
    pub mode: NetworkMode,
}

/// What runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VersionStatus {
    /// The operator's version.
    pub operator: String,
    /// Engine image.
    pub engine_image: String,
}
