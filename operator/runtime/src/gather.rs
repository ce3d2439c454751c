//! Puts together what the core decides from.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use kvasir_operator_api::InferenceService;
use kvasir_operator_core::build::certificate;
use kvasir_operator_core::child::{Kind, Live};
use kvasir_operator_core::groups::recovery::PODS_APPEAR;
use kvasir_operator_core::observed::{HostView, Observed, foreign_pod};
use kvasir_operator_core::{Settings, Validated, adopt};

use crate::apply::{Applier, ApplyError};
use crate::cache::{SeenPod, ServiceKey, Snapshot};
use crate::certificates::{self, Secrets};
use crate::watch::chain;

/// Everything that is known about one service, and the Secrets that the operator fills by itself. Secrets are read by name,
/// and so are objects that no watch shows because they lack our label.
pub(crate) async fn gather(
    service: &InferenceService,
    validated: &Validated,
    settings: &Settings,
    applier: &Applier<'_>,
    now: Timestamp,
) -> Result<(Observed, Secrets), ApplyError> {
    let key = applier.key;
    let before = applier.cache.snapshot(key);
    for reference in &before.strangers {
        applier.look(reference).await?;
    }
    let names = certificates::names(validated, ids(service, validated, &before));
    let secrets = certificates::read(applier, &names, &validated.uid).await?;
    let seen = applier.cache.snapshot(key);
    let wanted = certificate::subjects(validated, &seen.children);
    let certificates = certificates::view(validated, &seen, &wanted, &secrets, settings, now);
    let host = validated.sharing.serving_host();
    let host = host.map(|host| view_of(host, service, applier));
    let handover = certificates::handover_view(validated, &seen, &wanted, &secrets, settings, now);
    let refused_pods = refused_pods(service, validated, &seen, applier, now).await;
    let observed = Observed {
        children: seen.children,
        nodes: seen.nodes,
        written: seen.written,
        undone: seen.undone,
        loads: seen.loads,
        failed_writes: seen.failed,
        refused_pods,
        certificates,
        handover,
        trust: certificates::trust(validated, &secrets),
        enforcement: seen.enforcement,
        host,
        status: service.status.clone().unwrap_or_default(),
        ..Observed::default()
    };
    let pods = seen.pods.into_iter().map(|pod| pod.view);
    let mut observed = observed.with_pods(&validated.names, &validated.uid, pods);
    if observed.written.is_empty() {
        observed.written = adopt(&observed, &validated.uid);
        applier.cache.adopt(key, observed.written.clone());
    }
    Ok((observed, secrets))
}

/// The gateway of the service whose gateway serves this one, as the watches show it.
fn view_of(host: &Validated, service: &InferenceService, applier: &Applier<'_>) -> HostView {
    let seen = applier.cache.snapshot(&ServiceKey {
        namespace: host.namespace.clone(),
        base: host.names.service().to_owned(),
    });
    let pods = seen.pods.into_iter().map(|pod| pod.view);
    HostView::new(host, &service.name_any(), seen.children, pods)
}

/// Ids of groups that may have a Secret.
pub(crate) fn ids(service: &InferenceService, validated: &Validated, seen: &Snapshot) -> BTreeSet<i32> {
    let status = service.status.iter();
    let remembered = status.clone().flat_map(|s| s.groups.iter().map(|group| group.id));
    let resting = status.flat_map(|s| s.resting_ids.iter().map(|resting| resting.id));
    let pods = seen.pods.iter().filter_map(|pod| pod.view.group);
    let sets = groups(validated, &seen.children).map(|(id, _)| id);
    remembered.chain(resting).chain(pods).chain(sets).collect()
}

/// Why pods don't exist that should for a while: the StatefulSet says so in events only, which are read only then. That they can't be read
/// is no reason to do nothing.
async fn refused_pods(
    service: &InferenceService,
    validated: &Validated,
    seen: &Snapshot,
    applier: &Applier<'_>,
    now: Timestamp,
) -> BTreeMap<i32, String> {
    let mut refused = BTreeMap::new();
    let own = seen.own_pods(&validated.names, &validated.uid);
    let late: BTreeSet<i32> = service
        .status
        .iter()
        .flat_map(|status| &status.groups)
        .filter(|group| {
            let pods = own.iter().filter(|pod| pod.view.group == Some(group.id)).count();
            let lack = i32::try_from(pods).unwrap_or(i32::MAX) < group.pods;
            let since = group.unready_since.as_ref();
            lack && since.is_some_and(|since| now.duration_since(since.0) >= PODS_APPEAR)
        })
        .map(|group| group.id)
        .collect();
    for (id, uid) in groups(validated, &seen.children).filter(|(id, _)| late.contains(id)) {
        match applier.refusal(uid).await {
            Ok(Some(why)) => drop(refused.insert(id, why)),
            Ok(None) => drop(
                taken(id, uid, validated, &own, applier)
                    .await
                    .map(|why| refused.insert(id, why)),
            ),
            Err(error) => tracing::debug!(group = id, error = %chain(&error), "events can't be read"),
        }
    }
    refused
}

/// Who has the name of a pod that is missing.
async fn taken(
    id: i32,
    uid: &str,
    validated: &Validated,
    own: &[SeenPod],
    applier: &Applier<'_>,
) -> Option<String> {
    let there: BTreeSet<&str> = own.iter().map(|pod| pod.view.name.as_str()).collect();
    let all = (0..validated.shape.pods()).filter_map(|ordinal| i32::try_from(ordinal).ok());
    let mut names = all.map(|ordinal| validated.names.pod(id, ordinal));
    let missing = names.find(|name| !there.contains(name.as_str()))?;
    match applier.occupant(&missing, uid).await {
        Ok(owner) => owner.map(|owner| foreign_pod(&missing, &owner)),
        Err(error) => {
            tracing::debug!(pod = missing, error = %chain(&error), "a pod can't be read");
            None
        }
    }
}

/// Ids and uids of the groups that exist.
fn groups<'a>(service: &'a Validated, children: &'a [Live]) -> impl Iterator<Item = (i32, &'a str)> {
    let sets = children.iter().filter(|live| {
        live.reference.kind == Kind::StatefulSet && live.is_owned_by(&service.uid) && !live.is_deleting()
    });
    sets.filter_map(|set| Some((service.names.group_id(&set.reference.name)?, set.uid.as_str())))
}
