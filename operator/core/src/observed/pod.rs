//! A pod, as far as decisions read it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodSpec};
use kvasir_operator_api::labels;
use serde_json::Value;

use super::{Controller, ENGINE_CONTAINER, GATEWAY_CONTAINER, MODEL_CONTAINER};

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
    /// The object that controls it.
    pub controller: Option<Controller>,
    /// The group that its labels name.
    pub group: Option<i32>,
    /// Its ordinal within the group.
    pub ordinal: i32,
    /// Its labels say that it is the gateway's.
    pub is_gateway: bool,
    /// Hash of the template that its Deployment made it from.
    pub template_hash: Option<String>,
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
    /// The scheduling gates that it waits for: nobody looks for a node until they are taken away.
    pub gates: Option<String>,
    /// Why its engine or its gateway doesn't run, as Kubernetes says: ImagePullBackOff, CrashLoopBackOff. Of a container that must end before the
    /// engine starts, as long as one hasn't.
    pub waiting: Option<String>,
    /// Why its model's image can't be had.
    pub model_image_refused: Option<String>,
    /// The engine or the gateway runs.
    pub running: bool,
    /// Restarts of it and of what runs before it.
    pub restarts: i32,
    /// How it ended last, or what failed before it.
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
        let unscheduled = |reason: &str| {
            condition("PodScheduled").filter(|c| c.status == "False" && c.reason.as_deref() == Some(reason))
        };
        let engine = status
            .container_statuses
            .iter()
            .flatten()
            .find(|c| c.name == ENGINE_CONTAINER || c.name == GATEWAY_CONTAINER);
        let before: Vec<_> = status.init_container_statuses.iter().flatten().collect();
        let blocking = before.iter().find(|c| !has_succeeded(c)).copied();
        let name = pod.metadata.name.clone().unwrap_or_default();
        let component = pod_labels.get(labels::COMPONENT).map(String::as_str);
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            controller: controller(pod),
            group: pod_labels
                .get(labels::GROUP)
                .filter(|_| component == Some(labels::ENGINE))
                .and_then(|id| id.parse().ok()),
            ordinal: name
                .rsplit_once('-')
                .and_then(|(_, n)| n.parse().ok())
                .unwrap_or(0),
            is_gateway: component == Some(labels::GATEWAY),
            template_hash: pod_labels.get(labels::TEMPLATE_HASH).cloned(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            ready: condition("Ready").is_some_and(|c| c.status == "True"),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            finished: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")),
            unschedulable: unscheduled("Unschedulable").map(|c| c.message.clone().unwrap_or_default()),
            gates: unscheduled("SchedulingGated").map(|_| gates(pod)),
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

    /// It has a node, which has its images.
    pub fn is_placed(&self) -> bool {
        self.node.is_some() && !self.waits_for_image()
    }

    /// The kubelet fetches an image, or tries to.
    pub fn waits_for_image(&self) -> bool {
        let reason = self.waiting.as_deref().unwrap_or_default();
        matches!(
            reason,
            "ContainerCreating"
                | "PodInitializing"
                | "ImagePullBackOff"
                | "ErrImagePull"
                | "InvalidImageName"
                | "ErrImageNeverPull"
        )
    }

    /// Its engine has ended with an error, at least once.
    pub fn has_failed(&self) -> bool {
        self.finished || self.restarts > 0 || self.terminated.is_some()
    }
}

fn controller(pod: &Pod) -> Option<Controller> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(Controller {
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    })
}

fn gates(pod: &Pod) -> String {
    let gates = pod
        .spec
        .iter()
        .flat_map(|spec| spec.scheduling_gates.iter().flatten());
    let names: Vec<&str> = gates.map(|gate| gate.name.as_str()).collect();
    names.join(", ")
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
    fn what_controls_a_pod_and_what_holds_it_back_is_read() {
        let pod = json!({
            "metadata": {
                "name": "chat-gateway-ab-x",
                "labels": { labels::COMPONENT: labels::GATEWAY, labels::TEMPLATE_HASH: "ab" },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "o" },
                    { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-gateway-ab", "uid": "r", "controller": true },
                ],
            },
            "spec": { "containers": [], "schedulingGates": [{ "name": "one" }, { "name": "two" }] },
            "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" }] },
        });
        let view = PodView::new(&serde_json::from_value(pod).unwrap());
        let controller = view.controller.unwrap();
        assert_eq!(
            (
                controller.kind.as_str(),
                controller.name.as_str(),
                controller.uid.as_str()
            ),
            ("ReplicaSet", "chat-gateway-ab", "r")
        );
        assert_eq!(view.template_hash.as_deref(), Some("ab"));
        assert_eq!(
            (view.gates.as_deref(), view.unschedulable),
            (Some("one, two"), None)
        );
    }
}
