//! What is said of certificates that somebody else makes.

use kvasir_operator_core::certificates::CLOCK_SKEW;
use kvasir_operator_core::identity::{CERTIFICATE_KEY, Identity};
use serde_json::json;

use super::super::held::{self, HeldAuthority};
use super::super::tests::accepted;
use super::super::{bytes, issue};
use super::*;

fn now() -> Timestamp {
    "2026-11-30T00:00:00Z".parse().unwrap()
}

fn service(tls: &serde_json::Value) -> Validated {
    let manifest = json!({
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": { "name": "chat", "namespace": "team", "uid": "u" },
        "spec": { "model": { "source": { "pvc": { "claimName": "models" } } }, "tls": tls },
    });
    let service = serde_json::from_value(manifest).unwrap();
    let mut settings = Settings::default();
    settings.known_kinds.insert(Kind::Certificate);
    kvasir_operator_core::validate(&service, &settings).unwrap()
}

fn provided() -> Validated {
    service(&json!({ "mode": "Provided", "secretName": "given", "operatorSecretName": "own" }))
}

fn authority() -> HeldAuthority {
    let made = issue::authority("other", 1, now()).unwrap();
    let data: Data = [
        (held::certificate_key(1), bytes(&made.certificate)),
        (held::private_key_key(1), bytes(&made.key)),
    ]
    .into();
    held::authorities(&data).pop().unwrap()
}

fn secret(signer: &HeldAuthority, uris: &[&str], end: Timestamp) -> Found {
    let names = Identity {
        dns: Vec::new(),
        uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
    };
    let made = issue::leaf("other", &names, "x", signer, end, now()).unwrap();
    let data = [
        (CERTIFICATE_KEY.to_owned(), bytes(&made.certificate)),
        (PRIVATE_KEY_KEY.to_owned(), bytes(&made.key)),
        (TRUST_KEY.to_owned(), bytes(&signer.made.certificate)),
    ];
    Found {
        data: data.into(),
        ..Found::default()
    }
}

const ENGINE: &str = "spiffe://kvasir.dev/ns/team/service/chat/engine";
const GATEWAY: &str = "spiffe://kvasir.dev/ns/team/service/chat/gateway";

fn look(service: &Validated, secrets: &Secrets) -> CertificatesView {
    view(
        service,
        &[],
        &[],
        secrets,
        &Settings::default(),
        now() + CLOCK_SKEW,
    )
    .unwrap()
}

fn provides(secret: &str) -> serde_json::Value {
    json!({ "mode": "Provided", "secretName": secret, "operatorSecretName": "own" })
}

/// The service `chat` behind the gateway of `host`, and that one.
fn shared(guests: &serde_json::Value, hosts: &serde_json::Value) -> (Validated, Validated) {
    let manifest = |name: &str, gateway: &serde_json::Value, tls: &serde_json::Value| {
        let manifest = json!({
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": { "name": name, "namespace": "team", "uid": name },
            "spec": {
                "model": { "source": { "pvc": { "claimName": "models" } } },
                "gateway": gateway,
                "tls": tls,
            },
        });
        accepted(serde_json::from_value(manifest).unwrap())
    };
    let behind = json!({ "enabled": false, "gatewayRef": { "name": "host" } });
    let services = [
        manifest("chat", &behind, guests),
        manifest("host", &json!({}), hosts),
    ];
    let settings = Settings::default();
    let [guest, host] = [0, 1].map(|i: usize| {
        let own = kvasir_operator_core::validate(&services[i], &settings).unwrap();
        kvasir_operator_core::sharing::join(&services[i], own, &services, &settings).unwrap()
    });
    (guest, host)
}

const HOSTS_ENGINE: &str = "spiffe://kvasir.dev/ns/team/service/host/engine";
const HOSTS_GATEWAY: &str = "spiffe://kvasir.dev/ns/team/service/host/gateway";

#[test]
fn a_guest_looks_at_its_hosts_certificate_where_the_operator_does_not_sign_that_whoever_signs_its_own() {
    let (guest, _) = shared(&json!({ "mode": "Internal" }), &provides("hosts"));
    let later = now() + SignedDuration::from_hours(24);
    let signer = authority();
    let problems = |mut secret: Found| {
        secret.controller = Some("host".to_owned());
        look(&guest, &[("host-gateway-tls".to_owned(), secret)].into()).problems
    };
    assert_eq!(
        problems(secret(&signer, &[HOSTS_GATEWAY], later)),
        [format!(
            "spec.gateway.gatewayRef: Secret host-gateway-tls: its certificate doesn't carry the URI {GATEWAY} (it comes from Secret hosts, which \
             spec.tls.secretName of InferenceService host names)"
        )]
    );
    assert!(problems(secret(&signer, &[HOSTS_GATEWAY, GATEWAY], later)).is_empty());
    // One that the operator signs carries it.
    let (guest, _) = shared(&provides("given"), &json!({ "mode": "Internal" }));
    assert_eq!(host_secret(&guest), None);
}

#[test]
fn a_certificate_that_does_not_speak_for_guests_takes_no_place_of_one_that_does_while_that_is_valid() {
    let (_, host) = shared(&json!({ "mode": "Internal" }), &provides("hosts"));
    let later = now() + SignedDuration::from_hours(24);
    let signer = authority();
    let mut in_place = secret(&signer, &[HOSTS_GATEWAY, GATEWAY], later);
    in_place.ours = true;
    let own = [HOSTS_ENGINE, HOSTS_GATEWAY];
    let mut secrets: Secrets = [
        ("host-gateway-tls".to_owned(), in_place),
        (
            "hosts".to_owned(),
            secret(&signer, &own, later + SignedDuration::from_hours(24)),
        ),
        ("own".to_owned(), secret(&signer, &[identity::OPERATOR], later)),
    ]
    .into();
    let offered = |secrets: &Secrets, at: Timestamp| {
        offered(&host, &Subject::Gateway, secrets, &Settings::default(), at).is_some()
    };
    let at = now() + CLOCK_SKEW;
    assert!(!offered(&secrets, at));
    assert_eq!(
        look(&host, &secrets).problems,
        [format!(
            "spec.tls.secretName: Secret hosts: its certificate doesn't carry the URI {GATEWAY}"
        )]
    );
    // The host's own clients come first when there is nothing else.
    assert!(offered(&secrets, later + SignedDuration::from_secs(1)));
    secrets.insert(
        "hosts".to_owned(),
        secret(&signer, &[HOSTS_ENGINE, HOSTS_GATEWAY, GATEWAY], later),
    );
    assert!(offered(&secrets, at));
    // A guest that no certificate carried so far waits, and its host doesn't.
    secrets.insert("hosts".to_owned(), secret(&signer, &own, later));
    let mut without = secret(&signer, &[HOSTS_GATEWAY], later);
    without.ours = true;
    secrets.insert("host-gateway-tls".to_owned(), without);
    assert!(offered(&secrets, at));
}

#[test]
fn a_hosts_certificate_must_speak_for_its_guest_and_be_of_an_authority_that_both_have() {
    let ((service, _), signer) = (shared(&provides("given"), &provides("hosts")), authority());
    let later = now() + SignedDuration::from_hours(24);
    // Whom the operator is vouched for by is between it and each service.
    let operators = authority();
    let mut own = secret(&operators, &[identity::OPERATOR], later);
    let both = [&signer, &operators]
        .map(|held| held.made.certificate.as_str())
        .concat();
    own.data.insert(TRUST_KEY.to_owned(), bytes(&both));
    let mut engines = secret(&signer, &[ENGINE], later);
    engines.data.insert(TRUST_KEY.to_owned(), bytes(&both));
    let hosts = |signer: &HeldAuthority, uri: &str| Found {
        controller: Some("host".to_owned()),
        ..secret(signer, &[uri], later)
    };
    let mut secrets: Secrets = [
        ("given".to_owned(), engines),
        ("own".to_owned(), own),
        (
            "host-gateway-tls".to_owned(),
            hosts(&signer, "spiffe://kvasir.dev/ns/team/service/host/gateway"),
        ),
    ]
    .into();
    let problems = |secrets: &Secrets| look(&service, secrets).problems;
    assert_eq!(
        problems(&secrets),
        [format!(
            "spec.gateway.gatewayRef: Secret host-gateway-tls: its certificate doesn't carry the URI {GATEWAY} (it comes from Secret hosts, which \
             spec.tls.secretName of InferenceService host names)"
        )]
    );
    secrets.insert("host-gateway-tls".to_owned(), hosts(&signer, GATEWAY));
    assert!(problems(&secrets).is_empty(), "{:?}", problems(&secrets));
    // One that an earlier service called host left.
    let left = Found {
        controller: Some("earlier".to_owned()),
        ..hosts(&signer, GATEWAY)
    };
    secrets.insert("host-gateway-tls".to_owned(), left);
    assert_eq!(
        problems(&secrets),
        ["spec.gateway.gatewayRef: Secret host-gateway-tls: it doesn't belong to InferenceService host"]
    );
    let mut stranger = hosts(&authority(), GATEWAY);
    stranger
        .data
        .insert(TRUST_KEY.to_owned(), bytes(&signer.made.certificate));
    secrets.insert("host-gateway-tls".to_owned(), stranger);
    let found = problems(&secrets);
    assert!(
        found.iter().any(|problem| problem
            .starts_with("spec.gateway.gatewayRef: Secret host-gateway-tls: its certificate isn't signed")),
        "{found:?}"
    );
}

#[test]
fn what_is_missing_is_said_by_secret_and_key() {
    let (service, signer) = (provided(), authority());
    let later = now() + SignedDuration::from_hours(24);
    let mut secrets = Secrets::new();
    let problems = |secrets: &Secrets| look(&service, secrets).problems;
    assert_eq!(
        problems(&secrets),
        [
            "spec.tls.secretName: Secret given: it doesn't exist",
            "spec.tls.operatorSecretName: Secret own: it doesn't exist"
        ]
    );
    secrets.insert("own".to_owned(), secret(&signer, &[identity::OPERATOR], later));
    let mut without = secret(&signer, &[ENGINE, GATEWAY], later);
    without.data.remove(TRUST_KEY);
    secrets.insert("given".to_owned(), without);
    assert_eq!(
        problems(&secrets),
        ["spec.tls.secretName: Secret given: it has no ca.crt"]
    );
    secrets.insert("given".to_owned(), secret(&signer, &[ENGINE], later));
    assert_eq!(
        problems(&secrets),
        [format!(
            "spec.tls.secretName: Secret given: its certificate doesn't carry the URI {GATEWAY}"
        )]
    );
    secrets.insert("given".to_owned(), secret(&signer, &[ENGINE, GATEWAY], now()));
    assert_eq!(
        problems(&secrets),
        ["spec.tls.secretName: Secret given: its certificate ended at 2026-11-30T00:00:00Z"]
    );
    secrets.insert("given".to_owned(), secret(&signer, &[ENGINE, GATEWAY], later));
    let fine = look(&service, &secrets);
    assert_eq!((fine.problems, fine.first_end), (Vec::new(), later));
}

#[test]
fn certificates_that_others_would_not_trust_are_said() {
    let (service, signer, namesake) = (provided(), authority(), authority());
    let later = now() + SignedDuration::from_hours(24);
    let mut secrets = Secrets::new();
    secrets.insert("given".to_owned(), secret(&signer, &[ENGINE, GATEWAY], later));
    secrets.insert("own".to_owned(), secret(&namesake, &[identity::OPERATOR], later));
    // Pods and the operator trust the authorities of both.
    assert!(look(&service, &secrets).problems.is_empty());
    let other = bytes(&signer.made.certificate);
    secrets
        .get_mut("own")
        .unwrap()
        .data
        .insert(TRUST_KEY.to_owned(), other);
    assert_eq!(
        look(&service, &secrets).problems,
        [
            "spec.tls.operatorSecretName: Secret own: its certificate isn't signed by an authority in its ca.crt"
        ]
    );
}

#[test]
fn a_key_of_another_certificate_is_said_and_reaches_no_pod() {
    let (service, signer) = (provided(), authority());
    let later = now() + SignedDuration::from_hours(24);
    let mut given = secret(&signer, &[ENGINE, GATEWAY], later);
    let other = secret(&signer, &[ENGINE, GATEWAY], later);
    let mut secrets = Secrets::new();
    secrets.insert("own".to_owned(), secret(&signer, &[identity::OPERATOR], later));
    given
        .data
        .insert(PRIVATE_KEY_KEY.to_owned(), other.data[PRIVATE_KEY_KEY].clone());
    secrets.insert("given".to_owned(), given);
    assert_eq!(
        look(&service, &secrets).problems,
        ["spec.tls.secretName: Secret given: its tls.key isn't the key of its certificate"]
    );
    let clock = now() + CLOCK_SKEW;
    let offer =
        |secrets: &Secrets| offered(&service, &Subject::Gateway, secrets, &Settings::default(), clock);
    assert!(offer(&secrets).is_none());
    secrets.insert("given".to_owned(), other);
    assert!(offer(&secrets).is_some());
}

#[test]
fn a_self_signed_issuer_of_cert_manager_is_named_as_the_cause() {
    let service = service(&json!({ "mode": "CertManager", "issuerRef": { "name": "x" } }));
    let own = authority();
    let subject = [Subject::Gateway];
    let mut secrets = Secrets::new();
    // An authority's certificate is one that is signed by itself.
    let mut found = secret(
        &own,
        &[identity::OPERATOR],
        now() + SignedDuration::from_hours(24),
    );
    let named = view(&service, &[], &subject, &secrets, &Settings::default(), now()).unwrap();
    assert_eq!(named.missing, 2);
    for (key, value) in self_signed() {
        found.data.insert(key.to_owned(), bytes(&value));
    }
    secrets.insert("chat-operator-tls".to_owned(), found);
    let clock = now() + CLOCK_SKEW;
    let named = view(&service, &[], &[], &secrets, &Settings::default(), clock).unwrap();
    assert_eq!(named.problems.len(), 1);
    assert!(named.problems[0].contains("SelfSigned"), "{:?}", named.problems);
}

/// What an issuer of kind SelfSigned makes for the operator, and its key.
fn self_signed() -> [(&'static str, String); 2] {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let name = identity::OPERATOR.try_into().unwrap();
    params.subject_alt_names.push(rcgen::SanType::URI(name));
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    [
        (CERTIFICATE_KEY, certificate),
        (PRIVATE_KEY_KEY, key.serialize_pem()),
    ]
}

#[test]
fn the_operator_presents_what_it_was_given_and_nothing_else() {
    let signer = authority();
    let later = now() + SignedDuration::from_hours(24);
    let own = |service: &Validated, secrets: &Secrets| own(service, secrets, now() + CLOCK_SKEW);
    let mut secrets = Secrets::new();
    assert!(own(&provided(), &secrets).is_none());
    secrets.insert("own".to_owned(), secret(&signer, &[ENGINE], later));
    assert!(
        own(&provided(), &secrets).is_none(),
        "it isn't called the operator"
    );
    secrets.insert("own".to_owned(), secret(&signer, &[identity::OPERATOR], later));
    let found = own(&provided(), &secrets).unwrap();
    assert_eq!((found.trust, found.until), (signer.made.certificate, later));
    let without = service(&json!({ "mode": "Provided", "secretName": "own" }));
    assert!(own(&without, &secrets).is_none());
}

#[test]
fn a_secret_that_has_a_controller_is_left_to_it() {
    let secret = |owners: serde_json::Value| -> DynamicObject {
        serde_json::from_value(json!({ "metadata": {
            "name": "chat-g0-certificate",
            "annotations": { "cert-manager.io/certificate-name": "chat-g0-certificate" },
            "ownerReferences": owners,
        } }))
        .unwrap()
    };
    let owner = |controller: bool| json!([{ "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "name": "x", "uid": "y", "controller": controller }]);
    assert_eq!(
        made_for(&secret(json!([]))).as_deref(),
        Some("chat-g0-certificate")
    );
    assert_eq!(
        made_for(&secret(owner(false))).as_deref(),
        Some("chat-g0-certificate")
    );
    assert_eq!(made_for(&secret(owner(true))), None);
}
