//! Events: what people should be told, once, with a count where it goes on.
//!
//! The same text about the same service within [`SERIES`] is one event whose series counts; the count is written when it has
//! doubled, so that something that repeats for ever doesn't write for ever.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use kvasir_operator_api::{InferenceService, MAX_MESSAGE_BYTES};
use kvasir_operator_core::groups;
use serde_json::json;

use crate::metrics::Metrics;
use crate::watch::{MANAGER, chain};

/// How long the same text counts as the same event.
const SERIES: SignedDuration = SignedDuration::from_mins(6);
/// Most events that are remembered.
const MOST: usize = 10_000;
/// Who reports.
const CONTROLLER: &str = "kvasir.dev/operator";

/// What makes two events the same: the service's uid, the reason, the text.
type Identity = (String, &'static str, String);

#[derive(Clone, Debug)]
struct Told {
    name: String,
    at: Timestamp,
    count: i32,
    written: i32,
}

/// Publishes events.
pub(crate) struct Events {
    client: Client,
    instance: String,
    told: Mutex<BTreeMap<Identity, Told>>,
    metrics: std::sync::Arc<Metrics>,
}

/// What to do about one more event.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create(String),
    Count(String, i32),
    Nothing,
}

impl Events {
    pub(crate) fn new(client: Client, instance: String, metrics: std::sync::Arc<Metrics>) -> Self {
        Self {
            client,
            instance,
            told: Mutex::default(),
            metrics,
        }
    }

    /// Publishes an event about a service. That it can't be published is logged and changes nothing else.
    pub(crate) async fn publish(&self, service: &InferenceService, event: &groups::Event) {
        let now = Timestamp::now();
        let namespace = service.namespace().unwrap_or_default();
        let uid = service.uid().unwrap_or_default();
        let identity = (uid, event.reason.as_str(), event.message.clone());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let step = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            step(&mut told, identity, &service.name_any(), now)
        };
        let result = match step {
            Step::Create(name) => {
                let object = self.event(service, event, name, now);
                let params = PostParams {
                    field_manager: Some(MANAGER.to_owned()),
                    ..PostParams::default()
                };
                api.create(&params, &object).await.map(drop)
            }
            Step::Count(name, count) => {
                let patch = json!({ "series": { "count": count, "lastObservedTime": MicroTime(now) } });
                let params = PatchParams {
                    field_manager: Some(MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                api.patch(&name, &params, &Patch::Merge(&patch)).await.map(drop)
            }
            Step::Nothing => return,
        };
        self.metrics.told(result.is_ok());
        if let Err(error) = result {
            let name = service.name_any();
            tracing::warn!(%namespace, %name, reason = event.reason.as_str(), error = %chain(&error), "an event couldn't be published");
        }
    }

    fn event(
        &self,
        service: &InferenceService,
        event: &groups::Event,
        name: String,
        now: Timestamp,
    ) -> Event {
        let mut note = event.message.clone();
        let mut end = note.len().min(MAX_MESSAGE_BYTES);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: service.namespace(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            action: Some("Reconcile".to_owned()),
            reason: Some(event.reason.as_str().to_owned()),
            note: Some(note),
            type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.chars().take(128).collect()),
            regarding: Some(ObjectReference {
                api_version: Some("kvasir.dev/v1alpha1".to_owned()),
                kind: Some("InferenceService".to_owned()),
                name: service.metadata.name.clone(),
                namespace: service.namespace(),
                uid: service.uid(),
                ..ObjectReference::default()
            }),
            ..Event::default()
        }
    }
}

fn step(told: &mut BTreeMap<Identity, Told>, identity: Identity, service: &str, now: Timestamp) -> Step {
    if let Some(before) = told
        .get_mut(&identity)
        .filter(|told| now.duration_since(told.at) < SERIES)
    {
        before.at = now;
        before.count = before.count.saturating_add(1);
        if before.count < before.written.saturating_mul(2) {
            return Step::Nothing;
        }
        before.written = before.count;
        return Step::Count(before.name.clone(), before.count);
    }
    if told.len() >= MOST {
        told.retain(|_, told| now.duration_since(told.at) < SERIES);
    }
    if told.len() >= MOST {
        told.pop_first();
    }
    let name = format!("{service}.{:x}", now.as_nanosecond());
    let new = Told {
        name: name.clone(),
        at: now,
        count: 1,
        written: 1,
    };
    told.insert(identity, new);
    Step::Create(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + seconds).unwrap()
    }

    fn identity(text: &str) -> Identity {
        ("uid".to_owned(), "RankFailed", text.to_owned())
    }

    #[test]
    fn the_same_event_is_one_series_that_is_written_when_its_count_doubles() {
        let mut told = BTreeMap::new();
        let Step::Create(name) = step(&mut told, identity("a"), "chat", at(0)) else {
            panic!("the first one is created")
        };
        let written: Vec<i32> = (1..100)
            .filter_map(|i| match step(&mut told, identity("a"), "chat", at(i)) {
                Step::Count(same, count) => {
                    assert_eq!(same, name);
                    Some(count)
                }
                Step::Nothing => None,
                Step::Create(other) => panic!("{other}"),
            })
            .collect();
        assert_eq!(written, [2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn another_text_or_a_long_pause_makes_another_event() {
        let mut told = BTreeMap::new();
        step(&mut told, identity("a"), "chat", at(0));
        assert!(matches!(
            step(&mut told, identity("b"), "chat", at(1)),
            Step::Create(_)
        ));
        assert!(matches!(
            step(&mut told, identity("a"), "chat", at(400)),
            Step::Create(_)
        ));
    }

    #[test]
    fn memory_is_bounded() {
        let mut told = BTreeMap::new();
        for i in 0..(MOST + 100) {
            step(&mut told, identity(&i.to_string()), "chat", at(0));
        }
        assert_eq!(told.len(), MOST);
    }
}
