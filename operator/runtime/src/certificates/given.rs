//! Certificates that somebody else makes: cert-manager, or whoever wrote the Secret. They are read and judged, never written.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;
use kvasir_operator_api::TlsMode;
use kvasir_operator_core::certificates::Subject;
use kvasir_operator_core::child::{Kind, Live};
use kvasir_operator_core::identity::{self, CERTIFICATE_KEY, PRIVATE_KEY_KEY, TRUST_KEY};
use kvasir_operator_core::observed::CertificatesView;
use kvasir_operator_core::{Settings, Validated};
use x509_parser::pem::parse_x509_pem;

use super::anchors::{Anchors, links};
use super::held::{Data, contradicts, names_of, text, validity};
use super::{Found, Made, OwnIdentity, Secrets};

/// How often Secrets are looked at while one of them lacks something.
pub(super) const PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// A Secret that somebody else fills, and the names that its certificate must carry.
struct Expected {
    /// The field that names it.
    field: Option<&'static str>,
    secret: String,
    uris: Vec<String>,
}

/// The Secrets that the pods of the service and the operator need.
fn expected(service: &Validated, wanted: &[Subject], settings: &Settings) -> Vec<Expected> {
    let mut all: Vec<Expected> = match (&service.spec.tls.mode, &service.spec.tls.secret_name) {
        // All pods share it, so it speaks for engines and gateway alike.
        (TlsMode::Provided, Some(secret)) => vec![Expected {
            field: Some("spec.tls.secretName"),
            secret: secret.clone(),
            uris: std::iter::once(identity::engine(service))
                .chain(service.spec.gateway.enabled.then(|| identity::gateway(service)))
                .collect(),
        }],
        (TlsMode::CertManager, _) => wanted
            .iter()
            .map(|subject| Expected {
                field: None,
                secret: identity::issued(&service.names, subject),
                uris: match subject {
                    Subject::Group { .. } => identity::names(service, subject, &settings.cluster_domain).uris,
                    // Those of its guests are theirs to wait for.
                    Subject::Gateway => vec![identity::gateway(service)],
                },
            })
            .collect(),
        _ => Vec::new(),
    };
    all.extend(own_secret(service).map(|secret| Expected {
        field: (service.spec.tls.mode == TlsMode::Provided).then_some("spec.tls.operatorSecretName"),
        secret,
        uris: vec![identity::OPERATOR.to_owned()],
    }));
    all.extend(host_secret(service).map(|secret| Expected {
        field: Some("spec.gateway.gatewayRef"),
        secret,
        uris: vec![identity::gateway(service)],
    }));
    all
}

/// The Secret with what the gateway of the service's host shows to these engines: it must speak for this service too.
fn host_secret(service: &Validated) -> Option<String> {
    let host = service.sharing.serving_host()?;
    let by_others = matches!(service.spec.tls.mode, TlsMode::Provided | TlsMode::CertManager);
    by_others.then(|| host.names.gateway_certificate())
}

/// The Secret with what the operator presents itself with, if there is to be one.
fn own_secret(service: &Validated) -> Option<String> {
    match service.spec.tls.mode {
        TlsMode::Provided => service.spec.tls.operator_secret_name.clone(),
        TlsMode::CertManager => Some(service.names.operator_certificate()),
        TlsMode::Internal | TlsMode::Off => None,
    }
}

/// Whether the operator presents itself to the service's pods at all.
pub(super) fn is_presented(service: &Validated) -> bool {
    service.spec.tls.mode == TlsMode::Internal || own_secret(service).is_some()
}

/// Names of all Secrets that somebody else fills and the operator reads, but those of groups.
pub(super) fn names(service: &Validated) -> Vec<String> {
    let pods = match service.spec.tls.mode {
        TlsMode::Provided => service.spec.tls.secret_name.clone(),
        TlsMode::CertManager => Some(service.names.gateway_issued()),
        TlsMode::Internal | TlsMode::Off => None,
    };
    let own = pods.into_iter().chain(own_secret(service));
    own.chain(host_secret(service)).collect()
}

/// The name of the Secret that cert-manager fills for a group.
pub(super) fn name_of_group(service: &Validated, id: i32) -> Option<String> {
    (service.spec.tls.mode == TlsMode::CertManager).then(|| service.names.group_issued(id))
}

/// The authorities that lie beside what somebody else makes for these Secrets of pods, and for the operator.
pub(super) fn bundles(service: &Validated, mounted: &BTreeSet<String>, secrets: &Secrets) -> Vec<String> {
    let groups = mounted
        .iter()
        .filter_map(|name| service.names.group_of_certificate(name));
    let groups = groups.filter_map(|id| name_of_group(service, id));
    // What the host's gateway shows is vouched for by the host's bundle.
    let host = host_secret(service);
    let own = names(service)
        .into_iter()
        .filter(|name| Some(name) != host.as_ref());
    let all = own.chain(groups);
    all.filter_map(|name| text(&secrets.get(&name)?.data, TRUST_KEY))
        .collect()
}

/// What somebody else makes for a subject, if it can be used.
pub(super) fn offered(
    service: &Validated,
    subject: &Subject,
    secrets: &Secrets,
    settings: &Settings,
    now: Timestamp,
) -> Option<Made> {
    let expected = expected(service, std::slice::from_ref(subject), settings);
    let others = [own_secret(service), host_secret(service)];
    let expected = expected
        .into_iter()
        .find(|expected| !others.contains(&Some(expected.secret.clone())))?;
    let data = &secrets.get(&expected.secret)?.data;
    judge(Some(data), &expected.uris, now).ok()?;
    Some(Made {
        certificate: text(data, CERTIFICATE_KEY)?,
        key: text(data, PRIVATE_KEY_KEY)?,
    })
}

/// The Certificate that cert-manager wrote a Secret for. Nothing where the Secret has a controller already, as with cert-manager's option
/// to own Secrets: it goes with its Certificate then.
pub(super) fn made_for(object: &DynamicObject) -> Option<String> {
    let metadata = &object.metadata;
    let mut owners = metadata.owner_references.iter().flatten();
    if owners.any(|owner| owner.controller == Some(true)) {
        return None;
    }
    let annotations = metadata.annotations.as_ref()?;
    annotations.get("cert-manager.io/certificate-name").cloned()
}

/// Whether cert-manager wrote the Secret for a Certificate of this service, which has its name.
pub(super) fn is_made_for(service: &Validated, name: &str, found: &Found) -> bool {
    let names = &service.names;
    let is_own = name == names.gateway_issued()
        || name == names.operator_certificate()
        || names.group_of_issued(name).is_some();
    service.spec.tls.mode == TlsMode::CertManager && found.made_for.as_deref() == Some(name) && is_own
}

/// What the status says about them; nothing where there is no TLS.
pub(super) fn view(
    service: &Validated,
    children: &[Live],
    wanted: &[Subject],
    secrets: &Secrets,
    settings: &Settings,
    now: Timestamp,
) -> Option<CertificatesView> {
    let mut view = CertificatesView {
        first_end: Timestamp::MAX,
        missing: 0,
        problems: Vec::new(),
    };
    let expected = expected(service, wanted, settings);
    if expected.is_empty() {
        return None;
    }
    let mut sound = Vec::new();
    for expected in expected {
        let found = secrets.get(&expected.secret).map(|found| &found.data);
        match judge(found, &expected.uris, now) {
            Ok(end) => {
                view.first_end = view.first_end.min(end);
                sound.push((expected, found));
            }
            Err(problem) => {
                let why = refusal(children, &expected.secret);
                let field = expected.field.map(|field| format!("{field}: "));
                view.problems.push(format!(
                    "{}Secret {}: {problem}{}",
                    field.unwrap_or_default(),
                    expected.secret,
                    why.map(|why| format!(" (cert-manager says: {why})"))
                        .unwrap_or_default()
                ));
            }
        }
    }
    view.problems.extend(strangers(service, &sound));
    view.missing = view.problems.len();
    Some(view)
}

/// Which of the certificates nobody would trust: pods and the operator trust the authorities of all these Secrets.
fn strangers(service: &Validated, sound: &[(Expected, Option<&Data>)]) -> Vec<String> {
    let read = |data: Option<&Data>, key: &str| data.and_then(|data| text(data, key)).unwrap_or_default();
    let mut authorities = Anchors::default();
    for (_, data) in sound {
        authorities.add(&read(*data, TRUST_KEY));
    }
    let mut problems = Vec::new();
    for (shown, data) in sound {
        let chain = read(*data, CERTIFICATE_KEY);
        let field = shown.field.map(|field| format!("{field}: ")).unwrap_or_default();
        let of_itself = links(&chain)
            .first()
            .is_some_and(|leaf| leaf.issuer == leaf.subject);
        if of_itself && service.spec.tls.mode == TlsMode::CertManager {
            problems.push(format!(
                "Secret {}: its certificate is signed by itself: spec.tls.issuerRef names an issuer of kind SelfSigned, which is no authority \
                 that others could trust; name one of kind CA, for example one that a SelfSigned issuer made the certificate of",
                shown.secret
            ));
        } else if authorities.signers(&chain).is_empty() {
            problems.push(format!(
                "{field}Secret {}: its certificate isn't signed by an authority in its {TRUST_KEY}",
                shown.secret
            ));
        }
    }
    problems
}

/// Why cert-manager hasn't issued a Certificate yet.
fn refusal(children: &[Live], name: &str) -> Option<String> {
    let certificate = children
        .iter()
        .find(|live| live.reference.kind == Kind::Certificate && live.reference.name == name)?;
    let conditions = certificate.object["status"]["conditions"].as_array()?;
    let waiting = conditions
        .iter()
        .find(|condition| condition["type"] == "Ready" && condition["status"] == "False")?;
    Some(waiting["message"].as_str()?.to_owned())
}

/// What the operator presents itself with, once it is there.
pub(super) fn own(service: &Validated, secrets: &Secrets, now: Timestamp) -> Option<OwnIdentity> {
    let data = &secrets.get(&own_secret(service)?)?.data;
    let until = judge(Some(data), &[identity::OPERATOR.to_owned()], now).ok()?;
    Some(OwnIdentity {
        made: Made {
            certificate: text(data, CERTIFICATE_KEY)?,
            key: text(data, PRIVATE_KEY_KEY)?,
        },
        trust: text(data, TRUST_KEY)?,
        until,
        is_internal: false,
    })
}

/// When the certificate ends, or what is wrong with it. Whether a key of a kind that is unknown here belongs to it is for TLS to say.
fn judge(data: Option<&Data>, uris: &[String], now: Timestamp) -> Result<Timestamp, String> {
    let data = data.ok_or("it doesn't exist yet")?;
    for key in [CERTIFICATE_KEY, PRIVATE_KEY_KEY, TRUST_KEY] {
        if text(data, key).is_none_or(|value| value.trim().is_empty()) {
            return Err(format!("it has no {key}"));
        }
    }
    let certificate = text(data, CERTIFICATE_KEY).unwrap_or_default();
    let unreadable = || format!("its {CERTIFICATE_KEY} is no certificate");
    let (_, pem) = parse_x509_pem(certificate.as_bytes()).map_err(|_| unreadable())?;
    let certificate = pem.parse_x509().map_err(|_| unreadable())?;
    let (begin, end) = validity(&certificate).ok_or_else(unreadable)?;
    let names = names_of(&certificate);
    if let Some(missing) = uris.iter().find(|uri| !names.uris.contains(uri)) {
        return Err(format!("its certificate doesn't carry the URI {missing}"));
    }
    if contradicts(&text(data, PRIVATE_KEY_KEY).unwrap_or_default(), &certificate) {
        return Err(format!("its {PRIVATE_KEY_KEY} isn't the key of its certificate"));
    }
    if end <= now {
        return Err(format!("its certificate ended at {end}"));
    }
    if begin > now {
        return Err(format!("its certificate begins at {begin}"));
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use kvasir_operator_core::certificates::CLOCK_SKEW;
    use kvasir_operator_core::identity::Identity;
    use serde_json::json;

    use super::super::held::{self, HeldAuthority};
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

    /// A service behind the gateway of `host`, whose Secret is another one of the same authority.
    fn guest() -> Validated {
        let manifest = |name: &str, gateway: &serde_json::Value, secret: &str| {
            let manifest = json!({
                "apiVersion": "kvasir.dev/v1alpha1",
                "kind": "InferenceService",
                "metadata": { "name": name, "namespace": "team", "uid": name },
                "spec": {
                    "model": { "source": { "pvc": { "claimName": "models" } } },
                    "gateway": gateway,
                    "tls": { "mode": "Provided", "secretName": secret, "operatorSecretName": "own" },
                },
            });
            serde_json::from_value::<kvasir_operator_api::InferenceService>(manifest).unwrap()
        };
        let behind = json!({ "enabled": false, "gatewayRef": { "name": "host" } });
        let (host, guest) = (
            manifest("host", &json!({}), "hosts"),
            manifest("chat", &behind, "given"),
        );
        let settings = Settings::default();
        let own = kvasir_operator_core::validate(&guest, &settings).unwrap();
        kvasir_operator_core::sharing::join(&guest, own, [&host], &settings).unwrap()
    }

    #[test]
    fn a_hosts_certificate_must_speak_for_its_guest_and_be_of_an_authority_that_both_have() {
        let (service, signer) = (guest(), authority());
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
        let mut secrets: Secrets = [
            ("given".to_owned(), engines),
            ("own".to_owned(), own),
            (
                "host-gateway-tls".to_owned(),
                secret(
                    &signer,
                    &["spiffe://kvasir.dev/ns/team/service/host/gateway"],
                    later,
                ),
            ),
        ]
        .into();
        let problems = |secrets: &Secrets| look(&service, secrets).problems;
        assert_eq!(
            problems(&secrets),
            [format!(
                "spec.gateway.gatewayRef: Secret host-gateway-tls: its certificate doesn't carry the URI {GATEWAY}"
            )]
        );
        secrets.insert("host-gateway-tls".to_owned(), secret(&signer, &[GATEWAY], later));
        assert!(problems(&secrets).is_empty(), "{:?}", problems(&secrets));
        let mut stranger = secret(&authority(), &[GATEWAY], later);
        stranger
            .data
            .insert(TRUST_KEY.to_owned(), bytes(&signer.made.certificate));
        secrets.insert("host-gateway-tls".to_owned(), stranger);
        let found = problems(&secrets);
        assert!(
            found.iter().any(|problem| problem.starts_with(
                "spec.gateway.gatewayRef: Secret host-gateway-tls: its certificate isn't signed"
            )),
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
                "spec.tls.secretName: Secret given: it doesn't exist yet",
                "spec.tls.operatorSecretName: Secret own: it doesn't exist yet"
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
}
