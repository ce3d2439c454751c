//! What a service's Secrets say: read by name, and judged for the status.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::api::{Api, DynamicObject};
use kvasir_operator_api::TlsMode;
use kvasir_operator_api::names::Names;
use kvasir_operator_core::certificates::Subject;
use kvasir_operator_core::child::{Kind, Live, ObjectRef};
use kvasir_operator_core::identity::{self, TRUST_KEY};
use kvasir_operator_core::observed::{CertificatesView, HandoverView};
use kvasir_operator_core::sharing::{Host, reference};
use kvasir_operator_core::{Settings, Validated};

use super::handover::{self, Handover, Seen};
use super::held::{self, HeldLeaf};
use super::{Found, Secrets, given};
use crate::apply::{Applier, ApplyError};
use crate::cache::Snapshot;

/// Reads the Secrets that the operator fills by itself; their content stays here, the cache learns that they exist.
pub(crate) async fn read(
    applier: &Applier<'_>,
    names: &[String],
    owner: &str,
) -> Result<Secrets, ApplyError> {
    let api: Api<DynamicObject> = applier.api(Kind::Secret);
    let reads = names.iter().map(|name| api.get_opt(name));
    let mut secrets = Secrets::new();
    for (name, found) in names.iter().zip(futures::future::join_all(reads).await) {
        let kind = Kind::Secret;
        let reference = ObjectRef {
            kind,
            name: name.clone(),
        };
        let found = found.map_err(|source| ApplyError::Read {
            object: reference.clone(),
            source,
        })?;
        let Some(object) = found else {
            applier.saw_nothing(&reference);
            continue;
        };
        let data = object.data.get("data").cloned().unwrap_or_default();
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        let made_for = given::made_for(&object);
        let controller = controller(&object);
        let Some(live) = applier.saw(&reference, object) else {
            continue;
        };
        let found = Found {
            ours: live.is_owned_by(owner),
            controller,
            uid: live.uid,
            version,
            made_for,
            data: serde_json::from_value(data).unwrap_or_default(),
        };
        secrets.insert(name.clone(), found);
    }
    Ok(secrets)
}

fn controller(object: &DynamicObject) -> Option<String> {
    let mut owners = object.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true))?;
    Some(controller.uid.clone())
}

/// The names of Secrets that a service may have: for all its groups, those that rest included.
pub(crate) fn names(service: &Validated, groups: impl IntoIterator<Item = i32>) -> Vec<String> {
    let mut names = vec![
        service.names.gateway_secret(),
        service.names.authority(),
        service.names.trust_bundle(),
        service.names.gateway_certificate(),
    ];
    for id in groups {
        names.push(service.names.group_certificate(id));
        names.extend(given::name_of_group(service, id));
    }
    names.extend(given::names(service));
    names.extend(bundles_of_others(service).into_iter().map(|(bundle, _)| bundle));
    names.sort();
    names.dedup();
    names
}

/// What the status says about certificates.
pub(crate) fn view(
    service: &Validated,
    seen: &Snapshot,
    wanted: &[Subject],
    secrets: &Secrets,
    settings: &Settings,
    now: Timestamp,
) -> Option<CertificatesView> {
    if service.spec.tls.mode != TlsMode::Internal {
        return given::view(service, &seen.children, wanted, secrets, settings, now);
    }
    let failed = &seen.failed;
    let missing = failed.keys().filter(|object| object.kind == Kind::Secret).count();
    let end = |subject: &Subject| {
        let own = held_leaf(service, subject, secrets, settings).map(|held| held.leaf.not_after);
        own.or_else(|| other_in_place(service, subject, secrets, now))
    };
    let first_end = wanted.iter().filter_map(end).min();
    let first_end = first_end.or((missing > 0).then_some(Timestamp::MAX))?;
    // What the gateway of another service shows, whose certificates others make.
    let hosts = given::view(service, &seen.children, wanted, secrets, settings, now);
    Some(CertificatesView {
        first_end: hosts
            .iter()
            .map(|view| view.first_end)
            .fold(first_end, Timestamp::min),
        missing: missing + hosts.iter().map(|view| view.missing).sum::<usize>(),
        problems: hosts.map(|view| view.problems).unwrap_or_default(),
    })
}

/// The end of a certificate that somebody else made and that pods still show, until all trust the service's own authority.
fn other_in_place(
    service: &Validated,
    subject: &Subject,
    secrets: &Secrets,
    now: Timestamp,
) -> Option<Timestamp> {
    let found = secrets.get(&identity::secret(&service.names, subject))?;
    let end = handover::end_of(service, subject, &found.data)?;
    (found.ours && now < end).then_some(end)
}

/// The authorities that vouch for the gateway's certificate, now and next.
pub(crate) fn trust(service: &Validated, secrets: &Secrets) -> Option<String> {
    let bundle = secrets.get(&service.names.trust_bundle());
    held::text(&bundle.filter(|found| found.ours)?.data, TRUST_KEY)
}

/// How far the service is on its way from one authority to another.
pub(crate) fn handover_view(
    service: &Validated,
    seen: &Snapshot,
    wanted: &[Subject],
    secrets: &Secrets,
    settings: &Settings,
    now: Timestamp,
) -> HandoverView {
    let held = held::authorities_of(secrets, &service.names.authority());
    let serials: Vec<u64> = held.iter().map(|held| held.authority.serial).collect();
    let mounted = mounted(service, wanted, &seen.children);
    let handover = Handover::new(Seen {
        service,
        settings,
        secrets,
        held: &held,
        wanted: &serials,
        mounted: &mounted,
        own: None,
        now,
    });
    handover.view(wanted)
}

/// The Secrets with certificates that pods mount or are about to: of all that exist, and of groups and gateways that are ending.
pub(super) fn mounted(service: &Validated, wanted: &[Subject], children: &[Live]) -> BTreeSet<String> {
    let names = &service.names;
    let is_leaf =
        |name: &str| name == names.gateway_certificate() || names.group_of_certificate(name).is_some();
    let left = children.iter().filter(|live| {
        let reference = &live.reference;
        reference.kind == Kind::Secret
            && live.is_owned_by(&service.uid)
            && !live.is_deleting()
            && is_leaf(&reference.name)
    });
    let left = left.map(|live| live.reference.name.clone());
    left.chain(wanted.iter().map(|subject| identity::secret(names, subject)))
        .collect()
}

/// Trust bundles of the services on the other side of a shared gateway, each with the uid of its owner: their
/// authorities aren't this one's.
fn bundles_of_others(service: &Validated) -> Vec<(String, String)> {
    let guests = service.sharing.guests.iter().map(|guest| &guest.service);
    let guests = guests.map(|guest| (guest.names.trust_bundle(), guest.uid.clone()));
    let host = reference(&service.spec).map(Names::new);
    let uid = service.sharing.host.as_ref().and_then(|host| match host {
        Host::Serves(host) => Some(host.uid.clone()),
        Host::Unfit { uid, .. } => uid.clone(),
    });
    guests
        .chain(host.zip(uid).map(|(host, uid)| (host.trust_bundle(), uid)))
        .collect()
}

/// What those services' pods trust, as far as it is there. A Secret of that name that isn't theirs vouches for nothing.
pub(super) fn trust_of_others(service: &Validated, secrets: &Secrets) -> String {
    let bundles = bundles_of_others(service)
        .into_iter()
        .filter_map(|(bundle, uid)| {
            let found = secrets.get(&bundle)?;
            let is_theirs = found.controller.as_ref() == Some(&uid);
            is_theirs.then(|| held::text(&found.data, TRUST_KEY)).flatten()
        });
    bundles.collect()
}

pub(super) fn leaves(
    service: &Validated,
    wanted: &[Subject],
    secrets: &Secrets,
    settings: &Settings,
) -> Vec<HeldLeaf> {
    let held = |subject: &Subject| held_leaf(service, subject, secrets, settings);
    wanted.iter().filter_map(held).collect()
}

fn held_leaf(
    service: &Validated,
    subject: &Subject,
    secrets: &Secrets,
    settings: &Settings,
) -> Option<HeldLeaf> {
    let found = secrets.get(&identity::secret(&service.names, subject))?;
    let names = identity::names(service, subject, &settings.cluster_domain);
    held::leaf(&found.data, service, subject, &names)
}
