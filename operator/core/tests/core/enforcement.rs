//! What the operator concludes from the ports that it reaches.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kvasir_operator_api::ConditionType;
use kvasir_operator_core::enforcement::{Door, Enforcement, Expected, Suspicion, doors, judge};
use kvasir_operator_core::observed::{Observed, PodView};
use kvasir_operator_core::{Plan, Settings, status, validate};
use serde_json::{Value, json};

use crate::fake::service;

fn pods() -> Vec<(PodView, Option<String>)> {
    let engine = PodView {
        name: "chat-g1-0".to_owned(),
        group: Some(1),
        ready: true,
        ..PodView::default()
    };
    let gateway = PodView {
        name: "chat-gateway-a".to_owned(),
        is_gateway: true,
        ready: true,
        ..PodView::default()
    };
    vec![
        (engine, Some("10.0.0.1".to_owned())),
        (gateway, Some("10.0.0.2".to_owned())),
    ]
}

fn found(spec: Value, opens: impl Fn(&Door) -> bool) -> Vec<(Door, bool)> {
    let settings = Settings::default();
    let service = validate(&service(spec), &settings).unwrap();
    doors(&service, &pods(), &settings)
        .into_iter()
        .map(|door| {
            let opened = opens(&door);
            (door, opened)
        })
        .collect()
}

fn only_admin(door: &Door) -> bool {
    door.expected == Expected::Open
}

/// What is said about the network.
fn condition(observed: &Observed) -> Condition {
    let (settings, service) = (Settings::default(), service(json!({})));
    let validated = validate(&service, &settings).unwrap();
    let now = jiff::Timestamp::UNIX_EPOCH;
    let status = status::of_running(&validated, None, &Plan::default(), observed, &settings, now);
    status.condition(ConditionType::NetworkSecured).unwrap().clone()
}

fn after(enforcement: Enforcement) -> Condition {
    condition(&Observed {
        enforcement: Some(enforcement),
        ..Observed::default()
    })
}

#[test]
fn refused_everywhere_but_at_its_own_port_the_operator_trusts_the_network() {
    let judged = judge(&found(json!({}), only_admin));
    let ranks = ["collective", "rendezvous"].into_iter().collect();
    assert_eq!(judged, Enforcement::Enforced { unverified: ranks });
    let condition = after(judged);
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("True", "PoliciesApplied")
    );
    assert!(
        condition.message.ends_with("collective, rendezvous"),
        "{}",
        condition.message
    );
}

#[test]
fn each_port_that_opens_though_policies_close_it_is_named() {
    for (port, pod) in [
        (50051, "chat-g1-0"),
        (29500, "chat-g1-0"),
        (8443, "chat-gateway-a"),
    ] {
        let judged = judge(&found(json!({}), |door| {
            only_admin(door) || (door.address.port() == port && door.pod == pod)
        }));
        let condition = after(judged);
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("False", "EnforcementUnverified")
        );
        assert!(
            condition.message.contains(&format!("port {port} (")),
            "{}",
            condition.message
        );
        assert!(condition.message.contains(pod), "{}", condition.message);
    }
}

#[test]
fn refusals_prove_nothing_where_the_operators_own_port_is_refused_too() {
    let judged = judge(&found(json!({}), |_| false));
    assert!(
        matches!(&judged, Enforcement::Unknown { why } if why.contains("8082")),
        "{judged:?}"
    );
    assert_eq!(after(judged).status, "Unknown");
    assert!(matches!(judge(&[]), Enforcement::Unknown { .. }));
}

#[test]
fn where_the_spec_may_admit_the_operator_an_open_port_is_no_fault() {
    let everybody =
        json!({ "allowedClients": [{ "namespaceSelector": {} }], "monitoring": { "namespaceSelector": {} } });
    let judged = judge(&found(json!({ "network": everybody }), |door| {
        only_admin(door) || ["https", "metrics", "gateway metrics"].contains(&door.name)
    }));
    let Enforcement::Enforced { unverified } = judged else {
        panic!("{judged:?}");
    };
    assert!(
        unverified.contains("https") && unverified.contains("metrics"),
        "{unverified:?}"
    );
    assert!(!unverified.contains("grpc"));
}

#[test]
fn lists_that_name_other_namespaces_or_pods_leave_the_operator_outside() {
    let listed = |peer: Value| json!({ "network": { "allowedClients": [peer] } });
    let label = |key: &str, value: &str| json!({ "matchLabels": { key: value } });
    let expected = |spec: Value| {
        let all = found(spec, only_admin);
        all.iter()
            .find(|(door, _)| door.name == "https")
            .unwrap()
            .0
            .expected
    };
    let name = "kubernetes.io/metadata.name";
    assert_eq!(
        expected(listed(json!({ "namespaceSelector": label(name, "apps") }))),
        Expected::Closed
    );
    assert_eq!(
        expected(listed(json!({ "podSelector": label("app", "x") }))),
        Expected::Closed
    );
    let other = json!({ "namespaceSelector": {}, "podSelector": label("app.kubernetes.io/name", "web") });
    assert_eq!(expected(listed(other)), Expected::Closed);
    assert_eq!(
        expected(listed(
            json!({ "namespaceSelector": label(name, "kvasir-system") })
        )),
        Expected::Either
    );
    assert_eq!(
        expected(listed(json!({ "ipBlock": { "cidr": "10.0.0.0/8" } }))),
        Expected::Either
    );
}

#[test]
fn open_services_and_pods_that_are_not_ready_are_left_alone() {
    assert!(found(json!({ "network": { "mode": "Open" } }), only_admin).is_empty());
    let settings = Settings::default();
    let service = validate(&service(json!({})), &settings).unwrap();
    let mut pods = pods();
    pods[0].0.ready = false;
    pods[1].0.deleting = true;
    assert!(doors(&service, &pods, &settings).is_empty());
}

#[test]
fn one_visit_alone_blames_nobody() {
    let bad = || Enforcement::Ignored {
        reached: vec!["port 1".to_owned()],
    };
    let good = || Enforcement::Enforced {
        unverified: [].into(),
    };
    let mut suspicion = Suspicion::default();
    assert_eq!(suspicion.weigh(bad()), None);
    assert_eq!(suspicion.weigh(good()), Some(good()));
    assert_eq!(suspicion.weigh(bad()), None);
    assert_eq!(suspicion.weigh(bad()), Some(bad()));
}

#[test]
fn an_operator_that_has_just_started_goes_by_what_the_last_one_found() {
    assert_eq!(condition(&Observed::default()).status, "Unknown");
    let mut observed = Observed::default();
    observed.status.conditions = vec![after(Enforcement::Enforced {
        unverified: [].into(),
    })];
    assert_eq!(condition(&observed).status, "True");
}
