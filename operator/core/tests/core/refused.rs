//! What the API server refuses, and names that somebody else has.

use kvasir_operator_api::{ConditionType, EnvVar, Gang, GroupStatus};
use kvasir_operator_core::accepted::{self, Judgement, Last};
use kvasir_operator_core::child::{Kind, ObjectRef};
use kvasir_operator_core::observed::FailedWrite;
use serde_json::json;

use crate::fake::Fake;
use crate::story::ready;

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

#[test]
fn a_refused_edit_stops_no_repair_and_nothing_of_it_is_built() {
    let mut fake = ready(2);
    fake.edit(|spec| {
        spec.replicas = 5;
        spec.restarted_at = Some("again".to_owned());
        spec.scheduling.gang = Gang::Volcano;
    });
    let sets: Vec<String> = fake.sets().iter().map(|set| set.uid.clone()).collect();
    let pod = fake.pods.keys().next().unwrap().clone();
    fake.fail_pod(&pod);
    let service = ObjectRef {
        kind: Kind::Service,
        name: "chat-engines".to_owned(),
    };
    fake.objects.remove(&service).unwrap();
    fake.settle();
    assert!(fake.objects.contains_key(&service));
    let after: Vec<String> = fake.sets().iter().map(|set| set.uid.clone()).collect();
    assert_eq!(after, sets);
    let status = fake.status();
    assert_eq!((status.replicas, status.available_replicas), (2, 2));
    assert_eq!(status.observed_generation, fake.service.metadata.generation);
    let refused = ("False".to_owned(), "Unsupported".to_owned());
    assert_eq!(fake.condition("Accepted"), refused);
    assert_eq!(fake.condition("Ready").1, "NotAccepted");
    assert_eq!(fake.condition("EnginesReady").0, "True");
    let before = fake.writes;
    assert!(fake.reconcile().is_empty());
    assert_eq!(fake.writes, before, "a write at rest");
    // Mended, all of it counts.
    fake.edit(|spec| spec.scheduling.gang = Gang::None);
    fake.settle();
    assert_eq!(fake.status().available_replicas, 5);
    assert_eq!(fake.condition("Ready").0, "True");
}

#[test]
fn nothing_new_is_made_from_a_spec_that_the_operator_does_not_accept_any_more() {
    let mut fake = Fake::new(json!({ "topology": { "tensor": 2 } }));
    fake.settle();
    // As an earlier operator left it.
    fake.service.status.as_mut().unwrap().accepted_spec = None;
    fake.settings.alpha_topology = false;
    fake.reconcile();
    assert_eq!(fake.condition("Accepted").1, "Unsupported");
    let status = fake.status();
    assert!(status.accepted_spec.is_some());
    let said = &status.condition(ConditionType::Accepted).unwrap().message;
    assert!(said.contains("nothing else is repaired"), "{said}");
    let set = fake.sets()[0].reference.clone();
    fake.objects.remove(&set);
    fake.settle();
    assert!(fake.sets().is_empty());
    assert!(matches!(
        accepted::judge(&fake.service, &fake.others, &fake.settings),
        Judgement::Refused {
            last: Some(Last::Outdated(_)),
            ..
        }
    ));
}

#[test]
fn a_kind_that_leaves_the_cluster_stops_no_repair_of_anything_else() {
    let mut fake = Fake::new(json!({ "tls": { "mode": "CertManager", "issuerRef": { "name": "ours" } } }));
    fake.settings.known_kinds.insert(Kind::Certificate);
    fake.settle();
    fake.settings.known_kinds.clear();
    let service = ObjectRef {
        kind: Kind::Service,
        name: "chat-engines".to_owned(),
    };
    fake.objects.remove(&service).unwrap();
    fake.settle();
    assert_eq!(
        fake.condition("Accepted"),
        ("False".to_owned(), "Unsupported".to_owned())
    );
    assert!(fake.objects.contains_key(&service));
}

#[test]
fn a_spec_that_is_too_large_to_be_kept_is_refused_with_its_size() {
    let mut fake = ready(1);
    let value = "x".repeat(accepted::MAX_SPEC_BYTES);
    fake.edit(|spec| {
        spec.engine.env.push(EnvVar {
            name: "LONG".to_owned(),
            value: Some(value),
            secret_key_ref: None,
            config_map_key_ref: None,
            field_path: None,
        });
    });
    fake.settle();
    let status = fake.status();
    let condition = status.condition(ConditionType::Accepted).unwrap();
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("False", "InvalidSpec")
    );
    assert!(
        condition.message.starts_with("spec: it has 6"),
        "{}",
        condition.message
    );
    assert!(status.accepted_spec.unwrap().len() < 10_000);
}
