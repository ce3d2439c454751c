//! What was found in the cluster, as the decisions see it.

mod owners;
mod pod;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kvasir_operator_api::{InferenceServiceStatus, labels};

use crate::build::route::{self, Taken};
use crate::child::{Kind, Live, ObjectRef};
use crate::contest::Undone;
use crate::enforcement::Enforcement;
use crate::outcomes::Outcomes;
use crate::validate::Validated;

pub use owners::{Controller, Owners, Whose, is_named_for};
pub use pod::{PodView, Terminated};

/// Taint of a node that somebody has found to be off. Kubernetes itself deletes such a node's pods for good then, which nobody else may do:
/// a node that only doesn't answer may still run them (Kubernetes, "Non-graceful node shutdown handling").
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Name of the engine's container.
pub const ENGINE_CONTAINER: &str = "engine";
/// Name of the gateway's container.
pub const GATEWAY_CONTAINER: &str = "gateway";
/// Name of the container that brings the program that copies a model out of its image.
pub const COPIER_CONTAINER: &str = "copier";
/// Name of the container of a model's image.
pub const MODEL_CONTAINER: &str = "model";

/// What was found for one service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Live objects that carry the service's label or a name that it uses.
    pub children: Vec<Live>,
    /// Pods of the service's groups and of its gateway.
    pub pods: Vec<PodView>,
    /// Pods with the service's labels whose group or gateway is gone: they end.
    pub left_pods: Vec<PodView>,
    /// Pods with the service's labels that are somebody else's.
    pub foreign_pods: Vec<PodView>,
    /// Nodes, by name.
    pub nodes: BTreeMap<String, NodeView>,
    /// The digest of each child right after our last write of it. A child that isn't here is written once.
    pub written: BTreeMap<ObjectRef, Written>,
    /// Objects that were set back after somebody changed them.
    pub undone: BTreeMap<ObjectRef, Undone>,
    /// Load of each group, from its leader.
    pub loads: BTreeMap<i32, GroupLoad>,
    /// Objects that couldn't be written in the last round, and why.
    pub failed_writes: BTreeMap<ObjectRef, FailedWrite>,
    /// Why pods of a group can't be created, where some are missing: a quota, or the namespace's pod security.
    pub refused_pods: BTreeMap<i32, String>,
    /// What is known about certificates.
    pub certificates: Option<CertificatesView>,
    /// How far the service is on its way from one authority to another.
    pub handover: HandoverView,
    /// The authorities that vouch for the gateway's certificate, as PEM, once there is one.
    pub trust: Option<String>,
    /// What the operator found out about its network's policies; nothing if it hasn't tried since it started.
    pub enforcement: Option<Enforcement>,
    /// The gateway of the service whose gateway serves this one.
    pub host: Option<HostView>,
    /// The status as it was last written.
    pub status: InferenceServiceStatus,
}

/// Another service's gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Its ready pods.
    pub ready_pods: usize,
    /// Its configuration lists this service.
    pub lists_us: bool,
    /// The kubelets of all ready pods have been told of that configuration.
    pub is_told: bool,
    /// What Gateways say about its route.
    pub route: Taken,
}

impl HostView {
    /// What was found around `host`, as its guest called `guest` sees it. What an earlier service of the host's name left isn't the host's.
    pub fn new(
        host: &Validated,
        guest: &str,
        children: Vec<Live>,
        pods: impl IntoIterator<Item = PodView>,
    ) -> Self {
        let seen = Observed::around(host, children, pods);
        Self {
            ready_pods: seen.ready_gateway_pods(),
            lists_us: seen.listed(host).any(|name| name == guest),
            is_told: seen.is_told(host),
            route: route::taken(host, &seen),
        }
    }
}

/// Why an object couldn't be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedWrite {
    /// It is somebody else's, and wasn't tried.
    pub foreign: bool,
    /// The status of the API server's answer (HTTP); nothing where there was none.
    pub code: Option<u16>,
    /// What it said, or what happened instead.
    pub why: String,
}

/// A child as our last write left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Uid of the object that was written.
    pub uid: String,
    /// Its digest in the API server's answer.
    pub digest: String,
}

/// What is said of a group that can't have its pod because another one has its name.
pub fn foreign_pod(name: &str, owner: &str) -> String {
    format!(
        "pod {name} exists and {FOREIGN_POD} (its owner: {owner}): delete it or give the service another name"
    )
}

/// Part of what is said of such a group.
pub(crate) const FOREIGN_POD: &str = "belongs to somebody else";

/// Load of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupLoad {
    /// Requests that run.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// KV blocks in use, in permille.
    pub kv_usage_permille: u16,
    /// Bytes of the weights that the engine has loaded; 0 if it didn't say.
    pub model_bytes: u64,
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

/// How far a service is on its way from one authority to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandoverView {
    /// What certificates by a new authority wait for.
    pub waiting: Option<Waiting>,
    /// Groups whose certificate not every pod believes yet, and when every one will.
    pub joins: BTreeMap<i32, Timestamp>,
    /// A certificate by an authority of the operator's own is in use, whatever the mode is by now.
    pub needs_authority: bool,
}

/// What certificates by a new authority wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiting {
    /// Kubelets bring Secrets to pods until then.
    Until(Timestamp),
    /// The authority isn't in every Secret yet.
    Secrets,
}

impl Observed {
    /// No more than these objects and pods.
    pub fn around(service: &Validated, children: Vec<Live>, pods: impl IntoIterator<Item = PodView>) -> Self {
        let seen = Self {
            children,
            ..Self::default()
        };
        seen.with_pods(&service.names, &service.uid, pods)
    }

    /// The live object of that kind and name.
    pub fn child(&self, kind: Kind, name: &str) -> Option<&Live> {
        self.children
            .iter()
            .find(|c| c.reference.kind == kind && c.reference.name == name)
    }

    /// The same if it is the service's.
    pub fn own_child(&self, service: &Validated, kind: Kind, name: &str) -> Option<&Live> {
        self.child(kind, name)
            .filter(|live| live.is_owned_by(&service.uid))
    }

    /// Pods of one group, by ordinal.
    pub fn pods_of(&self, group: i32) -> Vec<&PodView> {
        let mut pods: Vec<_> = self.pods.iter().filter(|pod| pod.group == Some(group)).collect();
        pods.sort_by_key(|pod| (pod.ordinal, pod.name.clone()));
        pods
    }

    /// Pods that the service made, those that are left of what is gone included.
    pub fn made_pods(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().chain(&self.left_pods)
    }

    /// All pods with the service's labels, whoever's they are.
    pub fn labelled_pods(&self) -> impl Iterator<Item = &PodView> {
        self.made_pods().chain(&self.foreign_pods)
    }

    /// Other services whose models the gateway's file lists.
    pub fn listed(&self, service: &Validated) -> impl Iterator<Item = &str> {
        let guests = self.of_file(service, labels::GUESTS);
        guests.into_iter().flat_map(|guests| guests.split(','))
    }

    /// Whether the kubelets of all ready gateway pods have been told of that file.
    pub fn is_told(&self, service: &Validated) -> bool {
        let hash = self.of_file(service, labels::FILE_HASH);
        let ready = |pod: &&PodView| pod.is_gateway && pod.ready && !pod.deleting;
        let mut ready = self.pods.iter().filter(ready);
        ready.all(|pod| pod.told.as_deref() == hash)
    }

    /// An annotation of the gateway's file.
    fn of_file(&self, service: &Validated, key: &str) -> Option<&str> {
        let name = service.names.gateway_config();
        self.own_child(service, Kind::ConfigMap, &name)?.annotation(key)
    }

    /// Ready pods of the gateway.
    pub fn ready_gateway_pods(&self) -> usize {
        self.pods
            .iter()
            .filter(|p| p.is_gateway && p.ready && !p.deleting)
            .count()
    }
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
    /// Somebody says that it is off, and that its pods may be forgotten: the taint `node.kubernetes.io/out-of-service`.
    pub out_of_service: bool,
}

impl NodeView {
    /// What matters of a node.
    pub fn new(node: &Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let ready = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref()?.iter().find(|c| c.type_ == "Ready"));
        let taints = spec.taints.iter().flatten();
        // The node lifecycle controller's own taints say that the node doesn't answer: that is judged by its condition.
        let own = |key: &str| key.starts_with("node.kubernetes.io/");
        Self {
            cordoned: spec.unschedulable.unwrap_or_default(),
            no_execute: taints
                .clone()
                .any(|t| t.effect == "NoExecute" && (!own(&t.key) || t.key == OUT_OF_SERVICE)),
            out_of_service: taints.clone().any(|t| t.key == OUT_OF_SERVICE),
            not_ready_since: ready
                .filter(|c| c.status != "True")
                .and_then(|c| c.last_transition_time.as_ref().map(|time| time.0)),
        }
    }

    /// Its pods should go elsewhere while they still run.
    pub fn is_leaving(&self) -> bool {
        self.cordoned || self.no_execute
    }

    /// Since when its pods count as lost: after `patience` without an answer, or at once where somebody says that it is off.
    pub fn lost_since(&self, patience: SignedDuration) -> Option<Timestamp> {
        let silent = self.not_ready_since?;
        let wait = if self.out_of_service {
            SignedDuration::ZERO
        } else {
            patience
        };
        Some(silent.saturating_add(wait).unwrap_or(Timestamp::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_lost_after_a_while_and_at_once_where_somebody_says_that_it_is_off() {
        let node = |ready: &str, taint: &str| -> NodeView {
            let node = serde_json::json!({
                "spec": { "taints": [{ "key": taint, "effect": "NoExecute" }] },
                "status": { "conditions": [
                    { "type": "Ready", "status": ready, "lastTransitionTime": "2026-11-30T00:00:00Z" },
                ] },
            });
            NodeView::new(&serde_json::from_value(node).unwrap())
        };
        let patience = SignedDuration::from_mins(1);
        let silent: Timestamp = "2026-11-30T00:00:00Z".parse().unwrap();
        let unreachable = node("Unknown", "node.kubernetes.io/unreachable");
        assert_eq!(unreachable.lost_since(patience), Some(silent + patience));
        assert!(!unreachable.is_leaving());
        let off = node("Unknown", OUT_OF_SERVICE);
        assert_eq!(off.lost_since(patience), Some(silent));
        // A node that answers isn't off, whatever somebody says; its pods are evicted by the taint.
        let answers = node("True", OUT_OF_SERVICE);
        assert_eq!(answers.lost_since(patience), None);
        assert!(answers.is_leaving());
    }
}
