//! Which services have to do with each other: those behind one gateway.
//!
//! A round of one reads what the others say, so news of one is news for them: a host looks when a guest comes, changes or goes, and guests
//! look when their host or one of them does. What changes in a status every minute and means nothing to others, as load does, isn't news.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kvasir_operator_api::names::short_hash;
use kvasir_operator_api::{ConditionType, InferenceService};
use kvasir_operator_core::accepted;
use kvasir_operator_core::sharing::reference;
use serde_json::json;

/// Namespace and name of a service.
type Key = (String, String);

/// What others read of a service.
#[derive(Clone, PartialEq)]
struct Face {
    /// The services whose gateways it asks for, and was accepted behind.
    hosts: BTreeSet<Key>,
    /// Hash of everything else.
    rest: String,
}

#[derive(Default)]
struct Known {
    faces: BTreeMap<Key, Face>,
    guests: BTreeMap<Key, BTreeSet<Key>>,
    /// Services that a list which is being read has shown so far.
    listed: Option<BTreeSet<Key>>,
}

/// What is known of all services.
#[derive(Default)]
pub(crate) struct Neighbours {
    known: Mutex<Known>,
}

impl Neighbours {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of an event. The other services that it is news for.
    pub(crate) fn note(&self, event: &Event<InferenceService>) -> Vec<ObjectRef<InferenceService>> {
        let mut known = self.lock();
        let keys = match event {
            Event::Init => {
                known.listed = Some(BTreeSet::new());
                BTreeSet::new()
            }
            Event::InitApply(service) => {
                let key = key(service);
                known.listed.get_or_insert_default().insert(key.clone());
                known.put(key, face(service))
            }
            Event::InitDone => {
                let listed = known.listed.take().unwrap_or_default();
                let gone: Vec<Key> = known
                    .faces
                    .keys()
                    .filter(|key| !listed.contains(*key))
                    .cloned()
                    .collect();
                gone.iter().flat_map(|key| known.remove(key)).collect()
            }
            Event::Apply(service) => known.put(key(service), face(service)),
            Event::Delete(service) => known.remove(&key(service)),
        };
        let reference = |(namespace, name): Key| ObjectRef::new(&name).within(&namespace);
        keys.into_iter().map(reference).collect()
    }

    /// The services that a round of this one reads: those that it names, and all that name the same ones or this one.
    pub(crate) fn of(
        &self,
        service: &InferenceService,
        services: &Store<InferenceService>,
    ) -> Vec<Arc<InferenceService>> {
        let own = key(service);
        let keys = self.lock().around(&own, &hosts_of(service));
        let others = keys.into_iter().filter(|key| *key != own);
        others
            .filter_map(|(namespace, name)| services.get(&ObjectRef::new(&name).within(&namespace)))
            .collect()
    }
}

impl Known {
    /// All that have to do with a service of that name behind the gateways of these hosts.
    fn around(&self, key: &Key, hosts: &BTreeSet<Key>) -> BTreeSet<Key> {
        let guests = |key: &Key| self.guests.get(key).into_iter().flatten().cloned();
        let siblings = hosts.iter().flat_map(guests);
        guests(key).chain(siblings).chain(hosts.iter().cloned()).collect()
    }

    fn put(&mut self, key: Key, face: Face) -> BTreeSet<Key> {
        if self.faces.get(&key) == Some(&face) {
            return BTreeSet::new();
        }
        let before = self.hosts(&key);
        let mut news = self.around(&key, &before);
        self.leave(&key, &before);
        for host in &face.hosts {
            self.guests.entry(host.clone()).or_default().insert(key.clone());
        }
        news.extend(self.around(&key, &face.hosts));
        news.remove(&key);
        self.faces.insert(key, face);
        news
    }

    fn remove(&mut self, key: &Key) -> BTreeSet<Key> {
        let before = self.hosts(key);
        self.faces.remove(key);
        let mut news = self.around(key, &before);
        self.leave(key, &before);
        news.remove(key);
        news
    }

    fn hosts(&self, key: &Key) -> BTreeSet<Key> {
        self.faces
            .get(key)
            .map(|face| face.hosts.clone())
            .unwrap_or_default()
    }

    fn leave(&mut self, key: &Key, hosts: &BTreeSet<Key>) {
        for host in hosts {
            if let Some(guests) = self.guests.get_mut(host) {
                guests.remove(key);
                if guests.is_empty() {
                    self.guests.remove(host);
                }
            }
        }
    }
}

fn key(service: &InferenceService) -> Key {
    (service.namespace().unwrap_or_default(), service.name_any())
}

fn hosts_of(service: &InferenceService) -> BTreeSet<Key> {
    let namespace = service.namespace().unwrap_or_default();
    let accepted = accepted::spec(service);
    let named = [Some(&service.spec), accepted.as_deref()].map(|spec| reference(spec?));
    let host = |name: &str| (namespace.clone(), name.to_owned());
    named.into_iter().flatten().map(host).collect()
}

/// What a host or a guest of the service decides from.
fn face(service: &InferenceService) -> Face {
    let metadata = &service.metadata;
    let status = service.status.clone().unwrap_or_default();
    let conditions = [
        ConditionType::Accepted,
        ConditionType::GatewayReady,
        ConditionType::CertificatesReady,
    ];
    let said = conditions.map(|kind| {
        let condition = status.condition(kind);
        // Guests pass on why their host isn't accepted.
        let message =
            (kind == ConditionType::Accepted).then(|| condition.map(|condition| condition.message.clone()));
        condition.map(|condition| (condition.status.clone(), condition.reason.clone(), message))
    });
    let serves = status.groups.iter().map(|group| {
        let serves = group.ready_since.is_some() && group.unready_since.is_none();
        (group.revision.as_str(), group.draining, serves)
    });
    let rest = json!({
        "uid": metadata.uid,
        "generation": metadata.generation,
        // One of them decides whether a spec is accepted.
        "annotations": metadata.annotations,
        "leaves": metadata.deletion_timestamp,
        "said": said,
        "accepted": status.accepted_spec,
        "gateway": status.gateway,
        "current": status.current_revision,
        "update": status.update_revision,
        "rollout": status.rollout,
        "groups": serves.collect::<Vec<_>>(),
    });
    Face {
        hosts: hosts_of(service),
        rest: short_hash(rest.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn service(name: &str, host: Option<&str>) -> InferenceService {
        let mut manifest = json!({
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": { "name": name, "namespace": "team", "uid": name, "generation": 1 },
            "spec": { "model": { "source": { "pvc": { "claimName": "models" } } } },
        });
        if let Some(host) = host {
            manifest["spec"]["gateway"] = json!({ "enabled": false, "gatewayRef": { "name": host } });
        }
        serde_json::from_value(manifest).unwrap()
    }

    fn edited(mut service: InferenceService) -> InferenceService {
        service.metadata.generation = Some(2);
        service
    }

    fn told(neighbours: &Neighbours, event: &Event<InferenceService>) -> Vec<String> {
        let all = neighbours.note(event).into_iter();
        all.map(|service| service.name).collect()
    }

    fn three() -> Neighbours {
        let neighbours = Neighbours::default();
        for service in [
            service("host", None),
            service("one", Some("host")),
            service("two", Some("host")),
            service("other", None),
        ] {
            neighbours.note(&Event::Apply(service));
        }
        neighbours
    }

    #[test]
    fn a_host_is_news_for_its_guests_and_a_guest_for_its_host_and_the_other_guests() {
        let neighbours = three();
        assert_eq!(
            told(&neighbours, &Event::Apply(edited(service("host", None)))),
            ["one", "two"]
        );
        assert_eq!(
            told(&neighbours, &Event::Apply(edited(service("one", Some("host"))))),
            ["host", "two"]
        );
        assert!(told(&neighbours, &Event::Apply(edited(service("other", None)))).is_empty());
    }

    #[test]
    fn a_guest_that_leaves_is_news_for_the_host_that_it_left_and_for_the_one_that_it_names_now() {
        let neighbours = three();
        assert_eq!(
            told(&neighbours, &Event::Apply(edited(service("one", Some("other"))))),
            ["host", "other", "two"]
        );
        assert_eq!(
            told(&neighbours, &Event::Delete(service("two", Some("host")))),
            ["host"]
        );
        assert!(told(&neighbours, &Event::Apply(edited(service("host", None)))).is_empty());
    }

    #[test]
    fn a_guest_waits_for_a_host_that_does_not_exist_yet() {
        let neighbours = Neighbours::default();
        neighbours.note(&Event::Apply(service("one", Some("later"))));
        assert_eq!(told(&neighbours, &Event::Apply(service("later", None))), ["one"]);
        assert_eq!(told(&neighbours, &Event::Delete(service("later", None))), ["one"]);
    }

    #[test]
    fn what_a_complete_list_does_not_have_is_gone() {
        let neighbours = three();
        neighbours.note(&Event::Init);
        neighbours.note(&Event::InitApply(service("one", Some("host"))));
        neighbours.note(&Event::InitApply(service("host", None)));
        assert_eq!(told(&neighbours, &Event::InitDone), ["host", "one"]);
    }

    #[test]
    fn load_is_no_news_for_others_and_shares_of_a_canary_are() {
        let neighbours = three();
        let with = |status: Value| {
            let mut service = service("one", Some("host"));
            service.status = serde_json::from_value(status).unwrap();
            service
        };
        let group = |kv: u32, revision: &str| json!({ "groups": [{ "id": 0, "revision": revision, "kvUsagePermille": kv }] });
        assert_eq!(told(&neighbours, &Event::Apply(with(group(1, "a")))).len(), 2);
        assert!(told(&neighbours, &Event::Apply(with(group(2, "a")))).is_empty());
        assert_eq!(told(&neighbours, &Event::Apply(with(group(2, "b")))).len(), 2);
    }
}
