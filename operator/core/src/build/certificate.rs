//! Certificates that cert-manager makes and renews, where the spec says so.
//!
//! cert-manager writes them into Secrets that no pod mounts. The operator brings them to the pods when every pod of the service trusts who
//! signed them (see [`crate::handover`]).

use kvasir_operator_api::{IssuerRef, TlsMode, labels};
use serde_json::json;

use super::meta;
use crate::certificates::Subject;
use crate::child::{Child, Kind, Live};
use crate::identity::{self, Identity};
use crate::observed::Observed;
use crate::settings::Settings;
use crate::validate::Validated;

/// The Certificates of a service in mode CertManager, where the cluster knows the kind: of each group that exists, of the gateway, and of the
/// operator itself.
pub fn certificates(service: &Validated, observed: &Observed, settings: &Settings) -> Vec<Child> {
    let issuer = service.spec.tls.issuer_ref.as_ref();
    let wanted =
        service.spec.tls.mode == TlsMode::CertManager && settings.known_kinds.contains(&Kind::Certificate);
    let Some(issuer) = issuer.filter(|_| wanted) else {
        return Vec::new();
    };
    let of_subject = |subject: &Subject| {
        let names = identity::names(service, subject, &settings.cluster_domain);
        let group = match subject {
            Subject::Group { id, .. } => Some(*id),
            Subject::Gateway => None,
        };
        child(
            service,
            issuer,
            &identity::issued(&service.names, subject),
            group,
            &names,
        )
    };
    let mut all: Vec<Child> = subjects(service, &observed.children)
        .iter()
        .map(of_subject)
        .collect();
    let own = Identity {
        dns: Vec::new(),
        uris: vec![identity::OPERATOR.to_owned()],
    };
    all.push(child(
        service,
        issuer,
        &service.names.operator_certificate(),
        None,
        &own,
    ));
    all
}

/// Who needs a certificate: the groups that exist, because their uids stand in it, and the gateway.
pub fn subjects(service: &Validated, children: &[Live]) -> Vec<Subject> {
    let sets = children.iter().filter(|live| {
        live.reference.kind == Kind::StatefulSet && live.is_owned_by(&service.uid) && !live.is_deleting()
    });
    let groups = sets.filter_map(|set| {
        Some(Subject::Group {
            id: service.names.group_id(&set.reference.name)?,
            uid: set.uid.clone(),
        })
    });
    groups
        .chain(service.spec.gateway.enabled.then_some(Subject::Gateway))
        .collect()
}

fn child(service: &Validated, issuer: &IssuerRef, name: &str, group: Option<i32>, names: &Identity) -> Child {
    let metadata = match group {
        Some(id) => meta::of_group(service, id, name),
        None => meta::of_service(service, name),
    };
    let hours = service.spec.tls.validity_hours;
    let mut spec = json!({
        "secretName": name,
        // Whoever cleans up finds what belongs to a service.
        "secretTemplate": { "labels": labels::of_service(service.names.service()) },
        "duration": format!("{hours}h"),
        // Half of the life, as the operator renews its own.
        "renewBefore": format!("{}m", hours * 30),
        "uris": names.uris,
        "usages": ["digital signature", "server auth", "client auth"],
        "privateKey": { "algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always" },
        "issuerRef": { "name": issuer.name, "kind": issuer.kind, "group": issuer.group },
    });
    if !names.dns.is_empty() {
        spec["dnsNames"] = names.dns.clone().into();
    }
    Child::of_spec(Kind::Certificate, &metadata, &spec)
}
