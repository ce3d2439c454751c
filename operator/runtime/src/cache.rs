//! What the watches and our own writes have shown of the cluster, by service, trimmed to what decisions read.
//!
//! Our own writes go in at once, so that a round sees what the round before did; an event that is older than what is here is
//! dropped. What Secrets hold isn't here: they are read by name when they are needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use kvasir_operator_api::labels;
use kvasir_operator_api::names::Names;
use kvasir_operator_core::child::{Kind, Live, ObjectRef};
use kvasir_operator_core::contest::Undone;
use kvasir_operator_core::enforcement::Enforcement;
use kvasir_operator_core::observed::{FailedWrite, GroupLoad, NodeView, Owners, PodView, Whose, Written};
use kvasir_operator_core::outcomes::Readings;

use crate::certificates::OwnIdentity;
use crate::engines::Answer;

/// Namespace and base name of a service: what its children's label says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServiceKey {
    pub(crate) namespace: String,
    pub(crate) base: String,
}

/// An object with its age.
#[derive(Clone, Debug)]
struct Seen {
    live: Live,
    version: u64,
}

/// A pod with its address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SeenPod {
    pub(crate) view: PodView,
    pub(crate) address: Option<String>,
}

/// What is known of one service's surroundings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) children: Vec<Live>,
    pub(crate) pods: Vec<SeenPod>,
    pub(crate) nodes: BTreeMap<String, NodeView>,
    pub(crate) written: BTreeMap<ObjectRef, Written>,
    pub(crate) undone: BTreeMap<ObjectRef, Undone>,
    pub(crate) failed: BTreeMap<ObjectRef, FailedWrite>,
    pub(crate) loads: BTreeMap<i32, GroupLoad>,
    pub(crate) enforcement: Option<Enforcement>,
    /// Names that objects without our label have: they aren't watched.
    pub(crate) strangers: Vec<ObjectRef>,
}

impl Snapshot {
    /// Pods of the groups and the gateway of the service with that uid.
    pub(crate) fn own_pods(&self, names: &Names, uid: &str) -> Vec<SeenPod> {
        let owners = Owners::of(names, uid, &self.children);
        let own = |pod: &&SeenPod| owners.whose(&pod.view) == Whose::Own;
        self.pods.iter().filter(own).cloned().collect()
    }
}

#[derive(Default)]
struct Entry {
    children: BTreeMap<ObjectRef, Seen>,
    pods: BTreeMap<String, SeenPod>,
    written: BTreeMap<ObjectRef, Written>,
    undone: BTreeMap<ObjectRef, Undone>,
    failed: BTreeMap<ObjectRef, FailedWrite>,
    loads: BTreeMap<i32, GroupLoad>,
    enforcement: Option<Enforcement>,
    /// How requests ended, by group.
    readings: BTreeMap<i32, Readings>,
    /// Names that rounds read, with the version of the object that they are in doubt about.
    strangers: BTreeMap<ObjectRef, u64>,
    own: Option<OwnIdentity>,
    /// Services whose models the gateway's file lists, and whether its pods were told.
    told: (Vec<String>, bool),
    /// Name of the service, where it differs from the base.
    name: Option<String>,
    /// Version of the service that our last status write made.
    status_version: u64,
}

#[derive(Default)]
struct Inner {
    services: BTreeMap<ServiceKey, Entry>,
    nodes: BTreeMap<String, NodeView>,
}

impl Entry {
    /// Drops a child if it is still the object with this uid, and not another one of its name. Whether it was.
    fn forget(&mut self, reference: &ObjectRef, uid: &str) -> bool {
        let same = self
            .children
            .get(reference)
            .is_some_and(|seen| seen.live.uid == uid);
        if same {
            self.children.remove(reference);
        }
        same
    }

    /// Asks for a look at a name, where rounds look at the service at all.
    fn doubt(&mut self, reference: &ObjectRef, version: u64) {
        if self.is_known() {
            self.strangers.insert(reference.clone(), version);
        }
    }

    /// Loads with what their groups' counters say.
    fn note_outcomes(
        &mut self,
        answers: &BTreeMap<i32, Answer>,
        old: &BTreeSet<i32>,
        window: SignedDuration,
        now: Timestamp,
    ) -> BTreeMap<i32, GroupLoad> {
        let sets = self.children.values().map(|seen| &seen.live);
        let sets = sets.filter(|live| live.reference.kind == Kind::StatefulSet);
        let alive: BTreeSet<i32> = sets
            .filter_map(|set| set.label(labels::GROUP)?.parse().ok())
            .collect();
        let readings = &mut self.readings;
        // An id is used again for another group only long after the first one is gone.
        readings.retain(|id, _| alive.contains(id));
        let loads = answers.iter().map(|(id, answer)| {
            let known = readings.entry(*id).or_insert_with(|| {
                if old.contains(id) {
                    Readings::from_now(answer.counted)
                } else {
                    Readings::from_the_beginning()
                }
            });
            known.note(answer.counted, window, now);
            let recent = known.recent();
            (
                *id,
                GroupLoad {
                    recent,
                    ..answer.load
                },
            )
        });
        loads.collect()
    }

    /// A round has worked on the service, and it isn't gone.
    fn is_known(&self) -> bool {
        self.status_version > 0 || !self.written.is_empty()
    }

    /// Nothing is left of the service.
    fn is_over(&self) -> bool {
        !self.is_known() && self.children.is_empty() && self.pods.is_empty()
    }
}

/// What was seen; shared by watches and rounds.
#[derive(Default)]
pub(crate) struct Cache {
    inner: Mutex<Inner>,
}

/// Age of an object: the API server's versions are numbers that grow.
pub(crate) fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Cache {
    /// No holder of the lock panics half way: entries are replaced whole.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object as it is now. Whether that is news for decisions. `fresh` says that it is newer than whatever is here.
    pub(crate) fn put(&self, key: &ServiceKey, live: Live, version: u64, fresh: bool) -> bool {
        let mut inner = self.lock();
        let children = &mut inner.services.entry(key.clone()).or_default().children;
        let before = children.get(&live.reference);
        if before.is_some_and(|before| before.version > version && !fresh && before.live.uid == live.uid) {
            return false;
        }
        let live = live.slim();
        let news = before.is_none_or(|before| before.live != live);
        let reference = live.reference.clone();
        children.insert(reference, Seen { live, version });
        news
    }

    /// Services other than `key` among whose children an object is: its label named them before.
    pub(crate) fn elsewhere(&self, key: &ServiceKey, reference: &ObjectRef, uid: &str) -> Vec<ServiceKey> {
        self.others(key, |entry| {
            let seen = entry.children.get(reference);
            seen.is_some_and(|seen| seen.live.uid == uid)
        })
    }

    /// The same of a pod.
    pub(crate) fn pod_elsewhere(&self, key: &ServiceKey, name: &str, uid: &str) -> Vec<ServiceKey> {
        self.others(key, |entry| {
            let seen = entry.pods.get(name);
            seen.is_some_and(|seen| seen.view.uid == uid)
        })
    }

    /// Services of the same namespace that have something, unless this one has it already.
    fn others(&self, key: &ServiceKey, has: impl Fn(&Entry) -> bool) -> Vec<ServiceKey> {
        let inner = self.lock();
        if inner.services.get(key).is_some_and(&has) {
            return Vec::new();
        }
        let first = ServiceKey {
            namespace: key.namespace.clone(),
            base: String::new(),
        };
        let neighbours = inner.services.range(first..);
        let neighbours = neighbours.take_while(|(other, _)| other.namespace == key.namespace);
        neighbours
            .filter(|(_, entry)| has(entry))
            .map(|(other, _)| other.clone())
            .collect()
    }

    /// An object is gone. Whether that is news.
    pub(crate) fn remove(&self, key: &ServiceKey, reference: &ObjectRef, uid: &str) -> bool {
        let mut inner = self.lock();
        let Some(entry) = inner.services.get_mut(key) else {
            return false;
        };
        let same = entry.forget(reference, uid);
        if entry.is_over() {
            inner.services.remove(key);
        }
        same
    }

    /// Objects that were seen and that no watch shows: Secrets, and what lacks our label. What is left of a service that is gone is among
    /// them: nothing else says when that goes too.
    pub(crate) fn unwatched(&self) -> Vec<(ServiceKey, ObjectRef)> {
        let inner = self.lock();
        let of = |(key, entry): (&ServiceKey, &Entry)| {
            let is_unwatched =
                |child: &&ObjectRef| child.kind == Kind::Secret || entry.strangers.contains_key(*child);
            let named = entry.children.keys().filter(is_unwatched);
            let named = named.map(|object| (key.clone(), object.clone()));
            named.collect::<Vec<_>>()
        };
        inner.services.iter().flat_map(of).collect()
    }

    /// Whether an object that was seen has a newer version by now.
    pub(crate) fn is_news(&self, key: &ServiceKey, reference: &ObjectRef, version: u64) -> bool {
        let inner = self.lock();
        let entry = inner.services.get(key);
        let seen = entry.and_then(|entry| entry.children.get(reference));
        seen.is_some_and(|seen| seen.version < version)
    }

    /// A watch shows an object no longer: it is gone, or it lost the label by which it is watched. Whether that is news. The next
    /// round reads it by name, because an object that nobody sees would never be put right.
    /// `version` is the object's when it vanished: the answer to an earlier write may arrive later and must not hide it.
    pub(crate) fn vanish(&self, key: &ServiceKey, reference: &ObjectRef, uid: &str, version: u64) -> bool {
        let mut inner = self.lock();
        let Some(entry) = inner.services.get_mut(key) else {
            return false;
        };
        if !entry.forget(reference, uid) {
            // We deleted it, or the answer to its creation isn't here yet.
            entry.doubt(reference, version);
            return false;
        }
        entry.doubt(reference, version);
        if entry.is_over() {
            inner.services.remove(key);
        }
        true
    }

    /// Forgets the objects of a kind that a complete list didn't have; the services whose objects they were.
    pub(crate) fn keep_only(&self, kind: Kind, listed: &BTreeSet<(ServiceKey, String)>) -> Vec<ServiceKey> {
        let mut inner = self.lock();
        let mut changed = Vec::new();
        for (key, entry) in &mut inner.services {
            let gone = |reference: &&ObjectRef| {
                reference.kind == kind && !listed.contains(&(key.clone(), reference.name.clone()))
            };
            let gone: Vec<ObjectRef> = entry.children.keys().filter(gone).cloned().collect();
            for reference in &gone {
                entry.children.remove(reference);
                entry.doubt(reference, u64::MAX);
            }
            if !gone.is_empty() {
                changed.push(key.clone());
            }
        }
        changed
    }

    /// A pod as it is now. Whether that is news.
    pub(crate) fn put_pod(&self, key: &ServiceKey, pod: SeenPod) -> bool {
        let mut inner = self.lock();
        let pods = &mut inner.services.entry(key.clone()).or_default().pods;
        let name = pod.view.name.clone();
        let news = pods.get(&name) != Some(&pod);
        pods.insert(name, pod);
        news
    }

    /// A pod is gone. Whether that is news.
    pub(crate) fn remove_pod(&self, key: &ServiceKey, name: &str, uid: &str) -> bool {
        let mut inner = self.lock();
        let Some(entry) = inner.services.get_mut(key) else {
            return false;
        };
        let same = entry.pods.get(name).is_some_and(|pod| pod.view.uid == uid);
        if same {
            entry.pods.remove(name);
            if entry.is_over() {
                inner.services.remove(key);
            }
        }
        same
    }

    /// Forgets the pods that a complete list didn't have; the services whose pods they were.
    pub(crate) fn keep_only_pods(&self, listed: &BTreeSet<(ServiceKey, String)>) -> Vec<ServiceKey> {
        let mut inner = self.lock();
        let mut changed = Vec::new();
        for (key, entry) in &mut inner.services {
            let before = entry.pods.len();
            entry
                .pods
                .retain(|name, _| listed.contains(&(key.clone(), name.clone())));
            if entry.pods.len() != before {
                changed.push(key.clone());
            }
        }
        changed
    }

    /// A node as it is now, or that it is gone; the services with pods on it, if that is news.
    pub(crate) fn put_node(&self, name: &str, node: Option<NodeView>) -> Vec<ServiceKey> {
        let mut inner = self.lock();
        if inner.nodes.get(name) == node.as_ref() {
            return Vec::new();
        }
        match node {
            Some(node) => inner.nodes.insert(name.to_owned(), node),
            None => inner.nodes.remove(name),
        };
        let on_it = |entry: &Entry| {
            entry
                .pods
                .values()
                .any(|pod| pod.view.node.as_deref() == Some(name))
        };
        let services = inner.services.iter().filter(|(_, entry)| on_it(entry));
        services.map(|(key, _)| key.clone()).collect()
    }

    /// Names of all nodes.
    pub(crate) fn node_names(&self) -> Vec<String> {
        self.lock().nodes.keys().cloned().collect()
    }

    /// Everything about one service.
    pub(crate) fn snapshot(&self, key: &ServiceKey) -> Snapshot {
        let inner = self.lock();
        let Some(entry) = inner.services.get(key) else {
            return Snapshot::default();
        };
        let on = entry.pods.values().filter_map(|pod| pod.view.node.as_ref());
        let nodes = on.filter_map(|name| Some((name.clone(), inner.nodes.get(name)?.clone())));
        Snapshot {
            children: entry.children.values().map(|seen| seen.live.clone()).collect(),
            pods: entry.pods.values().cloned().collect(),
            nodes: nodes.collect(),
            written: entry.written.clone(),
            undone: entry.undone.clone(),
            failed: entry.failed.clone(),
            loads: entry.loads.clone(),
            enforcement: entry.enforcement.clone(),
            strangers: entry.strangers.keys().cloned().collect(),
        }
    }

    /// Uid of an object.
    pub(crate) fn uid(&self, key: &ServiceKey, reference: &ObjectRef) -> Option<String> {
        let inner = self.lock();
        let seen = inner.services.get(key)?.children.get(reference)?;
        Some(seen.live.uid.clone())
    }

    /// Remembers how our write left an object.
    pub(crate) fn wrote(&self, key: &ServiceKey, live: &Live) {
        let written = Written {
            uid: live.uid.clone(),
            digest: live.digest().to_owned(),
        };
        let mut inner = self.lock();
        let entry = inner.services.entry(key.clone()).or_default();
        entry.written.insert(live.reference.clone(), written);
        entry.failed.remove(&live.reference);
        let ours = version(live.object["metadata"]["resourceVersion"].as_str());
        if entry
            .strangers
            .get(&live.reference)
            .is_some_and(|doubt| ours > *doubt)
        {
            entry.strangers.remove(&live.reference);
        }
    }

    /// Counts that an object was set back.
    pub(crate) fn undid(&self, key: &ServiceKey, reference: &ObjectRef, now: Timestamp) {
        let mut inner = self.lock();
        let undone = &mut inner.services.entry(key.clone()).or_default().undone;
        let next = Undone::once_more(undone.get(reference).copied(), now);
        undone.insert(reference.clone(), next);
    }

    /// Takes over what an earlier operator wrote.
    pub(crate) fn adopt(&self, key: &ServiceKey, written: BTreeMap<ObjectRef, Written>) {
        if !written.is_empty() {
            let mut inner = self.lock();
            inner.services.entry(key.clone()).or_default().written = written;
        }
    }

    /// Remembers that an object couldn't be written.
    pub(crate) fn failed(&self, key: &ServiceKey, reference: &ObjectRef, why: FailedWrite) {
        let mut inner = self.lock();
        let entry = inner.services.entry(key.clone()).or_default();
        entry.failed.insert(reference.clone(), why);
    }

    /// A round begins to write: what couldn't be written before may succeed now.
    pub(crate) fn begin_writing(&self, key: &ServiceKey) {
        if let Some(entry) = self.lock().services.get_mut(key) {
            entry.failed.clear();
        }
    }

    /// An object that we own has been deleted by us.
    pub(crate) fn forget_written(&self, key: &ServiceKey, reference: &ObjectRef) {
        if let Some(entry) = self.lock().services.get_mut(key) {
            entry.written.remove(reference);
            entry.undone.remove(reference);
            entry.failed.remove(reference);
        }
    }

    /// Remembers that a name is taken by an object that no watch shows.
    pub(crate) fn stranger(&self, key: &ServiceKey, reference: ObjectRef, seen: u64) {
        let mut inner = self.lock();
        let entry = inner.services.entry(key.clone()).or_default();
        entry.strangers.insert(reference, seen);
    }

    /// The name is free again.
    pub(crate) fn stranger_left(&self, key: &ServiceKey, reference: &ObjectRef) {
        if let Some(entry) = self.lock().services.get_mut(key) {
            entry.strangers.remove(reference);
        }
    }

    /// What the operator found out about the network's policies. Whether that is news.
    pub(crate) fn put_enforcement(&self, key: &ServiceKey, found: Enforcement) -> bool {
        let mut inner = self.lock();
        let Some(entry) = inner.services.get_mut(key) else {
            return false;
        };
        let found = Some(found);
        let news = entry.enforcement != found;
        entry.enforcement = found;
        news
    }

    /// What the groups' engines just answered. Whether that is news. Requests that ended within `window` are counted in the loads;
    /// of the groups in `old`, which served before that, only those since the first answer.
    pub(crate) fn put_loads(
        &self,
        key: &ServiceKey,
        answers: &BTreeMap<i32, Answer>,
        old: &BTreeSet<i32>,
        window: SignedDuration,
        now: Timestamp,
    ) -> bool {
        let mut inner = self.lock();
        let Some(entry) = inner.services.get_mut(key) else {
            return false;
        };
        let loads = entry.note_outcomes(answers, old, window, now);
        let news = entry.loads != loads;
        entry.loads = loads;
        news
    }

    /// Notes which services' models the gateway's file lists, and whether its pods were told. Whether that is news.
    pub(crate) fn put_told(&self, key: &ServiceKey, listed: Vec<String>, is_told: bool) -> bool {
        let mut inner = self.lock();
        let Some(entry) = inner.services.get_mut(key) else {
            return false;
        };
        let now = (listed, is_told);
        let news = entry.told != now;
        entry.told = now;
        news
    }

    /// Version of the service that our last write of its status made.
    pub(crate) fn status_version(&self, key: &ServiceKey) -> u64 {
        self.lock()
            .services
            .get(key)
            .map_or(0, |entry| entry.status_version)
    }

    /// Remembers which version our write of the status made.
    pub(crate) fn wrote_status(&self, key: &ServiceKey, version: u64) {
        let mut inner = self.lock();
        inner.services.entry(key.clone()).or_default().status_version = version;
    }

    /// Remembers the name behind a base.
    pub(crate) fn named(&self, key: &ServiceKey, name: &str) {
        if key.base != name {
            let mut inner = self.lock();
            inner.services.entry(key.clone()).or_default().name = Some(name.to_owned());
        }
    }

    /// Name of the service.
    pub(crate) fn name(&self, key: &ServiceKey) -> String {
        let inner = self.lock();
        let name = inner.services.get(key).and_then(|entry| entry.name.clone());
        name.unwrap_or_else(|| key.base.clone())
    }

    /// The service is gone: what was written for it is of no use, what is left of its children is still shown by watches.
    pub(crate) fn forget(&self, key: &ServiceKey) {
        let mut inner = self.lock();
        if let Some(entry) = inner.services.get_mut(key) {
            entry.written.clear();
            entry.undone.clear();
            entry.failed.clear();
            entry.strangers.clear();
            // Secrets that it only read are others', and stay.
            entry.children.retain(|object, seen| {
                object.kind != Kind::Secret || seen.live.label(labels::SERVICE) == Some(key.base.as_str())
            });
            entry.loads.clear();
            entry.readings.clear();
            entry.own = None;
            entry.status_version = 0;
            if entry.is_over() {
                inner.services.remove(key);
            }
        }
    }

    /// What the operator presents itself with to the service's pods.
    pub(crate) fn own(&self, key: &ServiceKey) -> Option<OwnIdentity> {
        self.lock().services.get(key)?.own.clone()
    }

    /// Keeps what the operator presents itself with.
    pub(crate) fn keep_own(&self, key: &ServiceKey, own: Option<OwnIdentity>) {
        let mut inner = self.lock();
        inner.services.entry(key.clone()).or_default().own = own;
    }

    /// How many children, pods and nodes are held.
    pub(crate) fn size(&self) -> (usize, usize, usize) {
        let inner = self.lock();
        let children = inner.services.values().map(|entry| entry.children.len()).sum();
        let pods = inner.services.values().map(|entry| entry.pods.len()).sum();
        (children, pods, inner.nodes.len())
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
