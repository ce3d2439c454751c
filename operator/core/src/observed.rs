//! What was found in the cluster, as the decisions see it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use kvasir_operator_api::{InferenceServiceStatus, labels};
use serde_json::Value;

use crate::child::{Kind, Live, ObjectRef};
use crate::contest::Undone;
use crate::enforcement::Enforcement;
use crate::outcomes::Outcomes;

/// Name of the engine's container.
pub const ENGINE_CONTAINER: &str = "engine";

/// What was found for one service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Live objects that carry the service's label or a name that it uses.
    pub children: Vec<Live>,
    /// Pods with the service's label.
    pub pods: Vec<PodView>,
    /// Nodes, by name.
    pub nodes: BTreeMap<String, NodeView>,
    /// The digest of each child right after our last write of it. A child that isn't here is written once.
    pub written: BTreeMap<ObjectRef, Written>,
    /// Objects that were set back after somebody changed them.
    pub undone: BTreeMap<ObjectRef, Undone>,
    /// Load of each group, from its leader.
    pub loads: BTreeMap<i32, GroupLoad>,
    /// Objects that couldn't be written in the last round, and why.
    pub failed_writes: BTreeMap<ObjectRef, String>,
    /// Why pods of a group can't be created, where some are missing: a quota, or the namespace's pod security.
    pub refused_pods: BTreeMap<i32, String>,
    /// What is known about certificates.
    pub certificates: Option<CertificatesView>,
    /// What the operator found out about its network's policies; nothing if it hasn't tried since it started.
    pub enforcement: Option<Enforcement>,
    /// The status as it was last written.
    pub status: InferenceServiceStatus,
}

/// A child as our last write left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Uid of the object that was written.
    pub uid: String,
    /// Its digest in the API server's answer.
    pub digest: String,
}

/// Load of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupLoad {
    /// Requests that run.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// KV blocks in use, in permille.
    pub kv_usage_permille: u16,
    /// How requests ended lately: within the window of the canary's analysis.
    pub recent: Outcomes,
}

/// What is known about certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatesView {
    /// When the first of them ends.
    pub first_end: Timestamp,
    /// Pods' certificates that are missing.
    pub missing: usize,
    /// What is wrong with Secrets that somebody else fills, each with its field or object.
    pub problems: Vec<String>,
}

impl Observed {
    /// The live object of that kind and name.
    pub fn child(&self, kind: Kind, name: &str) -> Option<&Live> {
        self.children
            .iter()
            .find(|c| c.reference.kind == kind && c.reference.name == name)
    }

    /// Pods of one group, by ordinal.
    pub fn pods_of(&self, group: i32) -> Vec<&PodView> {
        let mut pods: Vec<_> = self.pods.iter().filter(|pod| pod.group == Some(group)).collect();
        pods.sort_by_key(|pod| (pod.ordinal, pod.name.clone()));
        pods
    }

    /// Ready pods of the gateway.
    pub fn ready_gateway_pods(&self) -> usize {
        self.pods
            .iter()
            .filter(|p| p.is_gateway && p.ready && !p.deleting)
            .count()
    }
}

/// A pod.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent fact about the pod"
)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The group it belongs to.
    pub group: Option<i32>,
    /// Its ordinal within the group.
    pub ordinal: i32,
    /// It belongs to the gateway.
    pub is_gateway: bool,
    /// The node it runs on.
    pub node: Option<String>,
    /// Its readiness condition is true.
    pub ready: bool,
    /// Its deletion has begun.
    pub deleting: bool,
    /// It has ended for good.
    pub finished: bool,
    /// Why it can't be scheduled.
    pub unschedulable: Option<String>,
    /// Why its engine doesn't run, as Kubernetes says: ImagePullBackOff, CrashLoopBackOff.
    pub waiting: Option<String>,
    /// The engine runs.
    pub running: bool,
    /// Restarts of the engine.
    pub restarts: i32,
    /// How the engine ended last.
    pub terminated: Option<Terminated>,
    /// It carries the label that opens its way to the model's source.
    pub loading: bool,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terminated {
    /// Its exit code.
    pub exit_code: i32,
    /// The reason that Kubernetes gives.
    pub reason: String,
    /// What it left in its termination message: the end of its log, if it left none itself.
    pub message: Option<String>,
    /// When.
    pub at: Option<Timestamp>,
}

impl Terminated {
    /// The last line of what it left: engines end their log with the cause. Of a structured line, the message in it.
    pub fn last_line(&self) -> Option<String> {
        let mut lines = self.message.as_deref()?.lines().map(str::trim);
        let last = lines.rfind(|line| !line.is_empty())?;
        let structured = serde_json::from_str::<Value>(last).ok();
        let text = structured
            .as_ref()
            .and_then(|line| line["message"].as_str())
            .unwrap_or(last);
        Some(text.strip_prefix("error: ").unwrap_or(text).to_owned())
    }
}

impl PodView {
    /// What matters of a pod.
    pub fn new(pod: &Pod) -> Self {
        let pod_labels = pod.metadata.labels.clone().unwrap_or_default();
        let status = pod.status.clone().unwrap_or_default();
        let condition = |kind: &str| status.conditions.iter().flatten().find(|c| c.type_ == kind);
        let engine = status
            .container_statuses
            .iter()
            .flatten()
            .find(|c| c.name == ENGINE_CONTAINER);
        let name = pod.metadata.name.clone().unwrap_or_default();
        let component = pod_labels.get(labels::COMPONENT).map(String::as_str);
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            group: pod_labels
                .get(labels::GROUP)
                .filter(|_| component == Some(labels::ENGINE))
                .and_then(|id| id.parse().ok()),
            ordinal: name
                .rsplit_once('-')
                .and_then(|(_, n)| n.parse().ok())
                .unwrap_or(0),
            is_gateway: component == Some(labels::GATEWAY),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            ready: condition("Ready").is_some_and(|c| c.status == "True"),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            finished: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")),
            unschedulable: condition("PodScheduled")
                .filter(|c| c.status == "False" && c.reason.as_deref() == Some("Unschedulable"))
                .map(|c| c.message.clone().unwrap_or_default()),
            waiting: engine.and_then(waiting_reason),
            running: engine.is_some_and(|c| c.state.as_ref().is_some_and(|s| s.running.is_some())),
            restarts: engine.map_or(0, |c| c.restart_count),
            terminated: engine.and_then(terminated),
            loading: pod_labels.contains_key(labels::LOADING),
            name,
        }
    }

    /// Its engine has ended with an error, at least once.
    pub fn has_failed(&self) -> bool {
        self.finished || self.restarts > 0 || self.terminated.is_some()
    }
}

fn waiting_reason(status: &ContainerStatus) -> Option<String> {
    status.state.as_ref()?.waiting.as_ref()?.reason.clone()
}

/// The last end: of the present run if it is over, of the one before otherwise.
fn terminated(status: &ContainerStatus) -> Option<Terminated> {
    let now = status.state.as_ref().and_then(|s| s.terminated.as_ref());
    let before = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    now.or(before).map(|t| Terminated {
        exit_code: t.exit_code,
        reason: t.reason.clone().unwrap_or_default(),
        message: t.message.clone(),
        at: t.finished_at.as_ref().map(|time| time.0),
    })
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// It takes no new pods.
    pub cordoned: bool,
    /// It evicts pods.
    pub no_execute: bool,
    /// Since when it doesn't answer.
    pub not_ready_since: Option<Timestamp>,
}

impl NodeView {
    /// What matters of a node.
    pub fn new(node: &Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let ready = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref()?.iter().find(|c| c.type_ == "Ready"));
        // The node lifecycle controller's own taints say that the node doesn't answer: that is judged by its condition.
        let own = |key: &str| key.starts_with("node.kubernetes.io/");
        Self {
            cordoned: spec.unschedulable.unwrap_or_default(),
            no_execute: spec
                .taints
                .iter()
                .flatten()
                .any(|t| t.effect == "NoExecute" && !own(&t.key)),
            not_ready_since: ready
                .filter(|c| c.status != "True")
                .and_then(|c| c.last_transition_time.as_ref().map(|time| time.0)),
        }
    }

    /// Its pods should go elsewhere while they still run.
    pub fn is_leaving(&self) -> bool {
        self.cordoned || self.no_execute
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_line(message: &str) -> Option<String> {
        let ended = Terminated {
            message: Some(message.to_owned()),
            ..Terminated::default()
        };
        ended.last_line()
    }

    #[test]
    fn the_cause_is_the_last_line_of_what_a_process_left() {
        assert_eq!(
            last_line("loading\nerror: no space left for /cache/m\n\n").as_deref(),
            Some("no space left for /cache/m")
        );
        assert_eq!(
            last_line("{\"level\":\"ERROR\",\"message\":\"the scheduler crashed\"}").as_deref(),
            Some("the scheduler crashed")
        );
        assert_eq!(last_line(" \n"), None);
        assert_eq!(last_line("{}").as_deref(), Some("{}"));
    }
}
