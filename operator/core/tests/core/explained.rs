//! What `explain` says, word for word. `UPDATE_GOLDEN=1` writes the files anew.

use jiff::{SignedDuration, Timestamp};
use kvasir_operator_core::explain::explain;
use kvasir_operator_core::observed::{NodeView, PodView};
use serde_json::json;

use crate::fake::{Fake, service};

fn check(name: &str, fake: &Fake) {
    let pods: Vec<_> = fake.pods.values().map(|pod| pod.view.clone()).collect();
    let text = explain(&fake.service, &pods, &fake.nodes, fake.now);
    golden(name, &text);
}

#[expect(
    clippy::disallowed_methods,
    reason = "goldens lie in files; the crate itself reads none"
)]
fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/core/explained/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{path}");
}

#[test]
fn a_service_that_serves() {
    let mut fake = Fake::new(json!({ "replicas": 2 }));
    fake.settle();
    check("serves", &fake);
}

#[test]
fn a_service_that_nobody_has_looked_at() {
    let service = service(json!({}));
    let now = Timestamp::UNIX_EPOCH;
    golden("new", &explain(&service, &[], &[].into(), now));
}

#[test]
fn a_rank_that_ends_again_and_again() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    fake.fail_pod("chat-g0-0");
    if let Some(pod) = fake.pods.get_mut("chat-g0-0") {
        pod.view.running = false;
        pod.view.waiting = Some("CrashLoopBackOff".to_owned());
    }
    fake.now += SignedDuration::from_secs(30);
    fake.reconcile();
    check("crash-loop", &fake);
}

#[test]
fn a_pod_that_no_node_takes() {
    let mut fake = Fake::new(json!({}));
    for node in fake.nodes.values_mut() {
        node.cordoned = true;
    }
    fake.reconcile();
    fake.tick(30);
    fake.reconcile();
    check("unschedulable", &fake);
}

#[test]
fn a_pod_that_is_held_back_and_one_that_is_somebody_elses() {
    let mut fake = Fake::new(json!({}));
    fake.reconcile();
    fake.tick(1);
    let pod = &mut fake.pods.get_mut("chat-g0-0").unwrap().view;
    (pod.node, pod.gates) = (None, Some("queue.example/turn".to_owned()));
    fake.intrude(PodView {
        name: "notes-0".to_owned(),
        group: Some(0),
        ..PodView::default()
    });
    fake.reconcile();
    check("held-back", &fake);
}

#[test]
fn a_node_that_does_not_answer() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    let node = fake.pods["chat-g0-0"].view.node.clone().unwrap();
    let since = fake.now;
    fake.nodes.insert(
        node,
        NodeView {
            not_ready_since: Some(since),
            ..NodeView::default()
        },
    );
    fake.tick(90);
    fake.reconcile();
    check("node-lost", &fake);
}

#[test]
fn a_change_that_the_operator_has_not_seen() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    fake.edit(|spec| spec.suspend = true);
    check("stale", &fake);
    fake.settle();
    check("suspended", &fake);
}
