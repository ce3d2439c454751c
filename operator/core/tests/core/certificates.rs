//! Certificates that somebody else makes, and rights that only some gateways have.

use jiff::SignedDuration;
use kvasir_operator_api::{ConditionType, InferenceService, TlsMode, names};
use kvasir_operator_core::build::rights;
use kvasir_operator_core::child::{Kind, Live};
use kvasir_operator_core::identity;
use kvasir_operator_core::observed::{CertificatesView, Observed, Waiting};
use kvasir_operator_core::revision::{Revision, RevisionSpec};
use kvasir_operator_core::{Settings, plan, status, validate};
use serde_json::{Value, json};

use crate::fake::{self, Fake};

fn with_cert_manager() -> Fake {
    let mut fake = Fake::new(json!({
        "replicas": 2,
        "tls": { "mode": "CertManager", "issuerRef": { "name": "ours", "kind": "ClusterIssuer", "group": "cert-manager.io" }, "validityHours": 48 },
    }));
    fake.settings.known_kinds.insert(Kind::Certificate);
    fake
}

fn certificates(fake: &Fake) -> Vec<&Live> {
    fake.objects
        .values()
        .filter(|live| live.reference.kind == Kind::Certificate)
        .collect()
}

#[test]
fn cert_manager_is_asked_for_each_group_for_the_gateway_and_for_the_operator() {
    let mut fake = with_cert_manager();
    fake.settle();
    let names: Vec<_> = certificates(&fake)
        .iter()
        .map(|live| live.reference.name.clone())
        .collect();
    assert_eq!(
        names,
        [
            "chat-g0-issued",
            "chat-g1-issued",
            "chat-gateway-issued",
            "chat-operator-tls"
        ]
    );
    let first = &certificates(&fake)[0].object["spec"];
    let uid = &fake.sets()[0].uid;
    assert_eq!(
        first["uris"][1],
        format!("spiffe://kvasir.dev/ns/team/service/chat/group/0/{uid}")
    );
    assert_eq!(first["secretName"], "chat-g0-issued");
    assert_eq!(
        first["issuerRef"],
        json!({ "name": "ours", "kind": "ClusterIssuer", "group": "cert-manager.io" })
    );
    assert_eq!(
        (&first["duration"], &first["renewBefore"]),
        (&json!("48h"), &json!("1440m"))
    );
    let own = &certificates(&fake)[3].object["spec"];
    assert_eq!(
        (&own["uris"], &own["dnsNames"]),
        (&json!([identity::OPERATOR]), &Value::Null)
    );
}

#[test]
fn a_certificate_goes_with_its_group_and_all_of_them_with_the_mode() {
    let mut fake = with_cert_manager();
    fake.settle();
    fake.edit(|spec| spec.replicas = 1);
    fake.settle();
    assert_eq!(certificates(&fake).len(), 3);
    fake.edit(|spec| {
        spec.tls.mode = TlsMode::Internal;
        spec.tls.issuer_ref = None;
    });
    fake.settle();
    assert!(certificates(&fake).is_empty());
}

fn provided(secret: &str) -> Value {
    json!({ "mode": "Provided", "secretName": secret })
}

fn mounted(live: &Live) -> Value {
    let volumes = live.object["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .unwrap();
    let tls = volumes.iter().find(|volume| volume["name"] == "tls").unwrap();
    tls["secret"]["secretName"].clone()
}

#[test]
fn another_mode_or_secret_replaces_no_pod() {
    let mut fake = Fake::new(json!({}));
    fake.settings.known_kinds.insert(Kind::Certificate);
    fake.settle();
    let templates = |fake: &Fake| -> Vec<Value> {
        let kinds = [Kind::StatefulSet, Kind::Deployment];
        let all = fake.objects.values();
        all.filter(|live| kinds.contains(&live.reference.kind))
            .map(|live| live.object["spec"]["template"].clone())
            .collect()
    };
    let before = (templates(&fake), fake.status().update_revision);
    assert_eq!(mounted(fake.sets()[0]), "chat-g0-certificate");
    for tls in [
        provided("first"),
        provided("second"),
        json!({ "mode": "CertManager", "issuerRef": { "name": "ours" } }),
        json!({ "mode": "Internal" }),
    ] {
        fake.edit(|spec| spec.tls = serde_json::from_value(tls).unwrap());
        fake.settle();
        assert_eq!((templates(&fake), fake.status().update_revision), before);
    }
}

/// Earlier versions made the mode and the given Secret part of a revision.
#[test]
fn groups_of_an_earlier_version_keep_their_revision_and_the_secret_that_they_mount() {
    let spec = fake::service(json!({ "tls": provided("given") })).spec;
    let settings = Settings::default();
    let now = Revision::of(&spec, &[], &settings);
    let rolled = RevisionSpec {
        tls: TlsMode::Provided,
        tls_secret_name: Some("given".to_owned()),
        ..now.spec.clone()
    };
    let name = names::short_hash(serde_json::to_string(&rolled).unwrap().as_bytes());
    let earlier = Revision {
        name,
        image: "kvasir:0".to_owned(),
        spec: rolled,
    };
    assert_eq!(
        Revision::of(&spec, std::slice::from_ref(&earlier), &settings),
        earlier
    );
    let other = fake::service(json!({ "tls": provided("other") })).spec;
    assert_eq!(
        Revision::of(&other, std::slice::from_ref(&earlier), &settings).name,
        now.name
    );
    assert_eq!(
        Revision::of(&spec, &[earlier, now.clone()], &settings).name,
        now.name
    );
}

#[test]
fn a_group_whose_certificate_is_not_believed_yet_lets_no_other_one_go() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    let old = fake.sets()[0].uid.clone();
    let until = fake.now + SignedDuration::from_mins(30);
    for id in 1..8 {
        fake.handover.joins.insert(id, until);
    }
    fake.edit(|spec| spec.restarted_at = Some("now".to_owned()));
    for _ in 0..20 {
        fake.reconcile();
        fake.tick(60);
    }
    assert!(fake.now < until);
    assert!(fake.sets().iter().any(|set| set.uid == old));
    fake.now = until;
    fake.handover.joins.clear();
    fake.settle();
    assert!(fake.sets().iter().all(|set| set.uid != old));
}

#[test]
fn what_certificates_wait_for_is_said_and_the_service_is_ready_meanwhile() {
    let mut fake = Fake::new(json!({ "tls": provided("given") }));
    fake.settle();
    let until = "2026-12-01T00:00:00Z".parse().unwrap();
    for (waiting, said) in [
        (Waiting::Secrets, "isn't in every Secret yet"),
        (Waiting::Until(until), "2026-12-01T00:00:00Z"),
    ] {
        fake.handover.waiting = Some(waiting);
        fake.reconcile();
        let status = fake.status();
        let find = |part| status.condition(part).unwrap().clone();
        for part in [ConditionType::CertificatesReady, ConditionType::Progressing] {
            let found = find(part);
            assert_eq!(found.status, "True");
            assert!(found.message.contains(said), "{}", found.message);
        }
        assert_eq!(find(ConditionType::Ready).status, "True");
    }
}

#[test]
fn what_lacks_in_a_given_secret_keeps_the_service_from_being_ready_and_is_said() {
    let fake = Fake::new(json!({ "tls": provided("given") }));
    let service = validate(&fake.service, &fake.settings).unwrap();
    let condition = |problems: &[&str]| {
        let observed = Observed {
            certificates: Some(CertificatesView {
                first_end: "2036-01-01T00:00:00Z".parse().unwrap(),
                missing: problems.len(),
                problems: problems.iter().map(|problem| (*problem).to_owned()).collect(),
            }),
            ..Observed::default()
        };
        let made = plan(&service, &observed, &fake.settings, fake.now);
        let status = status::of_running(&service, None, &made, &observed, &fake.settings, fake.now);
        let find = |part| status.condition(part).unwrap().clone();
        (find(ConditionType::CertificatesReady), find(ConditionType::Ready))
    };
    let (certificates, ready) = condition(&["spec.tls.secretName: Secret given: it doesn't exist"]);
    assert_eq!(
        (certificates.status.as_str(), certificates.reason.as_str()),
        ("False", "IssueFailed")
    );
    assert!(
        certificates
            .message
            .starts_with("spec.tls.secretName: Secret given")
    );
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "CertificatesNotReady")
    );
    let (certificates, _) = condition(&[]);
    assert_eq!(
        (certificates.status.as_str(), certificates.reason.as_str()),
        ("True", "Issued")
    );
    assert!(certificates.message.contains("spec.tls.operatorSecretName"));
}

fn named(name: &str, spec: Value) -> InferenceService {
    let mut service = fake::service(spec);
    service.metadata.name = Some(name.to_owned());
    service
}

#[test]
fn only_gateways_that_review_tokens_are_subjects_each_once_and_in_order() {
    let review = json!({ "gateway": { "auth": { "mode": "TokenReview" } } });
    let without = json!({ "gateway": { "enabled": false, "auth": { "mode": "TokenReview" } } });
    let services = vec![
        named("b", review.clone()),
        named("a", review.clone()),
        named("a", review.clone()),
        named("keys", json!({})),
        named("none", without),
    ];
    // One whose spec nobody has accepted gets no right.
    let services: Vec<_> = services
        .into_iter()
        .map(fake::accepted)
        .chain([named("new", review)])
        .collect();
    let subjects = rights::token_reviewers(&services);
    let found: Vec<_> = subjects
        .iter()
        .map(|subject| (subject.namespace.as_deref().unwrap(), subject.name.as_str()))
        .collect();
    assert_eq!(found, [("team", "a-gateway"), ("team", "b-gateway")]);
}

#[test]
fn tokens_are_reviewed_only_where_the_operator_can_give_the_right() {
    let service = fake::service(json!({ "gateway": { "auth": { "mode": "TokenReview" } } }));
    let errors = validate(&service, &Settings::default()).unwrap_err();
    assert_eq!(errors[0].path, "spec.gateway.auth.mode");
    let settings = Settings {
        token_reviewers: Some("reviewers".to_owned()),
        ..Settings::default()
    };
    validate(&service, &settings).unwrap();
}

#[test]
fn a_gateway_that_drains_keeps_its_way_to_clients_and_engines() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    fake.edit(|spec| spec.gateway.enabled = false);
    fake.reconcile();
    let has = |fake: &Fake, name: &str| {
        let mut policies = fake.objects.keys().filter(|key| key.kind == Kind::NetworkPolicy);
        policies.any(|policy| policy.name == name)
    };
    assert!(!fake.objects.keys().any(|key| key.kind == Kind::Deployment));
    assert!(has(&fake, "chat-clients") && has(&fake, "chat-gateway-out"));
    fake.pods.retain(|_, pod| !pod.view.is_gateway);
    fake.reconcile();
    assert!(!has(&fake, "chat-clients") && !has(&fake, "chat-gateway-out"));
}

/// A change to Secrets that somebody else fills may never succeed: what runs must be able to renew its certificates meanwhile.
#[test]
fn an_own_authority_stays_as_long_as_what_it_signed_is_in_use() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    let [authority, bundle, leaf] = ["chat-authority", "chat-trust", "chat-gateway-tls"].map(|name| {
        let object = json!({ "metadata": {
            "name": name, "namespace": "team", "uid": format!("uid-{name}"), "labels": { "kvasir.dev/service": "chat" },
            "ownerReferences": [{ "uid": fake::UID, "controller": true }],
        } });
        let live = Live::new(Kind::Secret, object).unwrap();
        fake.objects.insert(live.reference.clone(), live.clone());
        live.reference
    });
    fake.handover.needs_authority = true;
    fake.edit(|spec| {
        spec.tls.mode = TlsMode::Provided;
        spec.tls.secret_name = Some("given".to_owned());
    });
    fake.reconcile();
    assert!(
        [&authority, &bundle, &leaf]
            .iter()
            .all(|secret| fake.objects.contains_key(secret))
    );
    fake.handover.needs_authority = false;
    fake.reconcile();
    assert!(!fake.objects.contains_key(&authority));
    assert!(
        [&bundle, &leaf]
            .iter()
            .all(|secret| fake.objects.contains_key(secret))
    );
}
