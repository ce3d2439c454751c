//! Certificates that somebody else makes: cert-manager, or whoever wrote the Secret. They are read and judged, never written.

use jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;
use kvasir_operator_api::TlsMode;
use kvasir_operator_core::certificates::Subject;
use kvasir_operator_core::child::{Kind, Live};
use kvasir_operator_core::identity::{self, CERTIFICATE_KEY, PRIVATE_KEY_KEY, TRUST_KEY};
use kvasir_operator_core::observed::CertificatesView;
use kvasir_operator_core::{Settings, Validated};
use x509_parser::pem::parse_x509_pem;

use super::held::{Data, names_of, text, validity};
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
                secret: identity::secret(&service.names, subject),
                uris: identity::names(service, subject, &settings.cluster_domain).uris,
            })
            .collect(),
        _ => Vec::new(),
    };
    all.extend(own_secret(service).map(|secret| Expected {
        field: (service.spec.tls.mode == TlsMode::Provided).then_some("spec.tls.operatorSecretName"),
        secret,
        uris: vec![identity::OPERATOR.to_owned()],
    }));
    all
}

/// The Secret with what the operator presents itself with, if there is to be one.
fn own_secret(service: &Validated) -> Option<String> {
    match service.spec.tls.mode {
        TlsMode::Provided => service.spec.tls.operator_secret_name.clone(),
        TlsMode::CertManager => Some(service.names.operator_certificate()),
        TlsMode::Internal | TlsMode::Off => None,
    }
}

/// Names of all Secrets that somebody else fills and the operator reads, but those that have the names of its own.
pub(super) fn names(service: &Validated) -> Vec<String> {
    let provided = service.spec.tls.secret_name.clone();
    let provided = provided.filter(|_| service.spec.tls.mode == TlsMode::Provided);
    provided.into_iter().chain(own_secret(service)).collect()
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
    service.spec.tls.mode == TlsMode::CertManager && found.made_for.as_deref() == Some(name)
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
    for expected in expected {
        let found = secrets.get(&expected.secret).map(|found| &found.data);
        match judge(found, &expected.uris, now) {
            Ok(end) => view.first_end = view.first_end.min(end),
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
    view.missing = view.problems.len();
    Some(view)
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
    })
}

/// When the certificate ends, or what is wrong with it. That the key belongs to it is for TLS to say: it may be of any kind.
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
        kvasir_operator_core::validate(&service, &Settings::default()).unwrap()
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

    fn secret(uris: &[&str], end: Timestamp) -> Found {
        let names = Identity {
            dns: Vec::new(),
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
        };
        let made = issue::leaf("other", &names, "x", &authority(), end, now()).unwrap();
        let data = [
            (CERTIFICATE_KEY.to_owned(), bytes(&made.certificate)),
            (PRIVATE_KEY_KEY.to_owned(), bytes(&made.key)),
            (TRUST_KEY.to_owned(), bytes("trust")),
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

    #[test]
    fn what_is_missing_is_said_by_secret_and_key() {
        let service = provided();
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
        secrets.insert("own".to_owned(), secret(&[identity::OPERATOR], later));
        let mut without = secret(&[ENGINE, GATEWAY], later);
        without.data.remove(TRUST_KEY);
        secrets.insert("given".to_owned(), without);
        assert_eq!(
            problems(&secrets),
            ["spec.tls.secretName: Secret given: it has no ca.crt"]
        );
        secrets.insert("given".to_owned(), secret(&[ENGINE], later));
        assert_eq!(
            problems(&secrets),
            [format!(
                "spec.tls.secretName: Secret given: its certificate doesn't carry the URI {GATEWAY}"
            )]
        );
        secrets.insert("given".to_owned(), secret(&[ENGINE, GATEWAY], now()));
        assert_eq!(
            problems(&secrets),
            ["spec.tls.secretName: Secret given: its certificate ended at 2026-11-30T00:00:00Z"]
        );
        secrets.insert("given".to_owned(), secret(&[ENGINE, GATEWAY], later));
        let fine = look(&service, &secrets);
        assert_eq!((fine.problems, fine.first_end), (Vec::new(), later));
    }

    #[test]
    fn the_operator_presents_what_it_was_given_and_nothing_else() {
        let later = now() + SignedDuration::from_hours(24);
        let own = |service: &Validated, secrets: &Secrets| own(service, secrets, now() + CLOCK_SKEW);
        let mut secrets = Secrets::new();
        assert!(own(&provided(), &secrets).is_none());
        secrets.insert("own".to_owned(), secret(&[ENGINE], later));
        assert!(
            own(&provided(), &secrets).is_none(),
            "it isn't called the operator"
        );
        secrets.insert("own".to_owned(), secret(&[identity::OPERATOR], later));
        let found = own(&provided(), &secrets).unwrap();
        assert_eq!((found.trust.as_str(), found.until), ("trust", later));
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
