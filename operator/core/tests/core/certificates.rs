//! Certificates that somebody else makes, and rights that only some gateways have.

use kvasir_operator_api::{ConditionType, InferenceService, TlsMode};
use kvasir_operator_core::build::rights;
use kvasir_operator_core::child::{Kind, Live};
use kvasir_operator_core::identity;
use kvasir_operator_core::observed::{CertificatesView, Observed};
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
            "chat-g0-certificate",
            "chat-g1-certificate",
            "chat-gateway-tls",
            "chat-operator-tls"
        ]
    );
    let first = &certificates(&fake)[0].object["spec"];
    let uid = &fake.sets()[0].uid;
    assert_eq!(
        first["uris"][1],
        format!("spiffe://kvasir.dev/ns/team/service/chat/group/0/{uid}")
    );
    assert_eq!(first["secretName"], "chat-g0-certificate");
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
    fake.edit(|spec| spec.tls.mode = TlsMode::Internal);
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
fn another_secret_reaches_pods_by_replacing_their_groups() {
    let mut fake = Fake::new(json!({ "tls": provided("first") }));
    fake.settle();
    let before = fake.status().update_revision;
    assert_eq!(mounted(fake.sets()[0]), "first");
    fake.edit(|spec| spec.tls.secret_name = Some("second".to_owned()));
    fake.reconcile();
    let old = fake.sets()[0].clone();
    assert_eq!(
        mounted(&old),
        "first",
        "running pods keep what their template says"
    );
    fake.settle();
    assert_ne!(fake.status().update_revision, before);
    assert_eq!(mounted(fake.sets()[0]), "second");
    assert_ne!(fake.sets()[0].uid, old.uid);
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
        let status = status::accepted(&service, &made, &observed, &fake.settings, fake.now);
        let find = |part| status.condition(part).unwrap().clone();
        (find(ConditionType::CertificatesReady), find(ConditionType::Ready))
    };
    let (certificates, ready) = condition(&["spec.tls.secretName: Secret given: it doesn't exist yet"]);
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
        named("a", review),
        named("keys", json!({})),
        named("none", without),
    ];
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

/// A change to Secrets that somebody else fills may never succeed: what runs must be able to start again meanwhile.
#[test]
fn own_certificates_and_their_authority_stay_as_long_as_a_pod_mounts_them() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    let own = ["chat-gateway-tls", "chat-authority", "chat-trust"].map(|name| {
        let object = json!({ "metadata": {
            "name": name, "namespace": "team", "uid": format!("uid-{name}"), "labels": { "kvasir.dev/service": "chat" },
            "ownerReferences": [{ "uid": fake::UID, "controller": true }],
        } });
        let live = Live::new(Kind::Secret, object).unwrap();
        fake.objects.insert(live.reference.clone(), live.clone());
        live.reference
    });
    let mount = |fake: &mut Fake, secret: &str| {
        for pod in fake.pods.values_mut().filter(|pod| pod.view.is_gateway) {
            pod.view.secrets = vec![secret.to_owned()];
        }
    };
    mount(&mut fake, "chat-gateway-tls");
    fake.edit(|spec| {
        spec.tls.mode = TlsMode::Provided;
        spec.tls.secret_name = Some("given".to_owned());
    });
    fake.reconcile();
    assert!(own.iter().all(|secret| fake.objects.contains_key(secret)));
    mount(&mut fake, "given");
    fake.reconcile();
    assert!(own.iter().all(|secret| !fake.objects.contains_key(secret)));
}
