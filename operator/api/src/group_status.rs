//! What is known of one engine group, and what recovery must remember of it.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::time;

/// One engine group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// Number in names.
    ///
    /// Number in the names of the group's objects. Ids of deleted groups are used again after a rest.
    pub id: i32,
    /// Revision of its pods.
    pub revision: String,
    /// Its state.
    ///
    /// Pending, Starting, Ready, Draining, Recovering, Exhausted or Lost.
    pub state: GroupState,
    /// Pods that are ready.
    pub ready_pods: i32,
    /// All its pods.
    pub pods: i32,
    /// Pod of rank 0.
    pub leader_pod: String,
    /// The leader's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// KV blocks in use, in permille.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_usage_permille: Option<i32>,
    /// Requests that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_requests: Option<i32>,
    /// Restarts in the window.
    ///
    /// Restarts of the whole group by the operator within the window.
    pub restarts: i32,
    /// Window's begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub window_started_at: Option<Time>,
    /// Its last restart.
    ///
    /// When the group was last restarted as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub restarted_at: Option<Time>,
    /// Incomplete since.
    ///
    /// When the group became incomplete, for the time it has to form again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub unready_since: Option<Time>,
    /// Pods placed since.
    ///
    /// When the last of its pods had a node and an image: time to form runs from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub placed_since: Option<Time>,
    /// First ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub ready_since: Option<Time>,
    /// Its node evicts since.
    ///
    /// When a node under it was cordoned or began to evict; a replacement is started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub evacuating_since: Option<Time>,
    /// The rank that failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<RankFailure>,
    /// Takes no new requests.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Draining since.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub draining_since: Option<Time>,
    /// Pods as last seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic"))]
    pub seen: Vec<SeenPod>,
}

/// State of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum GroupState {
    /// Pods don't all exist or aren't scheduled.
    #[default]
    Pending,
    /// Pods run; ranks join, load and test.
    Starting,
    /// Serves.
    Ready,
    /// Takes no new requests.
    Draining,
    /// Lost a rank; forms again or is restarted.
    Recovering,
    /// Has used up its restarts and stays for inspection.
    Exhausted,
    /// Its node doesn't answer.
    Lost,
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a rank failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RankFailure {
    /// First rank of the pod.
    pub rank: i32,
    /// The pod.
    pub pod: String,
    /// Reason, as OOMKilled.
    ///
    /// Reason that Kubernetes gives, for example Error or OOMKilled.
    pub reason: String,
    /// Exit code of the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Last line of its log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// Ended at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub time: Option<Time>,
}

/// A pod as last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SeenPod {
    /// Its ordinal within the group.
    pub ordinal: i32,
    /// Its uid.
    pub uid: String,
    /// Its restarts.
    pub restarts: i32,
}
