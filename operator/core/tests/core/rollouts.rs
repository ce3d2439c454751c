//! Rollouts, scaling, recovery and node loss against the fake cluster, one story each.

use crate::fake::Fake;
use jiff::SignedDuration;
use kvasir_operator_api::{
    AutoscalingMode, CanarySpec, ConditionType, GroupState, GroupStatus, RolloutStrategy,
};
use kvasir_operator_core::child::{Kind, ObjectRef};
use kvasir_operator_core::observed::{FailedWrite, GroupLoad};
use kvasir_operator_core::outcomes::Outcomes;
use serde_json::json;

fn ready(replicas: i32) -> Fake {
    let mut fake = Fake::new(json!({ "replicas": replicas }));
    fake.settle();
    assert_eq!(
        fake.condition("Ready"),
        ("True".to_owned(), "AllComponentsReady".to_owned()),
        "{:#?}",
        fake.status()
    );
    fake
}

/// Runs until `until` holds and checks that never fewer than `minimum` groups serve.
fn run(fake: &mut Fake, minimum: usize, until: impl Fn(&Fake) -> bool) {
    for _ in 0..2000 {
        fake.reconcile();
        fake.tick(5);
        assert!(
            fake.serving() >= minimum,
            "{} serve, {minimum} must: {:#?}",
            fake.serving(),
            fake.status()
        );
        if until(fake) {
            return;
        }
    }
    panic!("never happened: {:#?}", fake.status());
}

fn is_complete(fake: &Fake) -> bool {
    let status = fake.status();
    fake.condition("Progressing").1 == "Complete" && status.current_revision == status.update_revision
}

#[test]
fn a_new_service_becomes_ready_and_reports_its_groups() {
    let fake = ready(2);
    let status = fake.status();
    assert_eq!(
        (status.replicas, status.ready_replicas, status.available_replicas),
        (2, 2, 2)
    );
    assert_eq!(status.updated_replicas, 2);
    assert_eq!(status.current_revision, status.update_revision);
    assert_eq!(
        status.gateway.unwrap().url.unwrap(),
        "https://chat-gateway.team.svc"
    );
    assert_eq!(
        fake.condition("Degraded"),
        ("False".to_owned(), "AsExpected".to_owned())
    );
}

#[test]
fn the_first_status_has_every_condition_and_the_leaders_selector() {
    let mut fake = Fake::new(json!({}));
    fake.reconcile();
    let status = fake.status();
    assert_eq!(status.conditions.len(), 10);
    assert_eq!(
        status.selector,
        "kvasir.dev/service=chat,kvasir.dev/component=engine,apps.kubernetes.io/pod-index=0"
    );
    assert_eq!(status.observed_generation, Some(1));
}

#[test]
fn a_surge_rollout_of_one_group_always_has_one_that_serves() {
    let mut fake = ready(1);
    fake.roll("again");
    let old = fake.status().update_revision;
    fake.reconcile();
    assert_ne!(fake.status().update_revision, old);
    run(&mut fake, 1, is_complete);
    fake.settle();
    assert_eq!(fake.sets().len(), 1);
}

#[test]
fn a_surge_rollout_never_exceeds_its_surge_and_never_falls_below_the_wanted_number() {
    let mut fake = ready(3);
    fake.roll("again");
    fake.reconcile();
    for _ in 0..500 {
        fake.reconcile();
        fake.tick(5);
        assert!(fake.serving() >= 3);
        assert!(fake.sets().len() <= 4, "{}", fake.sets().len());
    }
    assert!(is_complete(&fake));
}

#[test]
fn recreate_stops_one_group_before_it_starts_the_next() {
    let mut fake = Fake::new(json!({ "replicas": 2, "rollout": { "strategy": "Recreate" } }));
    assert_eq!(fake.service.spec.rollout.strategy, RolloutStrategy::Recreate);
    fake.settle();
    fake.roll("again");
    fake.reconcile();
    for _ in 0..500 {
        fake.reconcile();
        fake.tick(5);
        assert!(fake.sets().len() <= 2);
        assert!(fake.serving() >= 1);
    }
    assert!(is_complete(&fake));
}

#[test]
fn a_broken_revision_never_blocks_its_fix() {
    let mut fake = Fake::new(json!({ "replicas": 2, "rollout": { "autoRollback": false } }));
    fake.broken.insert("bad".to_owned());
    fake.roll("bad");
    for _ in 0..50 {
        fake.reconcile();
        fake.tick(5);
    }
    assert_eq!(fake.serving(), 0);
    assert_eq!(fake.condition("EnginesReady").1, "CrashLoop");
    fake.roll("good");
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True", "{:#?}", fake.status());
    assert_eq!(fake.sets().len(), 2);
}

#[test]
fn a_failed_rollout_goes_back_and_the_old_groups_serve_throughout() {
    let mut fake = ready(2);
    let good = fake.status().current_revision;
    fake.broken.insert("bad".to_owned());
    fake.roll("bad");
    run(&mut fake, 2, |fake| {
        fake.condition("Progressing").1 == "RolledBack"
    });
    fake.settle();
    let status = fake.status();
    assert_eq!(status.current_revision, good);
    assert!(status.groups.iter().all(|g| Some(&g.revision) == good.as_ref()));
    assert_eq!(fake.condition("Ready").0, "True");
    fake.roll("fixed");
    run(&mut fake, 2, is_complete);
}

fn canary() -> Fake {
    let mut fake = Fake::new(
        json!({ "replicas": 2, "rollout": { "canary": { "weightPercent": 10, "pauseSeconds": 300 } } }),
    );
    fake.settle();
    fake.roll("next");
    run(&mut fake, 2, |fake| {
        fake.status().rollout.is_some_and(|r| r.canary_since.is_some())
    });
    fake
}

#[test]
fn a_canary_gets_its_share_and_is_promoted_after_its_pause() {
    let mut fake = canary();
    let begun = fake.now;
    assert_eq!(fake.condition("Progressing").1, "CanaryPaused");
    assert_eq!(fake.sets().len(), 3);
    let config = fake
        .objects
        .values()
        .find(|o| o.reference.name == "chat-gateway-config")
        .unwrap();
    assert!(
        config.object["data"]["gateway.yaml"]
            .as_str()
            .unwrap()
            .contains("\"weight\":10")
    );
    run(&mut fake, 2, is_complete);
    assert!(fake.now.duration_since(begun) >= SignedDuration::from_secs(295));
}

#[test]
fn a_canary_that_fails_requests_is_rolled_back() {
    let mut fake = canary();
    let update = fake.status().update_revision.unwrap();
    let id = fake
        .status()
        .groups
        .iter()
        .find(|g| g.revision == update)
        .unwrap()
        .id;
    fake.loads.insert(
        id,
        GroupLoad {
            recent: Outcomes {
                finished: 100,
                failed: 50,
            },
            ..GroupLoad::default()
        },
    );
    run(&mut fake, 2, |fake| {
        fake.condition("Progressing").1 == "RolledBack"
    });
    fake.loads.clear();
    fake.settle();
    assert_eq!(fake.sets().len(), 2);
    assert!(
        fake.status()
            .rollout
            .unwrap()
            .failure
            .unwrap()
            .contains("50 of 100")
    );
}

#[test]
fn failures_below_the_minimum_of_requests_end_no_trial() {
    let mut fake = canary();
    let update = fake.status().update_revision.unwrap();
    let groups = fake.status().groups;
    let id = groups.iter().find(|g| g.revision == update).unwrap().id;
    let recent = Outcomes {
        finished: 19,
        failed: 19,
    };
    fake.loads.insert(
        id,
        GroupLoad {
            recent,
            ..GroupLoad::default()
        },
    );
    run(&mut fake, 2, is_complete);
    assert_eq!(fake.status().current_revision, Some(update));
}

#[test]
fn a_revision_whose_engine_can_never_serve_is_rolled_back_at_once() {
    for (code, goes_back) in [
        (71, true),
        (64, true),
        (76, true),
        (69, false),
        (73, false),
        (137, false),
    ] {
        let mut fake = ready(1);
        fake.broken.insert("next".to_owned());
        fake.broken_exit_code = code;
        let begun = fake.now;
        fake.roll("next");
        let went_back = |fake: &Fake| fake.condition("Progressing").1 == "RolledBack";
        for _ in 0..30 {
            fake.tick(5);
            fake.reconcile();
        }
        assert_eq!(went_back(&fake), goes_back, "exit code {code}");
        assert!(fake.now.duration_since(begun) < SignedDuration::from_mins(5));
        assert_eq!(fake.condition("Ready").0, "True");
    }
}

#[test]
fn a_canary_without_a_pause_waits_for_the_annotation() {
    let mut fake = Fake::new(
        json!({ "replicas": 1, "rollout": { "canary": { "weightPercent": 10, "pauseSeconds": 0 } } }),
    );
    fake.settle();
    assert_eq!(
        fake.service
            .spec
            .rollout
            .canary
            .as_ref()
            .map(|c: &CanarySpec| c.pause_seconds),
        Some(0)
    );
    fake.roll("next");
    fake.settle();
    assert_eq!(fake.condition("Progressing").1, "CanaryPaused");
    let update = fake.status().update_revision.unwrap();
    let annotations = fake.service.metadata.annotations.get_or_insert_default();
    annotations.insert("kvasir.dev/promote".to_owned(), update);
    run(&mut fake, 1, is_complete);
}

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
fn an_old_group_stays_until_gateways_know_the_new_one() {
    let mut fake = ready(1);
    fake.roll("next");
    run(&mut fake, 1, |fake| fake.serving() == 2);
    let since = fake.now;
    run(&mut fake, 1, |fake| {
        fake.status().groups.iter().any(|g| g.draining)
    });
    let waited = fake.now.duration_since(since);
    assert!(waited >= fake.settings.join_time, "{waited}");
    assert!(
        waited <= fake.settings.join_time + SignedDuration::from_secs(15),
        "{waited}"
    );
    run(&mut fake, 1, is_complete);
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
fn an_upgrade_of_the_operator_with_another_default_image_restarts_nothing() {
    let mut fake = ready(2);
    let uids: Vec<_> = fake.pods.values().map(|p| p.view.uid.clone()).collect();
    fake.settings.engine_image = "kvasir:next".to_owned();
    fake.settings.version = "next".to_owned();
    fake.written.clear();
    fake.settle();
    assert_eq!(
        fake.pods.values().map(|p| p.view.uid.clone()).collect::<Vec<_>>(),
        uids
    );
    assert_ne!(fake.status().versions.unwrap().engine_image, "kvasir:next");
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

#[test]
fn a_condition_keeps_its_time_until_its_status_flips() {
    let mut fake = ready(1);
    let time = |fake: &Fake| {
        let engines = fake.status().condition(ConditionType::EnginesReady).cloned();
        engines.unwrap().last_transition_time
    };
    let before = time(&fake);
    fake.edit(|spec| spec.replicas = 2);
    fake.settle();
    assert_eq!(time(&fake), before, "still True");
}

fn answer(code: u16, why: &str) -> FailedWrite {
    FailedWrite {
        foreign: false,
        code: Some(code),
        why: why.to_owned(),
    }
}

#[test]
fn a_group_that_the_api_server_refuses_uses_one_id_however_often_it_is_tried_and_comes_when_it_may() {
    let mut fake = Fake::new(json!({ "replicas": 2 }));
    let invalid = answer(
        422,
        "StatefulSet.apps \"chat-g0\" is invalid: spec.template.spec.tolerations[0].key: Invalid value: \"a b\"",
    );
    fake.refuses = Some((Kind::StatefulSet, invalid));
    for _ in 0..20 {
        fake.reconcile();
        fake.tick(5);
    }
    let budgets = || {
        fake.objects
            .keys()
            .filter(|object| object.kind == Kind::PodDisruptionBudget)
    };
    let names: Vec<&str> = budgets().map(|object| object.name.as_str()).collect();
    assert!(
        names
            .iter()
            .all(|name| ["chat-g0", "chat-g1", "chat-gateway"].contains(name)),
        "{names:?}"
    );
    let written = fake.status();
    fake.reconcile();
    assert_eq!(
        written,
        fake.status(),
        "a status that says the same isn't written"
    );
    assert_eq!(
        fake.condition("Accepted"),
        ("False".to_owned(), "InvalidSpec".to_owned())
    );
    let message = &written.condition(ConditionType::Ready).unwrap().message;
    assert!(message.contains("tolerations[0].key"), "{message}");

    fake.refuses = None;
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True", "{:#?}", fake.status());
    let ids: Vec<i32> = fake.status().groups.iter().map(|group| group.id).collect();
    assert_eq!(ids, [0, 1]);
}

#[test]
fn only_what_another_try_does_not_help_is_reported_as_refused() {
    for (failure, reason) in [
        (answer(400, "admission webhook denied the request"), "InvalidSpec"),
        (answer(403, "exceeded quota: small"), "QuotaExceeded"),
        (answer(403, "statefulsets.apps is forbidden"), "Forbidden"),
        (
            answer(
                403,
                "unable to create new content in namespace team because it is being terminated",
            ),
            "Valid",
        ),
        (answer(500, "etcdserver: request timed out"), "Valid"),
        (
            FailedWrite {
                foreign: false,
                code: None,
                why: "connection refused".to_owned(),
            },
            "Valid",
        ),
    ] {
        let mut fake = Fake::new(json!({}));
        fake.refuses = Some((Kind::StatefulSet, failure));
        fake.reconcile();
        fake.reconcile();
        assert_eq!(fake.condition("Accepted").1, reason);
    }
}

#[test]
fn a_secret_of_somebody_else_is_named() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    let secret = ObjectRef {
        kind: Kind::Secret,
        name: "chat-gateway-tls".to_owned(),
    };
    let foreign = FailedWrite {
        foreign: true,
        code: None,
        why: "it belongs to somebody else".to_owned(),
    };
    fake.failed_writes.insert(secret, foreign);
    fake.reconcile();
    assert_eq!(fake.condition("Accepted").1, "NameCollision");
    let message = &fake
        .status()
        .condition(ConditionType::Accepted)
        .unwrap()
        .message
        .clone();
    assert!(message.contains("Secret chat-gateway-tls"), "{message}");
}

#[test]
fn ids_that_no_group_can_have_are_never_given_out_whatever_the_status_says() {
    let mut fake = ready(1);
    let mut status = fake.status();
    status.groups.extend([-5, i32::MAX].map(|id| GroupStatus {
        id,
        ..GroupStatus::default()
    }));
    fake.service.status = Some(status);
    fake.edit(|spec| spec.replicas = 3);
    fake.settle();
    let ids: Vec<i32> = fake.status().groups.iter().map(|group| group.id).collect();
    assert_eq!(ids, [0, 1, 2]);
}
