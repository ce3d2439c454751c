//! What the API server refuses, and names that somebody else has.

use kvasir_operator_api::{ConditionType, GroupStatus};
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
