//! Failed ranks and nodes that are lost or left, against the fake cluster, one story each.

use jiff::SignedDuration;
use kvasir_operator_api::GroupState;
use kvasir_operator_core::observed::GroupLoad;
use serde_json::json;

use crate::fake::Fake;
use crate::story::{ready, run};

#[test]
fn a_failed_rank_is_named_with_its_exit_code_and_last_line() {
    let mut fake = ready(1);
    fake.fail_pod("chat-g0-0");
    fake.reconcile();
    let group = &fake.status().groups[0];
    let failure = group.last_failure.as_ref().unwrap();
    assert_eq!((failure.rank, failure.exit_code), (0, Some(137)));
    assert_eq!(failure.reason, "OOMKilled");
    assert_eq!(failure.message.as_deref(), Some("the engine ran out of memory"));
    assert_eq!(
        fake.condition("Ready"),
        ("False".to_owned(), "EnginesNotReady".to_owned())
    );
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
    assert_eq!(
        fake.status().groups[0].restarts,
        0,
        "the container came back in place"
    );
}

#[test]
fn a_pod_that_was_replaced_between_two_looks_is_noticed() {
    let mut fake = ready(1);
    let before = fake.status().groups[0].seen[0].uid.clone();
    fake.delete_pod("chat-g0-0");
    for _ in 0..8 {
        fake.tick(5);
    }
    let plan = fake.reconcile();
    assert!(
        plan.decisions
            .events
            .iter()
            .any(|e| e.message.contains("was replaced")),
        "{:?}",
        plan.decisions.events
    );
    assert_ne!(fake.status().groups[0].seen[0].uid, before);
}

#[test]
fn a_rank_that_always_fails_is_restarted_with_backoff_and_then_left_alone() {
    let mut fake = Fake::new(
        json!({ "replicas": 1, "restartPolicy": { "maxGroupRestarts": 3, "windowSeconds": 604_800 } }),
    );
    fake.broken.insert(String::new());
    let mut restarts = 0;
    for _ in 0..1500 {
        let plan = fake.reconcile();
        restarts += usize::from(!plan.decisions.restart_pods.is_empty());
        fake.tick(5);
    }
    assert_eq!(restarts, 3);
    assert_eq!(fake.status().groups[0].state, GroupState::Exhausted);
    assert_eq!(
        fake.condition("Degraded"),
        ("True".to_owned(), "GroupRestartBudgetExhausted".to_owned())
    );
    assert_eq!(
        fake.pods.len(),
        3,
        "the pod stays for inspection, beside two of the gateway"
    );
}

#[test]
fn a_lost_node_gets_a_replacement_group_under_a_new_id() {
    let mut fake = ready(1);
    let node = fake.status().groups[0].node.clone().unwrap();
    fake.nodes.get_mut(&node).unwrap().not_ready_since = Some(fake.now);
    fake.tick(90);
    fake.reconcile();
    assert_eq!(fake.condition("Degraded").1, "NodeLost");
    assert_eq!(fake.sets().len(), 2);
    fake.settle();
    assert_eq!(fake.sets().len(), 1);
    assert_eq!(fake.status().groups[0].id, 1);
    assert_eq!(fake.condition("Ready").0, "True");
}

#[test]
fn a_node_that_is_declared_out_of_service_is_left_at_once() {
    let mut fake = ready(1);
    let name = fake.status().groups[0].node.clone().unwrap();
    fake.nodes.get_mut(&name).unwrap().not_ready_since = Some(fake.now);
    fake.tick(5);
    let plan = fake.reconcile();
    assert_eq!(fake.sets().len(), 1);
    assert!(plan.look_again <= fake.now + SignedDuration::from_secs(55));
    fake.nodes.get_mut(&name).unwrap().out_of_service = true;
    fake.reconcile();
    assert_eq!(fake.condition("Degraded").1, "NodeLost");
    assert_eq!(fake.sets().len(), 2);
}

#[test]
fn a_cordoned_node_is_left_without_a_gap_and_its_budget_opens() {
    let mut fake = ready(1);
    let budget = |fake: &Fake, id: i32| {
        let name = format!("chat-g{id}");
        let found = fake
            .objects
            .values()
            .find(|o| o.reference.kind.to_string() == "PodDisruptionBudget" && o.reference.name == name);
        found.map(|o| o.object["spec"]["maxUnavailable"].clone())
    };
    assert_eq!(budget(&fake, 0), Some(json!(0)));
    let node = fake.status().groups[0].node.clone().unwrap();
    fake.nodes.get_mut(&node).unwrap().cordoned = true;
    run(&mut fake, 1, |fake| {
        fake.sets().len() == 2 && fake.serving() == 2 || fake.status().groups.iter().any(|g| g.draining)
    });
    fake.reconcile();
    assert_eq!(
        budget(&fake, 0),
        Some(json!(0)),
        "gateways don't know its replacement yet"
    );
    fake.tick(40);
    fake.reconcile();
    assert_eq!(budget(&fake, 0), Some(json!("100%")));
    fake.settle();
    assert_eq!(fake.status().groups[0].id, 1);
}

#[test]
fn a_failed_group_that_waits_for_a_node_says_for_how_long_and_writes_nothing_meanwhile() {
    let mut fake = ready(1);
    fake.fail_pod("chat-g0-0");
    fake.delete_pod("chat-g0-0");
    for node in fake.nodes.values_mut() {
        node.cordoned = true;
    }
    // As long as an id rests.
    for _ in 0..40 {
        fake.reconcile();
        fake.tick(30);
    }
    assert_eq!(fake.pods["chat-g0-0"].view.node, None);
    let since = fake.status().groups[0].unready_since.clone();
    let writes = fake.writes;
    for _ in 0..100 {
        fake.reconcile();
        fake.tick(30);
    }
    let group = fake.status().groups[0].clone();
    assert_eq!((fake.writes, group.unready_since), (writes, since));
    assert_eq!((group.state, group.restarts), (GroupState::Recovering, 0));
    // With a node it has the whole time to form again.
    let node = fake.nodes.keys().next().unwrap().clone();
    fake.nodes.get_mut(&node).unwrap().cordoned = false;
    fake.broken.insert(String::new());
    fake.tick(5);
    let placed = fake.now;
    run(&mut fake, 0, |fake| fake.status().groups[0].restarts == 1);
    let took = fake.now.duration_since(placed);
    let timeout = fake.settings.reform_timeout;
    assert!(
        took >= timeout && took < timeout + SignedDuration::from_secs(30),
        "{took}"
    );
}

#[test]
fn a_suspended_rollout_writes_nothing_while_its_groups_drain() {
    let mut fake = ready(1);
    fake.roll("2");
    fake.edit(|spec| spec.suspend = true);
    let busy = GroupLoad {
        running: 1,
        ..GroupLoad::default()
    };
    fake.loads.insert(0, busy);
    for _ in 0..3 {
        fake.reconcile();
    }
    assert!(fake.status().groups[0].draining);
    let writes = fake.writes;
    for _ in 0..10 {
        fake.tick(1);
        fake.reconcile();
    }
    assert_eq!(fake.writes, writes);
}
