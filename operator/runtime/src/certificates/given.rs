//! Certificates that somebody else makes: cert-manager, or whoever wrote the Secret. They are read and judged, never written.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;
use kvasir_operator_api::TlsMode;
use kvasir_operator_core::certificates::Subject;
use kvasir_operator_core::child::{Kind, Live};
use kvasir_operator_core::identity::{self, PRIVATE_KEY_KEY, TRUST_KEY};
use kvasir_operator_core::observed::CertificatesView;
use kvasir_operator_core::{Settings, Validated};

use super::anchors::{Anchors, links};
use super::held::{Data, text};
use super::leaf::{self, FoundLeaf, NoLeaf};
use super::{Found, Made, OwnIdentity, Secrets};

/// How often Secrets are looked at while one of them lacks something.
pub(super) const PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// A Secret that somebody else fills, and the names that its certificate must carry.
struct Expected {
    /// The field that names it.
    field: Option<&'static str>,
    secret: String,
    uris: Vec<String>,
    /// The other service that it must be of.
    of: Option<Other>,
}

/// Another service.
struct Other {
    name: String,
    uid: String,
    /// The Secret that its spec names, whose content is in the one that is looked at.
    given: Option<String>,
}

impl Expected {
    /// What is wrong with the Secret that was found if it isn't the other service's: an earlier one of its name may have left it.
    fn stranger(&self, found: Option<&Found>) -> Option<String> {
        let other = self.of.as_ref()?;
        let owner = found?.controller.as_ref();
        (owner != Some(&other.uid)).then(|| format!("it doesn't belong to InferenceService {}", other.name))
    }
}

impl Other {
    /// Where what is wrong can be put right.
    fn source(&self) -> Option<String> {
        let given = self.given.as_ref()?;
        Some(format!(
            " (it comes from Secret {given}, which spec.tls.secretName of InferenceService {} names)",
            self.name
        ))
    }
}

/// The Secrets that the pods of the service and the operator need.
fn expected(
    service: &Validated,
    wanted: &[Subject],
    secrets: &Secrets,
    settings: &Settings,
    now: Timestamp,
) -> Vec<Expected> {
    let carried = || carried(service, secrets, now);
    let mut all: Vec<Expected> = match (&service.spec.tls.mode, &service.spec.tls.secret_name) {
        // All pods share it, so it speaks for engines and gateway alike.
        (TlsMode::Provided, Some(secret)) => vec![Expected {
            field: Some("spec.tls.secretName"),
            secret: secret.clone(),
            uris: std::iter::once(identity::engine(service))
                .chain(service.spec.gateway.enabled.then(|| identity::gateway(service)))
                .chain(carried())
                .collect(),
            of: None,
        }],
        (TlsMode::CertManager, _) => wanted
            .iter()
            .map(|subject| Expected {
                field: None,
                secret: identity::issued(&service.names, subject),
                uris: match subject {
                    Subject::Group { .. } => identity::names(service, subject, &settings.cluster_domain).uris,
                    Subject::Gateway => std::iter::once(identity::gateway(service))
                        .chain(carried())
                        .collect(),
                },
                of: None,
            })
            .collect(),
        _ => Vec::new(),
    };
    all.extend(own_secret(service).map(|secret| Expected {
        field: (service.spec.tls.mode == TlsMode::Provided).then_some("spec.tls.operatorSecretName"),
        secret,
        uris: vec![identity::OPERATOR.to_owned()],
        of: None,
    }));
    all.extend(host_secret(service).map(|secret| Expected {
        field: Some("spec.gateway.gatewayRef"),
        secret,
        uris: vec![identity::gateway(service)],
        of: service.sharing.serving_host().map(|host| Other {
            name: host.name.clone(),
            uid: host.uid.clone(),
            given: host.spec.tls.secret_name.clone(),
        }),
    }));
    all
}

/// The names of guests that the gateway's certificate carries at present: while it is valid, no other one takes them from it. Those that it
/// doesn't carry are theirs to wait for.
fn carried(service: &Validated, secrets: &Secrets, now: Timestamp) -> Vec<String> {
    let found = secrets.get(&service.names.gateway_certificate());
    let found = found.filter(|found| found.ours && !service.sharing.guests.is_empty());
    let Some(leaf) = found.and_then(|found| judge(Some(&found.data), &[], now).ok()) else {
        return Vec::new();
    };
    let guests = service.sharing.guests.iter();
    let names = guests.map(|guest| identity::gateway(&guest.service));
    names.filter(|name| leaf.names.uris.contains(name)).collect()
}

/// The Secret with what the gateway of the service's host shows to these engines: it must speak for this service too. What the operator signs
/// does, and isn't looked at.
fn host_secret(service: &Validated) -> Option<String> {
    let host = service.sharing.serving_host()?;
    let by_others = matches!(host.spec.tls.mode, TlsMode::Provided | TlsMode::CertManager);
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
    let expected = expected(service, std::slice::from_ref(subject), secrets, settings, now);
    let others = [own_secret(service), host_secret(service)];
    let expected = expected
        .into_iter()
        .find(|expected| !others.contains(&Some(expected.secret.clone())))?;
    let found = secrets.get(&expected.secret).map(|found| &found.data);
    Some(judge(found, &expected.uris, now).ok()?.made)
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

/// What the status says about them; nothing where nobody else makes any.
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
    let expected = expected(service, wanted, secrets, settings, now);
    if expected.is_empty() {
        return None;
    }
    let mut sound = Vec::new();
    for expected in expected {
        let found = secrets.get(&expected.secret);
        let judged = match expected.stranger(found) {
            None => judge(found.map(|found| &found.data), &expected.uris, now).map_err(|problem| {
                let source = expected.of.as_ref().and_then(Other::source);
                format!("{problem}{}", source.unwrap_or_default())
            }),
            Some(problem) => Err(problem),
        };
        match judged {
            Ok(found) => {
                view.first_end = view.first_end.min(found.end);
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
fn strangers(service: &Validated, sound: &[(Expected, FoundLeaf)]) -> Vec<String> {
    let mut authorities = Anchors::default();
    for (_, found) in sound {
        authorities.add(&found.trust);
    }
    let mut problems = Vec::new();
    for (shown, found) in sound {
        let chain = &found.made.certificate;
        let field = shown.field.map(|field| format!("{field}: ")).unwrap_or_default();
        let of_itself = links(chain)
            .first()
            .is_some_and(|leaf| leaf.issuer == leaf.subject);
        if of_itself && service.spec.tls.mode == TlsMode::CertManager {
            problems.push(format!(
                "Secret {}: its certificate is signed by itself: spec.tls.issuerRef names an issuer of kind SelfSigned, which is no authority \
                 that others could trust; name one of kind CA, for example one that a SelfSigned issuer made the certificate of",
                shown.secret
            ));
        } else if authorities.signers(chain).is_empty() {
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
    let found = judge(Some(data), &[identity::OPERATOR.to_owned()], now).ok()?;
    Some(OwnIdentity {
        made: found.made,
        trust: found.trust,
        until: found.end,
        is_internal: false,
    })
}

/// The certificate, or what is wrong with it. Whether a key of a kind that is unknown here belongs to it is for TLS to say.
fn judge(data: Option<&Data>, uris: &[String], now: Timestamp) -> Result<FoundLeaf, String> {
    let data = data.ok_or("it doesn't exist")?;
    let found = leaf::read(data).map_err(|error| error.to_string())?;
    if found.trust.trim().is_empty() {
        return Err(NoLeaf::Lacks(TRUST_KEY).to_string());
    }
    if let Some(missing) = uris.iter().find(|uri| !found.names.uris.contains(uri)) {
        return Err(format!("its certificate doesn't carry the URI {missing}"));
    }
    if found.has_its_key() == Some(false) {
        return Err(format!("its {PRIVATE_KEY_KEY} isn't the key of its certificate"));
    }
    if found.end <= now {
        return Err(format!("its certificate ended at {}", found.end));
    }
    if found.begin > now {
        return Err(format!("its certificate begins at {}", found.begin));
    }
    Ok(found)
}

#[cfg(test)]
#[path = "given_tests.rs"]
mod tests;
