//! What is reported: conditions, counters, columns.
//!
//! Everything is computed anew from what was observed and decided, never added up, so that no counter can drift
//! (ai-dynamo/dynamo#10527). A condition's time changes only when its status flips. The same inputs give the same status, and
//! a status that equals the last one isn't written.

mod conditions;
mod degraded;
mod engines;
pub(crate) mod foreign;
mod news;

use jiff::Timestamp;
use kvasir_operator_api::{
    AutoscalingMode, AutoscalingStatus, ConditionType, GatewayStatus, GroupState, GroupStatus,
    InferenceService, InferenceServiceStatus, ModelStatus, NetworkStatus, Reason, TlsMode, VersionStatus,
    labels, names::Names,
};

use crate::accepted;
use crate::adopt;
use crate::build::services::gateway_port;
use crate::field_error::FieldError;
use crate::observed::Observed;
use crate::plan::Plan;
use crate::settings::Settings;
use crate::validate::Validated;

pub use conditions::Verdict;
pub use news::news;

/// Most groups whose details are listed.
const MAX_LISTED_GROUPS: usize = 256;

/// Status of a service that was planned for: by its spec, or by the one that was accepted last, while the newest one is refused for the reasons
/// in `refusal`.
pub fn of_running(
    service: &Validated,
    refusal: Option<&[FieldError]>,
    plan: &Plan,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> InferenceServiceStatus {
    let groups = &plan.decisions.groups;
    let count = |keep: &dyn Fn(&&GroupStatus) -> bool| count(groups.iter().filter(keep).count());
    let available = count(&|g| g.state == GroupState::Ready);
    InferenceServiceStatus {
        observed_generation: Some(service.generation),
        conditions: conditions::of_running(service, refusal, plan, observed, now),
        replicas: count(&|_| true),
        ready_replicas: count(&|g| g.ready_since.is_some() && g.unready_since.is_none()),
        updated_replicas: count(&|g| g.revision == plan.update),
        available_replicas: available,
        selector: labels::leaders_selector(service.names.service()),
        current_revision: plan.decisions.current.clone(),
        update_revision: Some(plan.update.clone()),
        rollout: Some(plan.decisions.rollout.clone()),
        groups: listed(groups),
        resting_ids: plan.decisions.resting.clone(),
        model: Some(model(service, plan, observed, now)),
        gateway: gateway(service, observed),
        autoscaling: Some(autoscaling(observed)),
        network: Some(NetworkStatus {
            policies: i32::try_from(plan.policies).unwrap_or(i32::MAX),
            mode: service.spec.network.mode,
        }),
        versions: Some(VersionStatus {
            operator: settings.version.clone(),
            engine_image: plan.image.clone(),
        }),
        accepted_spec: accepted::remember(&service.spec),
        applied: adopt::applied(plan, observed, &service.uid),
    }
}

/// Status of a service whose spec can't be built, where none was accepted before or that one can't be built any more. What runs goes on running
/// and stays listed.
pub fn refused(
    service: &InferenceService,
    errors: &[FieldError],
    settings: &Settings,
    now: Timestamp,
) -> InferenceServiceStatus {
    let before = service.status.clone().unwrap_or_default();
    let generation = service.metadata.generation.unwrap_or_default();
    let names = Names::new(service.metadata.name.as_deref().unwrap_or_default());
    InferenceServiceStatus {
        observed_generation: Some(generation),
        conditions: conditions::refused(generation, errors, &before, now),
        selector: labels::leaders_selector(names.service()),
        versions: Some(VersionStatus {
            operator: settings.version.clone(),
            ..before.versions.clone().unwrap_or_default()
        }),
        // An earlier operator didn't keep it, and this status is the last that says that it was accepted.
        accepted_spec: before.accepted_spec.clone().or_else(|| accepted::kept(service)),
        ..before
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Groups that need attention first, when there are more than can be listed; by id in the end.
fn listed(groups: &[GroupStatus]) -> Vec<GroupStatus> {
    let mut all = groups.to_vec();
    if all.len() > MAX_LISTED_GROUPS {
        all.sort_by_key(|g| (g.state == GroupState::Ready && !g.draining, g.id));
        all.truncate(MAX_LISTED_GROUPS);
        all.sort_by_key(|g| g.id);
    }
    all
}

/// The digest that the spec pins, once a group of it serves; the size of its weights, once one has said it; and how long the last group took
/// from its creation until it served, which includes finding a node and fetching the image.
fn model(service: &Validated, plan: &Plan, observed: &Observed, now: Timestamp) -> ModelStatus {
    let before = &observed.status;
    let mut model = before.model.clone().unwrap_or_default();
    service.model_name().clone_into(&mut model.name);
    if plan.decisions.current.as_deref() == Some(plan.update.as_str()) {
        let pinned = &service.spec.model;
        let image = pinned.source.image.as_ref();
        let digest = image.and_then(|image| image.reference.rsplit_once("@sha256:"));
        model.resolved_digest = digest
            .map(|(_, digest)| digest.to_owned())
            .or_else(|| pinned.sha256.clone());
    }
    let newest = plan
        .decisions
        .groups
        .iter()
        .filter(|group| group.revision == plan.update);
    let bytes = newest.filter_map(|group| i64::try_from(observed.loads.get(&group.id)?.model_bytes).ok());
    model.size_bytes = bytes.filter(|bytes| *bytes > 0).max().or(model.size_bytes);
    let loaded = plan.decisions.groups.iter().filter_map(|group| {
        let known = before.groups.iter().find(|known| known.id == group.id)?;
        let first = known.ready_since.is_none() && group.ready_since.is_some();
        let since = known.unready_since.as_ref().filter(|_| first)?;
        i32::try_from(now.duration_since(since.0).as_secs()).ok()
    });
    model.last_load_seconds = loaded.max().or(model.last_load_seconds);
    model
}

/// The entrance: the service's own, or that of the service whose gateway serves it.
fn gateway(service: &Validated, observed: &Observed) -> Option<GatewayStatus> {
    if service.sharing.host.is_some() {
        let ready = observed.host.as_ref().map_or(0, |host| host.ready_pods);
        return Some(entrance(service.sharing.serving_host()?, ready));
    }
    service
        .spec
        .gateway
        .enabled
        .then(|| entrance(service, observed.ready_gateway_pods()))
}

/// Where the gateway of `service` is found.
fn entrance(service: &Validated, ready_pods: usize) -> GatewayStatus {
    let scheme = if service.spec.tls.mode == TlsMode::Off {
        "http"
    } else {
        "https"
    };
    let port = gateway_port(service);
    let suffix = match (scheme, port) {
        ("https", 443) | ("http", 80) => String::new(),
        _ => format!(":{port}"),
    };
    let host = Names::dns(&service.names.gateway(), &service.namespace);
    let internal = format!("{scheme}://{host}{suffix}");
    let outside = service.spec.gateway.ingress.as_ref().map(|ingress| {
        let scheme = if ingress.tls_secret_name.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", ingress.host)
    });
    // The Gateway's listener decides about TLS; without it keys would be readable on the wire.
    let hostnames = service
        .spec
        .gateway
        .route
        .iter()
        .flat_map(|route| &route.hostnames);
    let routed = hostnames.clone().find(|host| !host.starts_with('*'));
    let outside = outside.or_else(|| routed.map(|host| format!("https://{host}")));
    GatewayStatus {
        url: Some(outside.unwrap_or_else(|| internal.clone())),
        internal_url: Some(internal),
        ready_replicas: count(ready_pods),
    }
}

fn autoscaling(observed: &Observed) -> AutoscalingStatus {
    let loads = &observed.loads;
    let number = i32::try_from(loads.len()).ok().filter(|n| *n > 0);
    let sum = |value: fn(&crate::observed::GroupLoad) -> i64| loads.values().map(value).sum::<i64>();
    AutoscalingStatus {
        active: Some(format!("{:?}", AutoscalingMode::Off)),
        kv_usage_permille: number
            .map(|n| i32::try_from(sum(|l| l.kv_usage_permille.into()) / i64::from(n)).unwrap_or(1000)),
        queue_depth: number.map(|_| i32::try_from(sum(|l| l.waiting.into())).unwrap_or(i32::MAX)),
        ..AutoscalingStatus::default()
    }
}

/// The reason of the first part that isn't as it should be, for people.
pub fn summary(status: &InferenceServiceStatus) -> &str {
    let ready = status.condition(ConditionType::Ready);
    ready.map_or(Reason::Reconciling.as_str(), |condition| {
        condition.reason.as_str()
    })
}
