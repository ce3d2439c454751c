//! What is said of the model and the engines.

use kvasir_operator_api::ConditionType::{EnginesReady, ModelReady};
use kvasir_operator_api::{InferenceServiceStatus, Reason};
use kvasir_operator_core::child::Kind;
use kvasir_operator_core::observed::{PodView, foreign_pod};
use serde_json::json;

use super::{Row, after, at_rest, broken, first, seen, settled};
use crate::fake::Fake;

pub(super) const ROWS: &[Row] = &[
    (ModelReady, "Unknown", Reason::Resolving, || first(json!({}))),
    (ModelReady, "True", Reason::Resolved, || settled(json!({}))),
    (ModelReady, "True", Reason::Cached, || {
        settled(json!({
            "model": { "source": { "huggingFace": { "repo": "org/model" } } },
            "network": { "modelEgress": [{ "cidr": "192.0.2.0/24" }] },
            "storage": { "cache": { "size": "1Gi" } },
        }))
    }),
    // By the exit code, whatever the log says.
    (ModelReady, "False", Reason::LoadFailed, || {
        broken(65, "404 not found")
    }),
    (ModelReady, "False", Reason::SourceNotFound, || {
        broken(66, "checksum")
    }),
    (ModelReady, "False", Reason::PullFailed, || {
        broken(69, "connection refused")
    }),
    (ModelReady, "False", Reason::NoSpace, || {
        broken(73, "7 GB are free")
    }),
    (ModelReady, "False", Reason::DigestMismatch, || {
        broken(76, "it is cut off")
    }),
    (ModelReady, "False", Reason::Unauthorized, || {
        broken(77, "a token is needed")
    }),
    // By the log, where the code says nothing.
    (ModelReady, "False", Reason::LoadFailed, || {
        broken(1, "can't load model.safetensors: it is cut off")
    }),
    (ModelReady, "False", Reason::SourceNotFound, || {
        broken(1, "/models/a doesn't exist")
    }),
    (ModelReady, "False", Reason::NoSpace, || {
        broken(1, "No space left on device")
    }),
    (ModelReady, "False", Reason::DigestMismatch, || {
        broken(1, "the digest of a.gguf is another one")
    }),
    (ModelReady, "False", Reason::Unauthorized, || {
        broken(1, "hub: 401 Unauthorized")
    }),
    // Neither is about the model.
    (ModelReady, "Unknown", Reason::Resolving, || broken(64, "gguf")),
    (ModelReady, "Unknown", Reason::Resolving, || broken(1, "panicked")),
    (EnginesReady, "Unknown", Reason::Starting, || first(json!({}))),
    (EnginesReady, "False", Reason::SchedulingGated, || {
        let mut fake = Fake::new(json!({}));
        fake.reconcile();
        seen(&fake, |observed| {
            let pod = PodView {
                group: Some(0),
                gates: Some("queue.example/turn".to_owned()),
                ..PodView::default()
            };
            observed.pods.push(pod);
        })
    }),
    (EnginesReady, "True", Reason::MinimumGroupsAvailable, || {
        settled(json!({}))
    }),
    (EnginesReady, "False", Reason::ScaledToZero, || {
        settled(json!({ "replicas": 0 }))
    }),
    (EnginesReady, "False", Reason::InsufficientCapacity, || {
        let mut fake = Fake::new(json!({}));
        for node in fake.nodes.values_mut() {
            node.cordoned = true;
        }
        fake.reconcile();
        fake.tick(5);
        fake.reconcile();
        fake.status()
    }),
    (EnginesReady, "False", Reason::ImagePullFailed, || {
        after(json!({}), |fake| {
            let view = &mut fake.pods.get_mut("chat-g0-0").unwrap().view;
            view.ready = false;
            view.waiting = Some("ImagePullBackOff".to_owned());
        })
    }),
    (EnginesReady, "False", Reason::RankFailed, || {
        after(json!({}), |fake| fake.fail_pod("chat-g0-0"))
    }),
    (EnginesReady, "False", Reason::CrashLoop, || broken(1, "")),
    (EnginesReady, "False", Reason::RendezvousTimeout, || {
        // Its ranks lost each other, and none has failed.
        let mut fake = at_rest(json!({ "topology": { "tensor": 2 } }));
        fake.parted = true;
        fake.tick(5);
        fake.reconcile();
        fake.now += fake.settings.reform_timeout;
        fake.reconcile();
        fake.status()
    }),
    (EnginesReady, "False", Reason::InsufficientCapacity, || {
        without_pods("exceeded quota: pods")
    }),
    (EnginesReady, "False", Reason::Forbidden, || {
        without_pods("violates PodSecurity")
    }),
    (EnginesReady, "False", Reason::NameCollision, || {
        without_pods(&foreign_pod("chat-g0-0", "Job other"))
    }),
];

/// Nobody may make the pods of a group.
fn without_pods(why: &str) -> InferenceServiceStatus {
    let mut fake = Fake::new(json!({}));
    fake.reconcile();
    assert!(fake.objects.keys().any(|made| made.kind == Kind::StatefulSet));
    seen(&fake, |observed| {
        observed.refused_pods.insert(0, why.to_owned());
    })
}
