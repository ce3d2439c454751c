//! Scaling, drains and suspension against the fake cluster, one story each.

use kvasir_operator_api::AutoscalingMode;
use kvasir_operator_core::observed::GroupLoad;
use serde_json::json;

use crate::fake::Fake;
use crate::story::{is_complete, ready, run};

#[test]
fn scaling_down_drains_the_group_with_fewest_requests_and_waits_for_them() {
    let mut fake = ready(3);
    for (id, running) in [(0, 5), (1, 1), (2, 9)] {
        fake.loads.insert(
            id,
            GroupLoad {
                running,
                ..GroupLoad::default()
            },
        );
    }
    fake.edit(|spec| spec.replicas = 2);
    fake.reconcile();
    let draining: Vec<i32> = fake
        .status()
        .groups
        .iter()
        .filter(|g| g.draining)
        .map(|g| g.id)
        .collect();
    assert_eq!(draining, [1]);
    fake.tick(5);
    let early = fake.reconcile();
    assert_eq!(early.decisions.drain, [1], "gateways hear of it from the engine");
    fake.tick(55);
    let later = fake.reconcile();
    assert_eq!(later.decisions.drain, [1]);
    assert_eq!(fake.sets().len(), 3, "a request still runs");
    fake.loads.insert(1, GroupLoad::default());
    fake.reconcile();
    assert_eq!(fake.sets().len(), 2);
}

#[test]
fn an_idle_group_is_told_to_take_nothing_new_before_it_goes() {
    let mut fake = ready(2);
    fake.loads = [0, 1].map(|id| (id, GroupLoad::default())).into();
    fake.edit(|spec| spec.replicas = 1);
    fake.reconcile();
    assert_eq!(fake.reconcile().decisions.drain, [1]);
    assert_eq!(
        fake.sets().len(),
        2,
        "requests that were sent before gateways heard of it arrive"
    );
}

#[test]
fn a_drain_ends_at_its_timeout() {
    let mut fake = ready(2);
    for id in 0..2 {
        fake.loads.insert(
            id,
            GroupLoad {
                running: 1,
                ..GroupLoad::default()
            },
        );
    }
    fake.edit(|spec| spec.replicas = 1);
    fake.reconcile();
    fake.tick(299);
    fake.reconcile();
    assert_eq!(fake.sets().len(), 2);
    fake.tick(2);
    fake.reconcile();
    assert_eq!(fake.sets().len(), 1);
}

#[test]
fn suspend_stops_all_groups_and_resuming_brings_them_back() {
    let mut fake = ready(2);
    fake.edit(|spec| spec.suspend = true);
    fake.settle();
    assert_eq!(fake.sets().len(), 0);
    assert_eq!(
        fake.condition("Ready"),
        ("False".to_owned(), "Suspended".to_owned())
    );
    fake.edit(|spec| spec.suspend = false);
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
}

#[test]
fn counters_follow_children_from_one_to_five_and_back() {
    let mut fake = ready(1);
    for replicas in [5, 1] {
        fake.edit(|spec| spec.replicas = replicas);
        fake.settle();
        let status = fake.status();
        assert_eq!(
            (status.replicas, status.ready_replicas, status.updated_replicas),
            (replicas, replicas, replicas)
        );
        assert_eq!(fake.sets().len() as i32, replicas);
    }
    assert!(
        fake.service
            .spec
            .autoscaling
            .as_ref()
            .is_none_or(|a| a.mode == AutoscalingMode::Off)
    );
}

#[test]
fn a_group_of_several_pods_is_ready_only_when_all_are() {
    let mut fake = Fake::new(json!({ "topology": { "tensor": 2, "pipeline": 2, "devicesPerPod": 2 } }));
    fake.settle();
    assert_eq!(fake.status().groups[0].pods, 2);
    fake.fail_pod("chat-g0-1");
    fake.reconcile();
    let failure = fake.status().groups[0].last_failure.clone().unwrap();
    assert_eq!(failure.rank, 2, "first rank of the second pod");
    assert_eq!(fake.status().available_replicas, 0);
}

#[test]
fn an_id_rests_before_it_is_used_again() {
    let mut fake = ready(1);
    fake.roll("again");
    run(&mut fake, 1, is_complete);
    assert_eq!(fake.status().groups[0].id, 1);
    fake.roll("once more");
    run(&mut fake, 1, is_complete);
    assert_eq!(fake.status().groups[0].id, 2, "ids 0 and 1 rest");
    fake.settle();
    assert!(fake.status().resting_ids.is_empty());
    fake.roll("later");
    run(&mut fake, 1, is_complete);
    assert_eq!(fake.status().groups[0].id, 0);
}
