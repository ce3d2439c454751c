//! What was found in the cluster, as the decisions see it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Node, Pod, PodSpec};
use kvasir_operator_api::{InferenceServiceStatus, labels};
use serde_json::Value;

use crate::build::route::{self, Taken};
use crate::child::{Kind, Live, ObjectRef};
use crate::contest::Undone;
use crate::enforcement::Enforcement;
use crate::outcomes::Outcomes;
use crate::validate::Validated;

/// Taint of a node that somebody has found to be off. Kubernetes itself deletes such a node's pods for good then, which nobody else may do:
/// a node that only doesn't answer may still run them (Kubernetes, "Non-graceful node shutdown handling").
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Name of the engine's container.
pub const ENGINE_CONTAINER: &str = "engine";
/// Name of the container that brings the program that copies a model out of its image.
pub const COPIER_CONTAINER: &str = "copier";
/// Name of the container of a model's image.
pub const MODEL_CONTAINER: &str = "model";

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
    /// What was found around `host`, as its guest called `guest` sees it.
    pub fn new(host: &Validated, guest: &str, children: Vec<Live>, pods: Vec<PodView>) -> Self {
        let seen = Observed {
            children,
            pods,
            ..Observed::default()
        };
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
        self.child(Kind::ConfigMap, &name)?.annotation(key)
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
    /// Why its engine doesn't run, as Kubernetes says: ImagePullBackOff, CrashLoopBackOff. Of a container that must end before the
    /// engine starts, as long as one hasn't.
    pub waiting: Option<String>,
    /// Why its model's image can't be had.
    pub model_image_refused: Option<String>,
    /// The engine runs.
    pub running: bool,
    /// Restarts of the engine and of what runs before it.
    pub restarts: i32,
    /// How the engine ended last, or what failed before it.
    pub terminated: Option<Terminated>,
    /// Hash of the gateway's file that its kubelet was told of.
    pub told: Option<String>,
    /// It carries the label that opens its way to the model's source.
    pub loading: bool,
    /// Secrets that it mounts.
    pub secrets: Vec<String>,
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
        let before: Vec<_> = status.init_container_statuses.iter().flatten().collect();
        let blocking = before.iter().find(|c| !has_succeeded(c)).copied();
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
            waiting: blocking
                .and_then(waiting_reason)
                .or_else(|| engine.and_then(waiting_reason)),
            model_image_refused: blocking.and_then(model_image_refused),
            running: engine.is_some_and(|c| c.state.as_ref().is_some_and(|s| s.running.is_some())),
            restarts: before
                .iter()
                .copied()
                .chain(engine)
                .map(|c| c.restart_count)
                .sum(),
            terminated: engine
                .and_then(terminated)
                .or_else(|| before.iter().copied().filter_map(failed).max_by_key(|t| t.at)),
            told: pod
                .metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(labels::FILE_HASH).cloned()),
            loading: pod_labels.contains_key(labels::LOADING),
            secrets: pod.spec.iter().flat_map(secrets).collect(),
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

fn secrets(spec: &PodSpec) -> impl Iterator<Item = String> {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.clone())
}

fn has_succeeded(status: &ContainerStatus) -> bool {
    let ended = status.state.as_ref().and_then(|state| state.terminated.as_ref());
    ended.is_some_and(|ended| ended.exit_code == 0)
}

/// What the kubelet says of an image that it can't have.
fn model_image_refused(status: &ContainerStatus) -> Option<String> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting
        .reason
        .as_deref()
        .filter(|reason| status.name == MODEL_CONTAINER && reason.contains("Image"))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    Some(format!("{reason}: {message}"))
}

/// How a container that runs before the engine failed last.
fn failed(status: &ContainerStatus) -> Option<Terminated> {
    let now = status.state.as_ref().and_then(|s| s.terminated.as_ref());
    let before = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    now.filter(|ended| ended.exit_code != 0).or(before).map(end)
}

fn end(ended: &ContainerStateTerminated) -> Terminated {
    Terminated {
        exit_code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.clone(),
        at: ended.finished_at.as_ref().map(|time| time.0),
    }
}

/// The last end: of the present run if it is over, of the one before otherwise.
fn terminated(status: &ContainerStatus) -> Option<Terminated> {
    let now = status.state.as_ref().and_then(|s| s.terminated.as_ref());
    let before = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    now.or(before).map(end)
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
    use serde_json::json;

    use super::*;

    /// A pod with a container for its model's image and an engine, in these states.
    fn pod(model: &Value, engine: &Value) -> PodView {
        let status = |name: &str, state: &Value| {
            let mut status =
                json!({ "name": name, "image": "i", "imageID": "i", "ready": false, "restartCount": 0 });
            status
                .as_object_mut()
                .unwrap()
                .extend(state.as_object().unwrap().clone());
            status
        };
        let pod = json!({
            "metadata": { "name": "chat-g0-0" },
            "status": {
                "initContainerStatuses": [status(MODEL_CONTAINER, model)],
                "containerStatuses": [status(ENGINE_CONTAINER, engine)],
            },
        });
        PodView::new(&serde_json::from_value(pod).unwrap())
    }

    fn initializing() -> Value {
        json!({ "state": { "waiting": { "reason": "PodInitializing" } } })
    }

    #[test]
    fn an_engine_waits_while_its_model_is_copied() {
        let view = pod(&json!({ "state": { "running": {} } }), &initializing());
        assert_eq!(view.waiting.as_deref(), Some("PodInitializing"));
        assert!(!view.has_failed());
    }

    #[test]
    fn a_copy_that_fails_is_a_failure_of_its_pod_until_it_succeeds() {
        let ended = json!({ "terminated": { "exitCode": 66, "reason": "Error", "message": "error: /models doesn't exist" } });
        let failing = json!({ "restartCount": 2, "lastState": ended, "state": { "waiting": { "reason": "CrashLoopBackOff" } } });
        let view = pod(&failing, &initializing());
        assert_eq!(
            (view.waiting.as_deref(), view.restarts),
            (Some("CrashLoopBackOff"), 2)
        );
        let failure = view.terminated.unwrap();
        assert_eq!(
            (failure.exit_code, failure.last_line().as_deref()),
            (66, Some("/models doesn't exist"))
        );
        assert_eq!(view.model_image_refused, None);

        let done = json!({ "state": { "terminated": { "exitCode": 0 } } });
        let view = pod(&done, &json!({ "state": { "running": {} } }));
        assert_eq!((view.waiting, view.terminated, view.running), (None, None, true));
    }

    #[test]
    fn an_image_that_cannot_be_had_is_the_models_or_the_engines() {
        let refused = json!({ "state": { "waiting": { "reason": "ErrImagePull", "message": "not found" } } });
        let view = pod(&refused, &initializing());
        assert_eq!(
            view.model_image_refused.as_deref(),
            Some("ErrImagePull: not found")
        );
        assert_eq!(view.waiting.as_deref(), Some("ErrImagePull"));
        let done = json!({ "state": { "terminated": { "exitCode": 0 } } });
        let view = pod(&done, &refused);
        assert_eq!(
            (view.waiting.as_deref(), view.model_image_refused),
            (Some("ErrImagePull"), None)
        );
    }

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
