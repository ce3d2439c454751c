//! Watches: they fill the cache and name the services that have news.
//!
//! Each watch lists in pages, holds nothing but the cache, and starts again by itself with a growing pause. A connection that
//! died in silence is noticed after [`WATCH_SECONDS`].

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource, ResourceExt};
use kvasir_operator_api::{InferenceService, labels};
use kvasir_operator_core::child::{Kind, Live, ObjectRef as ChildRef};
use kvasir_operator_core::observed::{NodeView, PodView};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::cache::{Cache, SeenPod, ServiceKey, version};
use crate::kinds;
use crate::metrics::Metrics;
use crate::options::Scope;

/// Longest life of one watch request.
const WATCH_SECONDS: u32 = 120;
/// Objects in one page of a list.
const PAGE: u32 = 250;
/// Field manager of what the operator creates and applies.
pub(crate) const MANAGER: &str = "kvasir-operator";

/// Where news goes.
pub(crate) type Trigger = mpsc::UnboundedSender<ObjectRef<InferenceService>>;

/// What every watch needs.
#[derive(Clone)]
pub(crate) struct Watcher {
    pub(crate) client: Client,
    pub(crate) scope: Scope,
    pub(crate) cache: Arc<Cache>,
    pub(crate) trigger: Trigger,
    pub(crate) metrics: Arc<Metrics>,
}

/// Configuration of a watch of everything that carries the operator's label.
fn ours() -> watcher::Config {
    limits().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE))
}

/// Configuration of any watch.
pub(crate) fn limits() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE)
}

impl Watcher {
    /// Watches children of one kind until it is dropped. `ready` is told when the first list is complete.
    pub(crate) async fn children(self, kind: Kind, ready: oneshot::Sender<()>) {
        let resource = kinds::resource(kind);
        let api: Api<DynamicObject> = match &self.scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespace(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
        };
        let stream = watcher::watcher(api, ours()).default_backoff();
        let mut listed = BTreeSet::new();
        let what = kind.to_string();
        self.follow(stream, &what, ready, |watcher, event| match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => {
                let name = object.name_any();
                if let Some(key) = watcher.put_child(kind, object, true) {
                    listed.insert((key, name));
                }
            }
            Event::InitDone => {
                for key in watcher.cache.keep_only(kind, &std::mem::take(&mut listed)) {
                    watcher.news(&key);
                }
            }
            Event::Apply(object) => {
                watcher.put_child(kind, object, false);
            }
            Event::Delete(object) => watcher.drop_child(kind, &object),
        })
        .await;
    }

    /// Watches pods.
    pub(crate) async fn pods(self, ready: oneshot::Sender<()>) {
        let api: Api<Pod> = match &self.scope {
            Scope::Cluster => Api::all(self.client.clone()),
            Scope::Namespace(namespace) => Api::namespaced(self.client.clone(), namespace),
        };
        let stream = watcher::watcher(api, ours()).default_backoff();
        let mut listed = BTreeSet::new();
        self.follow(stream, "Pod", ready, |watcher, event| match event {
            Event::Init => listed.clear(),
            Event::InitApply(pod) => {
                if let Some(key) = watcher.put_pod(&pod) {
                    listed.insert((key, pod.name_any()));
                }
            }
            Event::InitDone => {
                for key in watcher.cache.keep_only_pods(&std::mem::take(&mut listed)) {
                    watcher.news(&key);
                }
            }
            Event::Apply(pod) => {
                watcher.put_pod(&pod);
            }
            Event::Delete(pod) => {
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                if let Some(key) = key_of(&pod)
                    && watcher.cache.remove_pod(&key, &pod.name_any(), &uid)
                {
                    watcher.news(&key);
                }
            }
        })
        .await;
    }

    /// Watches nodes. Only with rights on the whole cluster.
    pub(crate) async fn nodes(self, ready: oneshot::Sender<()>) {
        let api: Api<Node> = Api::all(self.client.clone());
        let stream = watcher::watcher(api, limits()).default_backoff();
        let mut listed = BTreeSet::new();
        self.follow(stream, "Node", ready, |watcher, event| match event {
            Event::Init => listed.clear(),
            Event::InitApply(node) => {
                listed.insert(node.name_any());
                watcher.put_node(&node.name_any(), Some(NodeView::new(&node)));
            }
            Event::InitDone => {
                for name in watcher.cache.node_names() {
                    if !listed.contains(&name) {
                        watcher.put_node(&name, None);
                    }
                }
            }
            Event::Apply(node) => watcher.put_node(&node.name_any(), Some(NodeView::new(&node))),
            Event::Delete(node) => watcher.put_node(&node.name_any(), None),
        })
        .await;
    }

    async fn follow<K>(
        &self,
        stream: impl Stream<Item = watcher::Result<Event<K>>>,
        what: &str,
        ready: oneshot::Sender<()>,
        mut handle: impl FnMut(&Self, Event<K>),
    ) {
        let mut ready = Some(ready);
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    let done = matches!(event, Event::InitDone);
                    handle(self, event);
                    // Nobody waits any more if the operator is stopping.
                    if done && let Some(ready) = ready.take() {
                        ready.send(()).ok();
                    }
                }
                Err(error) => {
                    self.metrics.watch_failed(what);
                    tracing::warn!(kind = what, error = %chain(&error), "a watch ended and is started again");
                }
            }
        }
    }

    fn put_child(&self, kind: Kind, object: DynamicObject, fresh: bool) -> Option<ServiceKey> {
        let key = key_of(&object)?;
        let version = version(object.metadata.resource_version.as_deref());
        let live = Live::new(kind, to_value(object)?)?;
        // Somebody gave it another service's label: to the one that it had before it is as gone as without one.
        for before in self.cache.elsewhere(&key, &live.reference, &live.uid) {
            if self.cache.vanish(&before, &live.reference, &live.uid, version) {
                self.news(&before);
            }
        }
        if self.cache.put(&key, live, version, fresh) {
            self.news(&key);
        }
        Some(key)
    }

    fn drop_child(&self, kind: Kind, object: &DynamicObject) {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let name = object.name_any();
        let version = version(object.metadata.resource_version.as_deref());
        if let Some(key) = key_of(object)
            && self.cache.vanish(&key, &ChildRef { kind, name }, &uid, version)
        {
            self.news(&key);
        }
    }

    fn put_pod(&self, pod: &Pod) -> Option<ServiceKey> {
        let key = key_of(pod)?;
        let seen = SeenPod {
            view: PodView::new(pod),
            address: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
        };
        let (name, uid) = (seen.view.name.clone(), seen.view.uid.clone());
        for before in self.cache.pod_elsewhere(&key, &name, &uid) {
            if self.cache.remove_pod(&before, &name, &uid) {
                self.news(&before);
            }
        }
        if self.cache.put_pod(&key, seen) {
            self.news(&key);
        }
        Some(key)
    }

    fn put_node(&self, name: &str, node: Option<NodeView>) {
        for key in self.cache.put_node(name, node) {
            self.news(&key);
        }
    }

    pub(crate) fn news(&self, key: &ServiceKey) {
        let service = ObjectRef::new(&self.cache.name(key)).within(&key.namespace);
        // Nobody listens while the operator is stopping.
        self.trigger.send(service).ok();
    }
}

/// The service that an object's label names.
fn key_of<K: Resource>(object: &K) -> Option<ServiceKey> {
    Some(ServiceKey {
        namespace: object.meta().namespace.clone()?,
        base: object.labels().get(labels::SERVICE)?.clone(),
    })
}

/// The object as JSON, without the record of who owns which field.
pub(crate) fn to_value(mut object: DynamicObject) -> Option<Value> {
    object.metadata.managed_fields = None;
    serde_json::to_value(object).ok()
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}
