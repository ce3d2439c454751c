//! Rollouts and canaries against the fake cluster, one story each.

use jiff::SignedDuration;
use kvasir_operator_api::{CanarySpec, ConditionType, RolloutStrategy};
use kvasir_operator_core::observed::GroupLoad;
use kvasir_operator_core::outcomes::Outcomes;
use serde_json::json;

use crate::fake::Fake;
use crate::story::{is_complete, ready, run};

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
