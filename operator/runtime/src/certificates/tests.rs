//! What is made is what is read back.

use kvasir_operator_api::InferenceService;
use kvasir_operator_core::certificates::{Authority, CLOCK_SKEW};
use serde_json::json;

use super::*;

fn service() -> Validated {
    let manifest = json!({
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": { "name": "chat", "namespace": "team", "uid": "u" },
        "spec": { "model": { "source": { "pvc": { "claimName": "models" } } } },
    });
    let service = serde_json::from_value(manifest).unwrap();
    kvasir_operator_core::validate(&service, &Settings::default()).unwrap()
}

fn now() -> Timestamp {
    "2026-11-30T00:00:00Z".parse().unwrap()
}

fn authority(serial: u64) -> HeldAuthority {
    authority_of("team/chat", serial, now())
}

pub(super) fn authority_of(owner: &str, serial: u64, now: Timestamp) -> HeldAuthority {
    let made = issue::authority(owner, serial, now).unwrap();
    let data: Data = [
        (held::certificate_key(serial), bytes(&made.certificate)),
        (held::private_key_key(serial), bytes(&made.key)),
    ]
    .into();
    held::authorities(&data).pop().unwrap()
}

fn subject(uid: &str) -> Subject {
    Subject::Group {
        id: 2,
        uid: uid.to_owned(),
    }
}

fn issued(signer: &HeldAuthority, subject: &Subject) -> Data {
    let names = identity::names(&service(), subject, "cluster.local");
    let end = now() + SignedDuration::from_hours(24);
    let made = issue::leaf("team/chat", &names, "chat-g2", signer, end, now()).unwrap();
    [
        (CERTIFICATE_KEY.to_owned(), bytes(&made.certificate)),
        (PRIVATE_KEY_KEY.to_owned(), bytes(&made.key)),
        (TRUST_KEY.to_owned(), bytes("trust")),
    ]
    .into()
}

fn read(data: &Data, subject: &Subject) -> Option<held::HeldLeaf> {
    let names = identity::names(&service(), subject, "cluster.local");
    held::leaf(data, &service(), subject, &names)
}

#[test]
fn an_authority_is_read_back_as_it_was_made() {
    let held = authority(7);
    let expected = Authority {
        serial: 7,
        not_before: now(),
        not_after: now() + rules::AUTHORITY_LIFE,
        can_sign: true,
    };
    assert_eq!(held.authority, expected);
}

#[test]
fn a_certificate_is_read_back_as_it_was_issued() {
    let data = issued(&authority(3), &subject("a"));
    let held = read(&data, &subject("a")).unwrap();
    let expected = Leaf {
        subject: subject("a"),
        authority: 3,
        not_before: now(),
        not_after: now() + SignedDuration::from_hours(24),
    };
    assert_eq!(held.leaf, expected);
    assert_eq!(held.trust, "trust");
}

#[test]
fn what_was_issued_is_not_due_and_what_was_signed_by_another_authority_is() {
    let signer = authority(1);
    let held = read(&issued(&signer, &subject("a")), &subject("a")).unwrap();
    let life = SignedDuration::from_hours(24);
    let decide = |authority: Authority| {
        rules::decide(
            &[subject("a")],
            std::slice::from_ref(&held.leaf),
            &[authority],
            life,
            now() + CLOCK_SKEW,
        )
    };
    let plan = decide(signer.authority);
    assert_eq!(plan.issue, []);
    assert!(!plan.new_authority);
    let other = Authority {
        serial: 2,
        ..signer.authority
    };
    assert_eq!(decide(other).issue, [subject("a")]);
}

#[test]
fn an_authority_of_the_same_number_with_another_key_has_signed_nothing() {
    let (signer, namesake) = (authority(1), authority(1));
    let held = read(&issued(&signer, &subject("a")), &subject("a")).unwrap();
    assert_eq!(held::by_authority(&held, &[signer]), held.leaf);
    let orphan = held::by_authority(&held, std::slice::from_ref(&namesake));
    assert_eq!(orphan.authority, 0);
    let plan = rules::decide(
        &[subject("a")],
        &[orphan],
        &[namesake.authority],
        SignedDuration::from_hours(24),
        now(),
    );
    assert_eq!(plan.issue, [subject("a")]);
}

#[test]
fn an_authority_whose_key_is_lost_is_found_beside_what_it_signed() {
    let (signer, other) = (authority(4), authority(5));
    let mut data = issued(&signer, &subject("a"));
    let trust = format!("garbage\n{}{}", other.made.certificate, signer.made.certificate);
    data.insert(TRUST_KEY.to_owned(), bytes(&trust));
    let leaves = [read(&data, &subject("a")).unwrap()];
    let found = held::lost(&leaves, &[]);
    assert_eq!(found.len(), 1, "the other one signed nothing that is left");
    assert_eq!(found[0].made.certificate, signer.made.certificate);
    let expected = Authority {
        can_sign: false,
        ..signer.authority
    };
    assert_eq!(found[0].authority, expected);
    assert!(held::lost(&leaves, &[signer]).is_empty());
}

#[test]
fn a_certificate_never_outlives_its_authority() {
    let signer = authority(1);
    let names = identity::names(&service(), &Subject::Gateway, "cluster.local");
    let made = issue::leaf("team/chat", &names, "x", &signer, Timestamp::MAX, now()).unwrap();
    let data: Data = [
        (CERTIFICATE_KEY.to_owned(), bytes(&made.certificate)),
        (PRIVATE_KEY_KEY.to_owned(), bytes(&made.key)),
    ]
    .into();
    let held = read(&data, &Subject::Gateway).unwrap();
    assert_eq!(held.leaf.not_after, signer.authority.not_after);
}

#[test]
fn a_certificate_of_an_earlier_group_of_the_id_is_none() {
    let data = issued(&authority(1), &subject("a"));
    assert!(read(&data, &subject("b")).is_none());
    assert!(read(&data, &Subject::Gateway).is_none());
}

#[test]
fn garbage_and_foreign_keys_are_no_certificates() {
    let good = issued(&authority(1), &subject("a"));
    let other = issued(&authority(1), &subject("a"));
    for key in [CERTIFICATE_KEY, PRIVATE_KEY_KEY] {
        for garbage in [
            &b""[..],
            b"\xff\xfe",
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let mut data = good.clone();
            data.insert(key.to_owned(), ByteString(garbage.to_vec()));
            assert!(read(&data, &subject("a")).is_none());
        }
        let mut swapped = good.clone();
        swapped.insert(key.to_owned(), other[key].clone());
        assert!(read(&swapped, &subject("a")).is_none());
    }
    let mut authorities = Data::new();
    authorities.insert("x.crt".to_owned(), bytes("a"));
    authorities.insert("1.crt".to_owned(), bytes("a"));
    assert!(held::authorities(&authorities).is_empty());
}

/// `chat` and `coder`, which uses its gateway, as a round of the one that is asked for sees both.
fn shared(asked: &str, tls: &serde_json::Value) -> Validated {
    let manifest = |name: &str, gateway: &serde_json::Value| {
        let manifest = json!({
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": { "name": name, "namespace": "team", "uid": format!("uid-of-{name}") },
            "spec": {
                "model": { "source": { "pvc": { "claimName": "models" } } },
                "gateway": gateway,
                "tls": tls,
            },
        });
        accepted(serde_json::from_value(manifest).unwrap())
    };
    let services = [
        manifest("chat", &json!({})),
        manifest(
            "coder",
            &json!({ "enabled": false, "gatewayRef": { "name": "chat" } }),
        ),
    ];
    let service = services
        .iter()
        .find(|service| service.metadata.name.as_deref() == Some(asked))
        .unwrap();
    let mut settings = Settings::default();
    settings.known_kinds.insert(Kind::Certificate);
    let own = kvasir_operator_core::validate(service, &settings).unwrap();
    kvasir_operator_core::sharing::join(service, own, &services, &settings).unwrap()
}

/// With the status of a service whose spec was accepted.
pub(super) fn accepted(mut service: InferenceService) -> InferenceService {
    let spec = serde_json::to_string(&service.spec).unwrap();
    service.status.get_or_insert_default().accepted_spec = Some(spec);
    service
}

fn bundle(name: &str, controller: &str, trust: &str) -> (String, Found) {
    let found = Found {
        controller: Some(controller.to_owned()),
        data: [(TRUST_KEY.to_owned(), bytes(trust))].into(),
        ..Found::default()
    };
    (name.to_owned(), found)
}

#[test]
fn the_other_side_of_a_shared_gateway_is_trusted_by_its_own_bundle_and_by_no_secret_of_that_name() {
    let tls = json!({ "mode": "Internal" });
    let theirs = bundle("coder-trust", "uid-of-coder", "guest's authority");
    let foreign = bundle("coder-trust", "uid-of-somebody", "false authority");
    let host = shared("chat", &tls);
    assert!(names(&host, []).contains(&"coder-trust".to_owned()));
    assert_eq!(trust_of_others(&host, &[theirs].into()), "guest's authority");
    assert_eq!(trust_of_others(&host, &[foreign].into()), "");
    let guest = shared("coder", &tls);
    assert!(names(&guest, []).contains(&"chat-trust".to_owned()));
    let hosts = bundle("chat-trust", "uid-of-chat", "host's authority");
    assert_eq!(trust_of_others(&guest, &[hosts].into()), "host's authority");
}

#[test]
fn what_clients_are_given_vouches_for_the_gateway_alone() {
    let host = shared("chat", &json!({ "mode": "Internal" }));
    let beside = bundle("chat-gateway-tls", "uid-of-chat", "own and guests'");
    let (name, found) = bundle("chat-trust", "uid-of-chat", "own");
    let planted = (name.clone(), found.clone());
    let own = (name, Found { ours: true, ..found });
    assert_eq!(
        trust(&host, &[beside.clone(), own].into()).as_deref(),
        Some("own")
    );
    assert_eq!(trust(&host, &[beside, planted].into()), None);
}

#[test]
fn a_guest_never_takes_its_hosts_secret_for_its_own() {
    let issuer = json!({ "mode": "CertManager", "issuerRef": { "name": "ca" } });
    let name = "chat-gateway-issued";
    let found = Found {
        made_for: Some(name.to_owned()),
        ..Found::default()
    };
    assert!(given::is_made_for(&shared("chat", &issuer), name, &found));
    let guest = shared("coder", &issuer);
    assert!(names(&guest, []).contains(&"chat-gateway-tls".to_owned()));
    assert!(!given::is_made_for(&guest, name, &found));
}
