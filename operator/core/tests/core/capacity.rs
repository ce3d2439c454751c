//! Pods that find no node, or that nobody may create.

use jiff::SignedDuration;
use kvasir_operator_api::ConditionType;
use kvasir_operator_core::{plan, status, validate};
use serde_json::json;

use crate::fake::Fake;

#[test]
fn of_groups_that_hold_each_others_nodes_all_but_one_let_go() {
    let mut fake = Fake::new(json!({ "replicas": 2, "topology": { "tensor": 2 } }));
    fake.reconcile();
    fake.tick(1);
    // Each found one node of the two it needs.
    let halve = |fake: &mut Fake| {
        for pod in fake.pods.values_mut().filter(|pod| pod.view.group.is_some()) {
            let first = pod.view.ordinal == 0;
            pod.view.node = first.then(|| "node-0".to_owned());
            pod.view.unschedulable = (!first).then(|| "0/1 nodes are available".to_owned());
            pod.view.ready = false;
        }
    };
    halve(&mut fake);
    fake.reconcile();
    fake.now += fake.settings.reform_timeout - SignedDuration::from_secs(1);
    assert!(fake.reconcile().decisions.restart_pods.is_empty());
    fake.now += SignedDuration::from_secs(2);
    let made = fake.reconcile();
    let mut released: Vec<_> = made
        .decisions
        .restart_pods
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    released.sort_unstable();
    assert_eq!(released, ["chat-g1-0", "chat-g1-1"]);
    assert_eq!(fake.status().groups[1].restarts, 0, "it wasn't a failure");
    halve(&mut fake);
    fake.now += SignedDuration::from_secs(60);
    assert!(
        fake.reconcile().decisions.restart_pods.is_empty(),
        "it waits before it tries again"
    );
}

#[test]
fn pods_that_a_quota_forbids_are_said_and_nothing_is_made_anew_for_them() {
    let mut fake = Fake::new(json!({}));
    fake.reconcile();
    let service = validate(&fake.service, &fake.settings).unwrap();
    let said = |why: &str| {
        let mut observed = fake.observe();
        observed.refused_pods.insert(0, why.to_owned());
        let made = plan(&service, &observed, &fake.settings, fake.now);
        assert!(made.decisions.restart_pods.is_empty());
        let status = status::of_running(&service, None, &made, &observed, &fake.settings, fake.now);
        let reason = |part| status.condition(part).unwrap().reason.clone();
        (
            reason(ConditionType::Accepted),
            reason(ConditionType::EnginesReady),
        )
    };
    let quota = said("create Pod chat-g0-0 in StatefulSet chat-g0 failed error: exceeded quota: pods");
    assert_eq!(
        quota,
        ("QuotaExceeded".to_owned(), "InsufficientCapacity".to_owned())
    );
    let other = said("create Pod chat-g0-0 in StatefulSet chat-g0 failed error: violates PodSecurity");
    assert_eq!(other, ("Valid".to_owned(), "Forbidden".to_owned()));
}

#[test]
fn a_pod_that_is_held_back_by_scheduling_gates_is_named_with_them() {
    let mut fake = Fake::new(json!({}));
    fake.reconcile();
    fake.tick(1);
    let pod = &mut fake.pods.get_mut("chat-g0-0").unwrap().view;
    (pod.node, pod.gates) = (None, Some("queue.example/turn".to_owned()));
    fake.reconcile();
    let status = fake.status();
    let engines = status.condition(ConditionType::EnginesReady).unwrap();
    assert_eq!(
        (engines.status.as_str(), engines.reason.as_str()),
        ("False", "SchedulingGated")
    );
    assert_eq!(
        engines.message,
        "pod chat-g0-0 has scheduling gates (queue.example/turn): it starts when whoever set them takes them away"
    );
}

#[test]
fn what_keeps_the_gateways_pods_from_starting_is_said() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    let mut said = |reason: &str| {
        for pod in fake.pods.values_mut().filter(|pod| pod.view.is_gateway) {
            (pod.view.ready, pod.view.waiting) = (false, Some(reason.to_owned()));
        }
        fake.reconcile();
        let status = fake.status();
        status
            .condition(ConditionType::GatewayReady)
            .unwrap()
            .message
            .clone()
    };
    assert_eq!(
        said("ImagePullBackOff"),
        "0 of 2 gateway pods are ready; pod chat-gateway-0: ImagePullBackOff"
    );
    assert_eq!(said("ContainerCreating"), "0 of 2 gateway pods are ready");
}
