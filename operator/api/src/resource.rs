//! The resource itself.
#![allow(
    clippy::duplicated_attributes,
    reason = "each printed column has a type of its own, and some are the same"
)]

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::accelerator::AcceleratorSpec;
use crate::autoscaling::AutoscalingSpec;
use crate::common::Unbuilt;
use crate::engine::EngineSpec;
use crate::gateway::GatewaySpec;
use crate::model::ModelSpec;
use crate::network::{NetworkSpec, TlsSpec};
use crate::observability::ObservabilitySpec;
use crate::rollout::{DisruptionSpec, RestartPolicySpec, RolloutSpec};
use crate::rules;
use crate::scheduling::SchedulingSpec;
use crate::status::InferenceServiceStatus;
use crate::storage::StorageSpec;
use crate::topology::TopologySpec;

/// What is wanted. What to serve, on how many groups, for whom.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kvasir.dev",
    version = "v1alpha1",
    kind = "InferenceService",
    plural = "inferenceservices",
    shortname = "kis",
    category = "kvasir",
    category = "inference",
    namespaced,
    status = "InferenceServiceStatus",
    derive = "PartialEq",
    doc = "A language model, served by groups of engine pods behind a gateway.",
    crates(kube_core = "::kube_core"),
    selectable = ".spec.model.name",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Model", type_ = "string", json_path = ".status.model.name"),
    printcolumn(name = "Groups", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Ready-Groups", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(
        name = "KV",
        type_ = "integer",
        json_path = ".status.autoscaling.kvUsagePermille",
        description = "KV blocks in use, in permille"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "TP",
        type_ = "integer",
        json_path = ".spec.topology.tensor",
        priority = 1
    ),
    printcolumn(
        name = "PP",
        type_ = "integer",
        json_path = ".spec.topology.pipeline",
        priority = 1
    ),
    printcolumn(
        name = "DP",
        type_ = "integer",
        json_path = ".spec.topology.data",
        priority = 1
    ),
    printcolumn(
        name = "Revision",
        type_ = "string",
        json_path = ".status.updateRevision",
        priority = 1
    ),
    printcolumn(
        name = "URL",
        type_ = "string",
        json_path = ".status.gateway.url",
        priority = 1
    ),
    printcolumn(
        name = "Image",
        type_ = "string",
        json_path = ".status.versions.engineImage",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::SPEC.json()))]
pub struct InferenceServiceSpec {
    /// Engine groups. Each holds the whole model; kubectl scale and autoscalers change this number.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// Stops all groups.
    #[serde(default)]
    pub suspend: bool,
    /// Any change replaces all groups. By convention the time of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub restarted_at: Option<String>,
    /// The model that is served.
    pub model: ModelSpec,
    /// The engine containers.
    #[serde(default)]
    pub engine: EngineSpec,
    /// The device of each rank.
    #[serde(default)]
    pub accelerator: AcceleratorSpec,
    /// Ranks of a group.
    ///
    /// How a group's ranks divide the model and lie in pods.
    #[serde(default)]
    pub topology: TopologySpec,
    /// Where engine pods may run.
    #[serde(default)]
    pub scheduling: SchedulingSpec,
    /// Strategic merge patch over engine pods. What the operator owns (labels, ports, security
    /// contexts, service account token, host namespaces, rendezvous) is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true, "maxProperties" = 32))]
    pub pod_overrides: Option<Map<String, Value>>,
    /// Scaling by load (not built).
    ///
    /// How the number of groups follows the load; it doesn't if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingSpec>,
    /// How groups are replaced.
    #[serde(default)]
    pub rollout: RolloutSpec,
    /// Restarts of broken groups.
    #[serde(default)]
    pub restart_policy: RestartPolicySpec,
    /// How groups leave.
    #[serde(default)]
    pub disruption: DisruptionSpec,
    /// The service's entrance.
    #[serde(default)]
    pub gateway: GatewaySpec,
    /// Who may connect to what.
    #[serde(default)]
    pub network: NetworkSpec,
    /// Certificates of all connections.
    ///
    /// Certificates between client, gateway, engines and operator.
    #[serde(default)]
    pub tls: TlsSpec,
    /// Volumes of the engine pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
    /// Metrics, alerts and logs.
    #[serde(default)]
    pub observability: ObservabilitySpec,
    /// Service account of engine pods. Its token is never mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Owner for reports; immutable.
    ///
    /// Who owns the service, for quotas and reports; the namespace if left out. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub tenant: Option<String>,
    /// Prefill and decode groups (not built).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2), extend("x-kubernetes-list-type" = "atomic"))]
    pub roles: Option<Vec<Unbuilt>>,
}

fn one() -> i32 {
    1
}
