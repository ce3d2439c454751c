//! A cluster in memory: an API server with uids, preconditions and stale reads, a StatefulSet controller, and kubelets whose
//! pods start, fail and go. It is deliberately simple, and strict where the operator could do harm.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kvasir_operator_api::names::Names;
use kvasir_operator_api::{InferenceService, InferenceServiceStatus, labels};
use kvasir_operator_core::accepted::{self, Judgement, Last};
use kvasir_operator_core::build::route::Taken;
use kvasir_operator_core::child::{Child, Kind, Live, ObjectRef};
use kvasir_operator_core::contest::Undone;
use kvasir_operator_core::enforcement::Enforcement;
use kvasir_operator_core::observed::{
    CertificatesView, Controller, FailedWrite, GroupLoad, HandoverView, HostView, NodeView, Observed,
    PodView, Terminated, Written,
};
use kvasir_operator_core::{FieldError, Plan, Settings, Validated, adopt, plan, status};
use serde_json::{Value, json};

use crate::reasons;

/// Uid of the service.
pub(crate) const UID: &str = "service-uid";

/// Another service of the namespace, accepted, as old as `born` (seconds of the day) says.
pub(crate) fn other(name: &str, born: u32, spec: Value) -> InferenceService {
    let mut other = service(spec);
    other.metadata.name = Some(name.to_owned());
    other.metadata.uid = Some(format!("uid-of-{name}"));
    let midnight: Timestamp = "2026-11-29T00:00:00Z".parse().unwrap();
    other.metadata.creation_timestamp = Some(Time(midnight + SignedDuration::from_secs(born.into())));
    accepted(other)
}

/// The same, with the status that a service has whose spec was accepted.
pub(crate) fn accepted(mut service: InferenceService) -> InferenceService {
    let spec = serde_json::to_string(&service.spec).unwrap();
    service.status.get_or_insert_default().accepted_spec = Some(spec);
    service
}

/// The part of a spec that asks for another service's gateway.
pub(crate) fn behind(host: &str) -> Value {
    json!({ "gateway": { "enabled": false, "gatewayRef": { "name": host } } })
}

/// A manifest with the one required field.
pub(crate) fn service(spec: Value) -> InferenceService {
    let mut object = json!({
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": { "name": "chat", "namespace": "team", "uid": UID, "generation": 1 },
        "spec": { "model": { "source": { "pvc": { "claimName": "models" } } } },
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) view: PodView,
    /// Somebody else made it and put our labels on it.
    foreign: bool,
    revision: String,
    age: u32,
    leaving: u32,
}

pub(crate) struct Fake {
    pub(crate) service: InferenceService,
    /// Other services of its namespace, which nobody reconciles.
    pub(crate) others: Vec<InferenceService>,
    /// Ready pods of the gateway of the service that ours names, and whether its file lists ours.
    pub(crate) host: Option<(usize, bool)>,
    /// Whether that gateway's pods were told of its file.
    pub(crate) host_is_told: bool,
    pub(crate) settings: Settings,
    pub(crate) objects: BTreeMap<ObjectRef, Live>,
    pub(crate) pods: BTreeMap<String, Pod>,
    pub(crate) nodes: BTreeMap<String, NodeView>,
    pub(crate) written: BTreeMap<ObjectRef, Written>,
    pub(crate) undone: BTreeMap<ObjectRef, Undone>,
    pub(crate) loads: BTreeMap<i32, GroupLoad>,
    pub(crate) handover: HandoverView,
    pub(crate) now: Timestamp,
    /// Engines of this spec.restartedAt value never become ready: they end at once.
    pub(crate) broken: BTreeSet<String>,
    /// What they end with.
    pub(crate) broken_exit_code: i32,
    /// The last line of their log.
    pub(crate) broken_line: String,
    /// Ranks don't find each other: engines run and none becomes ready.
    pub(crate) parted: bool,
    /// Kind of which the API server takes no new object, and what it answers.
    pub(crate) refuses: Option<(Kind, FailedWrite)>,
    pub(crate) failed_writes: BTreeMap<ObjectRef, FailedWrite>,
    /// Mutating requests so far.
    pub(crate) writes: usize,
    version: u64,
    uids: u64,
    snapshots: Vec<(Observed, InferenceService, u64)>,
}

impl Fake {
    pub(crate) fn new(spec: Value) -> Self {
        Self {
            service: service(spec),
            others: Vec::new(),
            host: None,
            host_is_told: true,
            settings: Settings {
                alpha_topology: true,
                token_reviewers: Some("reviewers".to_owned()),
                ..Settings::default()
            },
            objects: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: (0..4)
                .map(|i| (format!("node-{i}"), NodeView::default()))
                .collect(),
            written: BTreeMap::new(),
            undone: BTreeMap::new(),
            loads: BTreeMap::new(),
            handover: HandoverView::default(),
            now: "2026-11-29T12:00:00Z".parse().unwrap(),
            broken: BTreeSet::new(),
            broken_exit_code: 1,
            broken_line: String::new(),
            parted: false,
            refuses: None,
            failed_writes: BTreeMap::new(),
            writes: 0,
            version: 0,
            uids: 0,
            snapshots: Vec::new(),
        }
    }

    pub(crate) fn observe(&self) -> Observed {
        let observed = Observed {
            children: self.objects.values().cloned().collect(),
            nodes: self.nodes.clone(),
            written: self.written.clone(),
            undone: self.undone.clone(),
            loads: self.loads.clone(),
            failed_writes: self.failed_writes.clone(),
            refused_pods: BTreeMap::new(),
            certificates: Some(CertificatesView {
                first_end: self.now + SignedDuration::from_hours(24),
                missing: 0,
                problems: Vec::new(),
            }),
            handover: self.handover.clone(),
            trust: Some("authorities".to_owned()),
            enforcement: Some(Enforcement::Enforced {
                unverified: BTreeSet::new(),
            }),
            host: self.host.map(|(ready_pods, lists_us)| HostView {
                ready_pods,
                lists_us,
                is_told: self.host_is_told,
                route: Taken::Yes,
            }),
            status: self.service.status.clone().unwrap_or_default(),
            ..Observed::default()
        };
        let pods = self.pods.values().map(|pod| pod.view.clone());
        observed.with_pods(&Names::new("chat"), UID, pods)
    }

    /// Somebody else makes a pod with our labels, which is ready.
    pub(crate) fn intrude(&mut self, view: PodView) {
        self.uids += 1;
        let pod = Pod {
            view: PodView {
                uid: format!("foreign-{}", self.uids),
                ready: true,
                running: true,
                ..view
            },
            foreign: true,
            revision: String::new(),
            age: 0,
            leaving: 0,
        };
        self.pods.insert(pod.view.name.clone(), pod);
    }

    /// The service as a round of the operator sees it.
    pub(crate) fn judge(&self, service: &InferenceService) -> Result<Validated, Vec<FieldError>> {
        match accepted::judge(service, &self.others, &self.settings) {
            Judgement::Accepted(validated) => Ok(*validated),
            Judgement::Refused { errors, .. } => Err(errors),
        }
    }

    /// Keeps what a reader sees now, for a later stale read.
    pub(crate) fn snapshot(&mut self) {
        self.snapshots
            .push((self.observe(), self.service.clone(), self.version));
    }

    /// One round of the operator with what is true now.
    pub(crate) fn reconcile(&mut self) -> Plan {
        self.round(self.observe(), self.service.clone(), self.version)
    }

    /// One round with an old snapshot, if there is one.
    pub(crate) fn reconcile_stale(&mut self) {
        if let Some((observed, service, version)) = self.snapshots.pop() {
            self.round(observed, service, version);
        }
    }

    fn round(&mut self, mut observed: Observed, service: InferenceService, version: u64) -> Plan {
        // What the operator wrote is in its own memory and never stale.
        observed.written.clone_from(&self.written);
        let (validated, refusal) = match accepted::judge(&service, &self.others, &self.settings) {
            Judgement::Accepted(validated) => (*validated, None),
            Judgement::Refused { errors, last } => match last {
                Some(Last::Valid(running)) => (*running, Some(errors)),
                Some(Last::Outdated(_)) | None => return self.refuse(&service, &errors, version),
            },
        };
        let made = plan(&validated, &observed, &self.settings, self.now);
        // Twice the work for every round would make the properties slow.
        if self.writes.is_multiple_of(4) {
            let again = plan(&validated, &observed, &self.settings, self.now);
            assert_eq!(made, again, "a plan is a function");
        }
        let refusal = refusal.as_deref();
        let new = status::of_running(&validated, refusal, &made, &observed, &self.settings, self.now);
        if self.write_status(new, version) {
            self.apply(&made);
        }
        made
    }

    fn refuse(&mut self, service: &InferenceService, errors: &[FieldError], version: u64) -> Plan {
        let new = status::refused(service, errors, &self.settings, self.now);
        self.write_status(new, version);
        Plan::default()
    }

    /// Over the version that was read, and before anything else. Whether that is still the one.
    fn write_status(&mut self, new: InferenceServiceStatus, version: u64) -> bool {
        reasons::check(&new);
        let is_fresh = version == self.version;
        if is_fresh && self.service.status.as_ref() != Some(&new) {
            self.service.status = Some(new);
            self.version += 1;
            self.writes += 1;
        }
        is_fresh
    }

    fn apply(&mut self, made: &Plan) {
        self.failed_writes.clear();
        for write in &made.write {
            self.writes += 1;
            let reference = &write.child.reference;
            let refused = self.refuses.as_ref().filter(|(kind, _)| *kind == reference.kind);
            if let Some((_, answer)) = refused.filter(|_| write.uid.is_none()) {
                // The round ends.
                self.failed_writes.insert(reference.clone(), answer.clone());
                return;
            }
            self.write(&write.child, write.uid.as_deref());
            if write.undoes {
                let before = self.undone.get(&write.child.reference).copied();
                let undone = Undone::once_more(before, self.now);
                self.undone.insert(write.child.reference.clone(), undone);
            }
        }
        for delete in &made.delete {
            self.writes += 1;
            if self
                .objects
                .get(&delete.reference)
                .is_some_and(|live| live.uid == delete.uid)
            {
                assert!(
                    self.objects[&delete.reference].is_owned_by(UID),
                    "{} isn't ours",
                    delete.reference
                );
                self.objects.remove(&delete.reference);
            }
        }
        for (name, uid) in &made.decisions.restart_pods {
            self.writes += 1;
            if self.pods.get(name).is_some_and(|pod| pod.view.uid == *uid) {
                self.delete_pod(name);
            }
        }
        for (name, uid, hash) in &made.tell_pods {
            self.writes += 1;
            if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.view.uid == *uid) {
                pod.view.told = Some(hash.clone());
            }
        }
        for (name, uid) in &made.decisions.unlabel_pods {
            self.writes += 1;
            if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.view.uid == *uid) {
                pod.view.loading = false;
            }
        }
    }

    fn write(&mut self, child: &Child, precondition: Option<&str>) {
        check_child(&child.object, &child.reference);
        let existing = self.objects.get(&child.reference);
        // The API server refuses a creation of what is there, and a change of what isn't there any more.
        if existing.map(|live| live.uid.as_str()) != precondition {
            return;
        }
        if let Some(live) = existing {
            assert!(
                live.is_owned_by(UID),
                "{} isn't ours and was written",
                child.reference
            );
            assert_eq!(
                claims(&live.object),
                claims(&child.object),
                "{}: immutable",
                child.reference
            );
        }
        if child.reference.kind == Kind::StatefulSet && existing.is_none() {
            let id = child.object["metadata"]["labels"][labels::GROUP]
                .as_str()
                .unwrap();
            let id: i32 = id.parse().unwrap();
            assert!(
                self.pods.values().all(|p| p.view.group != Some(id)),
                "id {id} is given out while its pods live"
            );
        }
        let uid = existing.map_or_else(|| self.uids.to_string(), |live| live.uid.clone());
        self.uids += 1;
        let mut object = child.object.clone();
        object["metadata"]["uid"] = uid.clone().into();
        let live = Live::new(child.reference.kind, object).unwrap();
        self.written.insert(
            child.reference.clone(),
            Written {
                uid,
                digest: live.digest().to_owned(),
            },
        );
        self.objects.insert(child.reference.clone(), live);
    }

    /// Time passes for controllers and kubelets.
    pub(crate) fn tick(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        self.remove_left_pods();
        self.create_missing_pods();
        for pod in self.pods.values_mut().filter(|pod| !pod.foreign) {
            let end = Terminated {
                exit_code: self.broken_exit_code,
                reason: "Error".to_owned(),
                message: Some(self.broken_line.clone()),
                at: None,
            };
            let end = self.broken.contains(&pod.revision).then_some(end);
            advance(pod, &self.nodes, end);
            pod.view.ready &= pod.view.is_gateway || !self.parted;
        }
    }

    fn remove_left_pods(&mut self) {
        let alive: BTreeSet<i32> = self
            .objects
            .values()
            .filter(|live| live.reference.kind == Kind::StatefulSet)
            .filter_map(|live| live.label(labels::GROUP)?.parse().ok())
            .collect();
        let mut kinds = self.objects.keys().map(|object| object.kind);
        let has_gateway = kinds.any(|kind| kind == Kind::Deployment);
        let is_orphan = |pod: &&Pod| match pod.view.group {
            _ if pod.foreign => false,
            Some(id) => !alive.contains(&id),
            None => pod.view.is_gateway && !has_gateway,
        };
        let orphans: Vec<String> = self
            .pods
            .values()
            .filter(is_orphan)
            .map(|pod| pod.view.name.clone())
            .collect();
        for name in orphans {
            self.delete_pod(&name);
        }
        let nodes = &self.nodes;
        self.pods.retain(|_, pod| {
            let answers = pod
                .view
                .node
                .as_ref()
                .is_none_or(|n| nodes[n].not_ready_since.is_none());
            if pod.view.deleting && answers {
                pod.leaving += 1;
            }
            pod.leaving < 3
        });
    }

    fn create_missing_pods(&mut self) {
        let sets: Vec<Live> = self
            .objects
            .values()
            .filter(|live| matches!(live.reference.kind, Kind::StatefulSet | Kind::Deployment))
            .cloned()
            .collect();
        for set in sets {
            let is_gateway = set.reference.kind == Kind::Deployment;
            let spec = &set.object["spec"];
            let wanted = spec["replicas"].as_i64().unwrap_or(0) as i32;
            let prefix = format!("{}-", set.reference.name);
            let surplus = |name: &str| {
                name.strip_prefix(&prefix)
                    .and_then(|n| n.parse().ok())
                    .is_some_and(|n: i32| n >= wanted)
            };
            let leaving: Vec<String> = self.pods.keys().filter(|name| surplus(name)).cloned().collect();
            for name in leaving {
                self.delete_pod(&name);
            }
            for ordinal in 0..spec["replicas"].as_i64().unwrap_or(0) as i32 {
                let name = format!("{}-{ordinal}", set.reference.name);
                if self.pods.contains_key(&name) {
                    continue;
                }
                self.uids += 1;
                let pod_labels = &spec["template"]["metadata"]["labels"];
                let hash = is_gateway.then(|| "ab12".to_owned());
                let view = PodView {
                    name: name.clone(),
                    uid: format!("pod-{}", self.uids),
                    controller: Some(controller(&set, hash.as_deref())),
                    group: set.label(labels::GROUP).and_then(|id| id.parse().ok()),
                    ordinal,
                    is_gateway,
                    template_hash: hash,
                    node: self.free_node(),
                    loading: pod_labels[labels::LOADING].is_string(),
                    ..PodView::default()
                };
                let restarted = self.restarted_at_of(set.label(labels::REVISION).unwrap_or_default());
                self.pods.insert(
                    name,
                    Pod {
                        view,
                        foreign: false,
                        revision: restarted,
                        age: 0,
                        leaving: 0,
                    },
                );
            }
        }
    }

    /// `spec.restartedAt` of a revision, by which tests tell revisions apart.
    fn restarted_at_of(&self, revision: &str) -> String {
        self.objects
            .values()
            .filter(|live| live.reference.kind == Kind::ControllerRevision)
            .find(|live| live.label(labels::REVISION) == Some(revision))
            .and_then(|live| {
                live.object["data"]["spec"]["restartedAt"]
                    .as_str()
                    .map(str::to_owned)
            })
            .unwrap_or_default()
    }

    fn free_node(&self) -> Option<String> {
        let used = |name: &str| {
            self.pods
                .values()
                .filter(|p| p.view.node.as_deref() == Some(name))
                .count()
        };
        self.nodes
            .iter()
            .filter(|(_, node)| !node.is_leaving() && node.not_ready_since.is_none())
            .min_by_key(|(name, _)| used(name))
            .map(|(name, _)| name.clone())
    }

    pub(crate) fn delete_pod(&mut self, name: &str) {
        if let Some(pod) = self.pods.get_mut(name) {
            pod.view.deleting = true;
            pod.view.ready = false;
        }
    }

    /// The engine of the pod ends with an error and starts again in place.
    pub(crate) fn fail_pod(&mut self, name: &str) {
        let at = Some(self.now);
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| !pod.view.is_gateway) {
            pod.view.restarts += 1;
            pod.view.ready = false;
            pod.age = 0;
            pod.view.terminated = Some(Terminated {
                exit_code: 137,
                reason: "OOMKilled".to_owned(),
                message: Some("loading\nerror: the engine ran out of memory\n".to_owned()),
                at,
            });
        }
    }

    /// Another operator process takes over what the status vouches for, and knows nothing else.
    pub(crate) fn restart_operator(&mut self) {
        self.written.clear();
        self.undone.clear();
        self.written = adopt(&self.observe(), UID);
    }

    /// A person changes the spec.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut kvasir_operator_api::InferenceServiceSpec)) {
        change(&mut self.service.spec);
        let generation = self.service.metadata.generation.get_or_insert(0);
        *generation += 1;
        self.version += 1;
    }

    pub(crate) fn roll(&mut self, to: &str) {
        let to = to.to_owned();
        self.edit(|spec| spec.restarted_at = Some(to));
    }

    pub(crate) fn status(&self) -> InferenceServiceStatus {
        self.service.status.clone().unwrap_or_default()
    }

    pub(crate) fn condition(&self, kind: &str) -> (String, String) {
        let status = self.status();
        let found = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
        (found.status.clone(), found.reason.clone())
    }

    pub(crate) fn sets(&self) -> Vec<&Live> {
        self.objects
            .values()
            .filter(|live| live.reference.kind == Kind::StatefulSet)
            .collect()
    }

    /// Rounds and time until nothing happens for some minutes.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..3000 {
            let before = self.writes;
            self.reconcile();
            self.tick(30);
            quiet = if self.writes == before { quiet + 1 } else { 0 };
            if quiet >= 30 {
                return;
            }
        }
        let last = self.reconcile();
        panic!("no fixed point: {last:#?}\n{:#?}", self.status());
    }

    /// Groups that take requests, as the gateway sees it.
    pub(crate) fn serving(&self) -> usize {
        let status = self.status();
        let draining = |id: i32| status.groups.iter().any(|g| g.id == id && g.draining);
        self.sets()
            .iter()
            .filter_map(|set| {
                let id: i32 = set.label(labels::GROUP)?.parse().ok()?;
                let wanted = set.object["spec"]["replicas"].as_u64()? as usize;
                let ready = self
                    .pods
                    .values()
                    .filter(|p| !p.foreign && p.view.group == Some(id) && p.view.ready)
                    .count();
                (ready == wanted && !draining(id)).then_some(())
            })
            .count()
    }
}

/// What controls the pods of a StatefulSet, or of a Deployment with a template of that hash.
fn controller(set: &Live, hash: Option<&str>) -> Controller {
    let name = &set.reference.name;
    Controller {
        kind: hash.map_or("StatefulSet", |_| "ReplicaSet").to_owned(),
        name: hash.map_or_else(|| name.clone(), |hash| format!("{name}-{hash}")),
        uid: hash.map_or_else(|| set.uid.clone(), |hash| format!("{}-{hash}", set.uid)),
    }
}

/// What of a StatefulSet's claims a user gave; the rest is filled in by the API server.
fn claims(object: &Value) -> Vec<[Value; 2]> {
    let claims = object["spec"]["volumeClaimTemplates"].as_array();
    let given = |claim: &Value| [claim["metadata"]["name"].clone(), claim["spec"].clone()];
    claims.into_iter().flatten().map(given).collect()
}

/// `end` is how the pod's engine ends, if it is broken.
fn advance(pod: &mut Pod, nodes: &BTreeMap<String, NodeView>, end: Option<Terminated>) {
    let view = &mut pod.view;
    if view.deleting {
        return;
    }
    let Some(node) = &view.node else {
        view.unschedulable = Some("no node is free".to_owned());
        view.node = nodes
            .iter()
            .find(|(_, node)| !node.is_leaving() && node.not_ready_since.is_none())
            .map(|(name, _)| name.clone());
        return;
    };
    view.unschedulable = None;
    if nodes[node].not_ready_since.is_some() {
        view.ready = false;
        return;
    }
    pod.age += 1;
    if let Some(end) = end.filter(|_| !view.is_gateway) {
        view.ready = false;
        view.restarts += i32::from(pod.age.is_multiple_of(3));
        view.waiting = Some("CrashLoopBackOff".to_owned());
        view.terminated = Some(end);
        return;
    }
    view.waiting = None;
    view.running = true;
    view.ready = pod.age >= 2;
}

/// What every object must be.
fn check_child(object: &Value, reference: &ObjectRef) {
    let metadata = &object["metadata"];
    assert_eq!(metadata["name"], reference.name.as_str());
    assert!(reference.name.len() <= 63, "{reference}");
    assert_eq!(metadata["namespace"], "team", "{reference}");
    assert_eq!(metadata["ownerReferences"][0]["uid"], UID, "{reference}");
    assert_eq!(metadata["labels"][labels::SERVICE], "chat", "{reference}");
    assert_eq!(metadata["labels"][labels::MANAGED_BY], "kvasir", "{reference}");
}
