//! Pods on our nodes, each played by one task at a time.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, PodStatus, Secret};
use kube::api::{Api, DeleteParams, PartialObjectMeta, Patch, PatchParams, Preconditions};
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{Controller, WatchStreamExt as _, watcher};
use kube::{Client, Error, Resource};

use crate::address::Addresses;
use crate::play::{Play, Restart, State, seconds};
use crate::rules::Rule;
use crate::{nodes, references, rules, status};

/// Pods whose status is written at the same time.
const CONCURRENCY: u16 = 32;
/// How soon a pod looks again for a Secret or ConfigMap that it waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// Plays pods, for ever.
pub(crate) async fn play(client: Client, first_address: Ipv4Addr) {
    let only_rules = watcher::Config::default().fields(&format!("metadata.name={}", rules::NAME));
    let only_ours = watcher::Config::default().labels(nodes::LABEL);
    let bound = watcher::Config::default().fields("spec.nodeName!=");
    let controller = Controller::new(Api::<Pod>::all(client.clone()), bound)
        .with_config(Config::default().concurrency(CONCURRENCY));
    let pods = controller.store();
    let (rules_store, rules_writer) = reflector::store();
    let (nodes_store, nodes_writer) = reflector::store();
    let rules_stream = watcher(Api::<ConfigMap>::all(client.clone()), only_rules)
        .default_backoff()
        .reflect(rules_writer)
        .touched_objects();
    let nodes_stream = watcher(Api::<Node>::all(client.clone()), only_ours)
        .default_backoff()
        .reflect(nodes_writer)
        .touched_objects();
    let (secrets, secrets_stream) = names::<Secret>(&client);
    let (maps, maps_stream) = names::<ConfigMap>(&client);
    let kubelet = Arc::new(Kubelet {
        client,
        nodes: nodes_store,
        rules: rules_store,
        secrets,
        maps,
        pods,
        plays: Mutex::default(),
        addresses: Mutex::new(Addresses::new(first_address)),
    });
    // Both change seldom, and a pod that nothing changed for costs no request.
    let run = controller
        .reconcile_all_on(rules_stream.map(|_| ()))
        .reconcile_all_on(nodes_stream.map(|_| ()))
        .run(Kubelet::reconcile, Kubelet::again, Arc::clone(&kubelet))
        .for_each(|_| async {});
    tokio::select! {
        () = run => {}
        () = secrets_stream => {}
        () = maps_stream => {}
        () = kubelet.forget() => {}
    }
}

/// Which objects of a kind there are, and the task that keeps the answer true.
fn names<K>(client: &Client) -> (Store<PartialObjectMeta<K>>, impl Future<Output = ()> + use<K>)
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Send
        + Sync
        + serde::de::DeserializeOwned
        + 'static,
{
    let (store, writer) = reflector::store();
    let stream = watcher(
        Api::<PartialObjectMeta<K>>::all(client.clone()),
        watcher::Config::default(),
    )
    .default_backoff()
    .reflect(writer)
    .touched_objects();
    let run = async move {
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            if let Err(error) = event {
                tracing::warn!("watch: {error}");
            }
        }
    };
    (store, run)
}

fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

struct Kubelet {
    client: Client,
    nodes: Store<Node>,
    rules: Store<ConfigMap>,
    secrets: Store<PartialObjectMeta<Secret>>,
    maps: Store<PartialObjectMeta<ConfigMap>>,
    pods: Store<Pod>,
    /// By uid: where each pod is, its address, and the status that was written last.
    plays: Mutex<BTreeMap<String, Played>>,
    addresses: Mutex<Addresses>,
}

#[derive(Clone)]
struct Played {
    play: Play,
    address: Ipv4Addr,
    written: Option<PodStatus>,
    leaving: Option<Timestamp>,
}

impl Kubelet {
    async fn reconcile(pod: Arc<Pod>, kubelet: Arc<Self>) -> Result<Action, Error> {
        let (Some(node), Some(uid), Some(main)) =
            (node_name(&pod), pod.metadata.uid.clone(), main_container(&pod))
        else {
            return Ok(Action::await_change());
        };
        let ours = kubelet.nodes.get(&ObjectRef::new(node));
        if ours.is_none_or(|node| nodes::is_lost(&node)) {
            return Ok(Action::await_change());
        }
        let rule = kubelet.rule(&pod);
        let main = rule.container.clone().unwrap_or(main);
        let now = Timestamp::now();
        let mut played = kubelet.played(&pod, &uid, &main, now);
        if pod.metadata.deletion_timestamp.is_some() {
            return kubelet.leave(&pod, &uid, played, &rule, now).await;
        }
        let obstacle = references::missing(&pod, |kind, name| kubelet.exists(kind, &pod, name));
        let wake = played
            .play
            .advance(&rule, Restart::of(&pod), obstacle.as_ref(), now);
        let wanted = status::status(&pod, &played.play, &main, played.address, nodes::address(node));
        if played.written.as_ref() != Some(&wanted) {
            kubelet.write(&pod, &wanted).await?;
            played.written = Some(wanted);
        }
        let waits = matches!(played.play.state, State::Creating { .. }) && obstacle.is_some();
        lock(&kubelet.plays).insert(uid, played);
        Ok(match wake.or(waits.then_some(LOOK_AGAIN)) {
            Some(delay) => Action::requeue(delay),
            None => Action::await_change(),
        })
    }

    fn again(_: Arc<Pod>, error: &Error, _: Arc<Self>) -> Action {
        tracing::warn!("pod: {error}");
        Action::requeue(Duration::from_millis(500))
    }

    fn rule(&self, pod: &Pod) -> Rule {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let Some(map) = self.rules.get(&ObjectRef::new(rules::NAME).within(namespace)) else {
            return Rule::default();
        };
        let all = rules::parse(&map).unwrap_or_else(|error| {
            tracing::error!("rules of namespace {namespace}: {error}");
            Vec::new()
        });
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let images: Vec<_> = containers
            .map(|c| (c.name.as_str(), c.image.as_deref().unwrap_or_default()))
            .collect();
        rules::find(&all, pod.metadata.name.as_deref().unwrap_or_default(), &images)
    }

    /// Where the pod was, or its beginning.
    fn played(&self, pod: &Pod, uid: &str, main: &str, now: Timestamp) -> Played {
        if let Some(played) = lock(&self.plays).get(uid) {
            return played.clone();
        }
        let before = pod.status.as_ref().and_then(|s| s.pod_ip.as_ref()?.parse().ok());
        let address = match before {
            Some(address) => {
                lock(&self.addresses).keep(address, uid);
                address
            }
            None => lock(&self.addresses).take(uid),
        };
        Played {
            play: status::resume(pod, main, now),
            address,
            written: None,
            leaving: None,
        }
    }

    fn exists(&self, kind: &str, pod: &Pod, name: &str) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        match kind {
            "secret" => self
                .secrets
                .get(&ObjectRef::new(name).within(namespace))
                .is_some(),
            _ => self.maps.get(&ObjectRef::new(name).within(namespace)).is_some(),
        }
    }

    async fn write(&self, pod: &Pod, status: &PodStatus) -> Result<(), Error> {
        let (api, name) = self.api(pod);
        let mut status = serde_json::json!({ "status": status });
        status["metadata"]["uid"] = pod.metadata.uid.clone().into();
        match api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
        {
            Ok(_) => Ok(()),
            // Deleted meanwhile, or another pod has its name: its own event follows.
            Err(Error::Api(refusal)) if matches!(refusal.code, 404 | 409) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A pod that was told to go.
    async fn leave(
        &self,
        pod: &Pod,
        uid: &str,
        mut played: Played,
        rule: &Rule,
        now: Timestamp,
    ) -> Result<Action, Error> {
        if rule.never_ends {
            return Ok(Action::await_change());
        }
        let since = *played.leaving.get_or_insert(now);
        let due = since + seconds(rule.terminate_after_seconds);
        if due > now {
            lock(&self.plays).insert(uid.to_owned(), played);
            return Ok(Action::requeue(due.duration_since(now).unsigned_abs()));
        }
        let (api, name) = self.api(pod);
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match api.delete(name, &parameters).await {
            Ok(_) => {}
            Err(Error::Api(refusal)) if matches!(refusal.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
        Ok(Action::await_change())
    }

    fn api<'a>(&self, pod: &'a Pod) -> (Api<Pod>, &'a str) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        (Api::namespaced(self.client.clone(), namespace), name)
    }

    /// Forgets pods that are gone, now and then.
    async fn forget(&self) {
        let mut ticks = tokio::time::interval(Duration::from_secs(10));
        loop {
            ticks.tick().await;
            let pods = self.pods.state();
            let alive: std::collections::BTreeSet<_> =
                pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
            lock(&self.plays).retain(|uid, _| alive.contains(uid));
            lock(&self.addresses).retain(|uid| alive.contains(uid));
        }
    }
}

fn main_container(pod: &Pod) -> Option<String> {
    Some(pod.spec.as_ref()?.containers.first()?.name.clone())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
