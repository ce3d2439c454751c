//! The conditions. Each part has a verdict of its own; `Ready` is the first part's that isn't ready.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kvasir_operator_api::{
    ConditionType, GroupState, InferenceServiceStatus, MAX_MESSAGE_BYTES, NetworkMode, Reason, TlsMode,
};

use super::{degraded, engines, foreign};
use crate::build::route::{self, Taken};
use crate::child::{Kind, ObjectRef};
use crate::enforcement::Enforcement;
use crate::field_error::FieldError;
use crate::observed::{FailedWrite, Observed, PodView, Waiting};
use crate::plan::Plan;
use crate::sharing::Host;
use crate::text::clip;
use crate::validate::Validated;

/// What is known about one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// True, False or, where nothing is known yet, nothing.
    pub status: Option<bool>,
    /// Why, in one word.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
}

impl Verdict {
    pub(super) fn yes(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(Some(true), reason, message)
    }

    pub(super) fn no(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(Some(false), reason, message)
    }

    pub(super) fn unknown(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(None, reason, message)
    }

    fn new(status: Option<bool>, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status,
            reason,
            message: message.into(),
        }
    }
}

/// Conditions of a service that was planned for: by its spec, or by the last one that was accepted, for the reasons in `refusal`.
pub(super) fn of_running(
    service: &Validated,
    refusal: Option<&[FieldError]>,
    plan: &Plan,
    observed: &Observed,
    now: Timestamp,
) -> Vec<Condition> {
    let refusal = refusal.map(not_accepted);
    let is_accepted = match &refusal {
        Some(refusal) => refusal.clone(),
        None => acceptance(plan, observed),
    };
    let model = engines::model(service, plan, observed);
    let engines = engines::engines(service, plan, observed);
    let gateway = gateway(service, plan, observed);
    let certificates = certificates(service, observed, now);
    let ready = match &refusal {
        Some(refusal) => Verdict::no(Reason::NotAccepted, refusal.message.as_str()),
        None => ready(
            service,
            &[&is_accepted, &certificates, &model, &engines, &gateway],
        ),
    };
    let verdicts = [
        (ConditionType::Ready, ready),
        (ConditionType::Accepted, is_accepted),
        (ConditionType::ModelReady, model),
        (ConditionType::EnginesReady, engines),
        (ConditionType::GatewayReady, gateway),
        (ConditionType::NetworkSecured, network(service, plan, observed)),
        (ConditionType::CertificatesReady, certificates),
        (
            ConditionType::AutoscalingActive,
            Verdict::no(Reason::Disabled, "spec.replicas is yours"),
        ),
        (ConditionType::Progressing, progressing(service, plan, observed)),
        (ConditionType::Degraded, degraded::verdict(plan, observed)),
    ];
    verdicts
        .into_iter()
        .map(|(kind, verdict)| condition(kind, &verdict, service.generation, &observed.status, now))
        .collect()
}

/// Conditions of a service whose spec was refused. The other parts keep what was last known of them.
pub(super) fn refused(
    generation: i64,
    errors: &[FieldError],
    before: &InferenceServiceStatus,
    now: Timestamp,
) -> Vec<Condition> {
    let refusal = not_accepted(errors);
    ConditionType::ALL
        .into_iter()
        .map(|kind| match kind {
            ConditionType::Accepted => condition(kind, &refusal, generation, before, now),
            ConditionType::Ready => {
                let verdict = Verdict::no(Reason::NotAccepted, refusal.message.as_str());
                condition(kind, &verdict, generation, before, now)
            }
            other => before.condition(other).cloned().unwrap_or_else(|| {
                condition(
                    other,
                    &Verdict::unknown(Reason::Reconciling, "the spec isn't accepted"),
                    generation,
                    before,
                    now,
                )
            }),
        })
        .collect()
}

/// All that is wrong, under the first one's reason.
fn not_accepted(errors: &[FieldError]) -> Verdict {
    let reason = errors.first().map_or(Reason::InvalidSpec, |error| error.reason);
    let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Verdict::no(reason, all.join("; "))
}

/// A condition whose time changes only when its status does.
fn condition(
    kind: ConditionType,
    verdict: &Verdict,
    generation: i64,
    before: &InferenceServiceStatus,
    now: Timestamp,
) -> Condition {
    let status = match verdict.status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let since = before
        .condition(kind)
        .filter(|c| c.status == status)
        .map(|c| c.last_transition_time.clone());
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.as_str().to_owned(),
        message: clip(&verdict.message, MAX_MESSAGE_BYTES),
        observed_generation: Some(generation),
        last_transition_time: since.unwrap_or(Time(now)),
    }
}

fn ready(service: &Validated, parts: &[&Verdict]) -> Verdict {
    if service.spec.suspend {
        return Verdict::no(Reason::Suspended, "spec.suspend is set: all groups are stopped");
    }
    // In the order of `parts`.
    let names = [
        Reason::NotAccepted,
        Reason::CertificatesNotReady,
        Reason::ModelNotReady,
        Reason::EnginesNotReady,
        Reason::GatewayNotReady,
    ];
    let mut not_ready = parts
        .iter()
        .zip(names)
        .filter(|(part, _)| part.status != Some(true));
    // A part that is known to be bad explains more than one that nobody knows about yet.
    let bad = not_ready.clone().find(|(part, _)| part.status == Some(false));
    match bad.or_else(|| not_ready.next()) {
        None => Verdict::yes(Reason::AllComponentsReady, "the service answers requests"),
        Some((part, _)) if part.status.is_none() => {
            Verdict::unknown(Reason::Reconciling, part.message.clone())
        }
        Some((part, reason)) => Verdict::no(reason, format!("{}: {}", part.reason, part.message)),
    }
}

fn acceptance(plan: &Plan, observed: &Observed) -> Verdict {
    // An object without our label is found when it is to be written.
    let found = observed.failed_writes.iter().filter(|(_, failed)| failed.foreign);
    let taken = plan.collisions.iter().chain(found.map(|(object, _)| object));
    if let Some(why) = foreign::taken(taken) {
        return Verdict::no(Reason::NameCollision, why);
    }
    if let Some(verdict) = observed.failed_writes.iter().find_map(refusal) {
        return verdict;
    }
    let over = |why: &str| why.contains(OVER_QUOTA);
    match observed.refused_pods.iter().find(|(_, why)| over(why)) {
        Some((group, why)) => over_quota(&format!("group {group}: {why}")),
        None => Verdict::yes(Reason::Valid, "the spec can be built"),
    }
}

/// What the API server says about objects that a quota forbids.
pub(super) const OVER_QUOTA: &str = "exceeded quota";
/// What it says about a namespace that is being deleted, and the service with it.
const ENDING: &str = "being terminated";

/// What only the API server, or what it asks before it takes an object, can judge. Nothing where another try may do.
fn refusal((object, failed): (&ObjectRef, &FailedWrite)) -> Option<Verdict> {
    let why = &failed.why;
    match failed.code? {
        400 | 422 => Some(Verdict::no(
            Reason::InvalidSpec,
            format!("the API server refuses {object}, which is made from the spec: {why}"),
        )),
        403 if why.contains(OVER_QUOTA) => Some(over_quota(&format!("{object}: {why}"))),
        403 if !why.contains(ENDING) => Some(Verdict::no(Reason::Forbidden, format!("{object}: {why}"))),
        _ => None,
    }
}

fn over_quota(what: &str) -> Verdict {
    Verdict::no(
        Reason::QuotaExceeded,
        format!("{what}: ask for a larger quota of the namespace, or lower replicas or resources"),
    )
}

fn gateway(service: &Validated, plan: &Plan, observed: &Observed) -> Verdict {
    if let Some(host) = &service.sharing.host {
        return shared_gateway(host, service.sharing.deaf_host.as_deref(), plan, observed);
    }
    if !service.spec.gateway.enabled {
        return Verdict::yes(Reason::Disabled, "spec.gateway.enabled is false");
    }
    let ready = observed.ready_gateway_pods();
    if ready == 0 {
        let wanted = service.spec.gateway.replicas;
        return Verdict::no(
            Reason::DeploymentUnavailable,
            match observed.pods.iter().find_map(hindrance) {
                Some(why) => format!("0 of {wanted} gateway pods are ready; {why}"),
                None => format!("0 of {wanted} gateway pods are ready"),
            },
        );
    }
    available(
        plan,
        &route::taken(service, observed),
        &format!("{ready} gateway pods are ready"),
    )
}

/// What keeps a gateway pod from starting, where that is known and doesn't pass by itself.
fn hindrance(pod: &PodView) -> Option<String> {
    if !pod.is_gateway || pod.deleting {
        return None;
    }
    let name = &pod.name;
    let passes = |reason: &&String| matches!(reason.as_str(), "ContainerCreating" | "PodInitializing");
    let unschedulable = pod.unschedulable.as_ref();
    let unschedulable = unschedulable.map(|why| format!("pod {name} can't be scheduled: {why}"));
    let gated = || {
        Some(format!(
            "pod {name} has scheduling gates ({})",
            pod.gates.as_ref()?
        ))
    };
    let waits = || {
        Some(format!(
            "pod {name}: {}",
            pod.waiting.as_ref().filter(|why| !passes(why))?
        ))
    };
    unschedulable.or_else(gated).or_else(waits)
}

/// Gateway pods are ready, as `what` says: whether the way from clients to groups is open.
fn available(plan: &Plan, route: &Taken, what: &str) -> Verdict {
    if plan.decisions.groups.iter().all(|g| g.state != GroupState::Ready) {
        return Verdict::no(Reason::NoReadyGroups, "no group takes requests");
    }
    match route {
        Taken::No(why) => Verdict::no(Reason::RouteNotAccepted, why.as_str()),
        Taken::Unknown => Verdict::yes(
            Reason::Available,
            format!("{what}; no Gateway has said yet whether it serves the HTTPRoute"),
        ),
        Taken::Yes => Verdict::yes(Reason::Available, what),
    }
}

/// The gateway of another service.
fn shared_gateway(host: &Host, deaf: Option<&str>, plan: &Plan, observed: &Observed) -> Verdict {
    let host = match host {
        Host::Serves(host) => host,
        Host::Unfit { why, .. } => return Verdict::no(Reason::NoSharedGateway, why.as_str()),
    };
    let name = &host.name;
    let view = observed.host.as_ref();
    let ready = view.map_or(0, |view| view.ready_pods);
    match view {
        None => Verdict::unknown(
            Reason::Reconciling,
            format!("the gateway of InferenceService {name} hasn't been looked at yet"),
        ),
        Some(_) if ready == 0 => Verdict::no(
            Reason::DeploymentUnavailable,
            format!(
                "0 of {} gateway pods of InferenceService {name} are ready",
                host.spec.gateway.replicas
            ),
        ),
        // Another change of the file is no reason to doubt a service that was served before it.
        Some(view) if !view.lists_us || !(view.is_told || was_served_by(host, observed)) => Verdict::unknown(
            Reason::Reconciling,
            match deaf {
                Some(why) => {
                    format!("the gateway of InferenceService {name} isn't told of this service: {why}")
                }
                None => format!("the gateway of InferenceService {name} isn't told of this service yet"),
            },
        ),
        Some(view) => available(
            plan,
            &view.route,
            &format!("{ready} gateway pods of InferenceService {name} are ready"),
        ),
    }
}

/// The last status says so.
fn was_served_by(host: &Validated, observed: &Observed) -> bool {
    let before = &observed.status;
    let gateway = before.condition(ConditionType::GatewayReady);
    let address = before
        .gateway
        .as_ref()
        .and_then(|gateway| gateway.internal_url.as_ref());
    gateway.is_some_and(|gateway| gateway.status == "True")
        && address == super::entrance(host, 0).internal_url.as_ref()
}

fn network(service: &Validated, plan: &Plan, observed: &Observed) -> Verdict {
    if service.spec.network.mode == NetworkMode::Open {
        return Verdict::no(
            Reason::Open,
            "spec.network.mode is Open: every pod of the cluster can reach the engines",
        );
    }
    let is_policy = |object: &&ObjectRef| object.kind == Kind::NetworkPolicy;
    if let Some(why) = foreign::taken(plan.collisions.iter().filter(is_policy)) {
        return Verdict::no(Reason::PolicyApplyFailed, why);
    }
    let failed = observed
        .failed_writes
        .iter()
        .find(|(object, _)| is_policy(object));
    if let Some((object, failed)) = failed {
        return Verdict::no(Reason::PolicyApplyFailed, format!("{object}: {}", failed.why));
    }
    let pending = plan
        .write
        .iter()
        .any(|w| w.child.reference.kind == Kind::NetworkPolicy);
    match &observed.enforcement {
        _ if pending => Verdict::unknown(Reason::ProbePending, "policies are being written"),
        Some(Enforcement::Ignored { reached }) => Verdict::no(
            Reason::EnforcementUnverified,
            format!(
                "the operator could connect to {}, which the policies close: the cluster's network ignores NetworkPolicies; install one that \
                 enforces them",
                reached.join(", ")
            ),
        ),
        Some(Enforcement::Enforced { unverified }) => {
            Verdict::yes(Reason::PoliciesApplied, enforced(unverified))
        }
        Some(Enforcement::Unknown { why }) => Verdict::unknown(
            Reason::ProbePending,
            format!("whether the cluster's network enforces the policies can't be said: {why}"),
        ),
        // Another operator's word counts until this one has looked itself.
        None => remembered(observed).unwrap_or_else(|| {
            Verdict::unknown(
                Reason::ProbePending,
                "whether the cluster's network enforces the policies hasn't been probed yet",
            )
        }),
    }
}

fn enforced(unverified: &BTreeSet<&'static str>) -> String {
    let all =
        "all policies are in place, and the operator was refused at the ports that they close".to_owned();
    if unverified.is_empty() {
        return all;
    }
    let names: Vec<&str> = unverified.iter().copied().collect();
    format!(
        "{all}; not verified, because nobody listens there or the spec may admit the operator: {}",
        names.join(", ")
    )
}

fn remembered(observed: &Observed) -> Option<Verdict> {
    let before = observed.status.condition(ConditionType::NetworkSecured)?;
    let is_true = before.status == "True" && before.reason == Reason::PoliciesApplied.as_str();
    is_true.then(|| Verdict::yes(Reason::PoliciesApplied, before.message.clone()))
}

fn certificates(service: &Validated, observed: &Observed, now: Timestamp) -> Verdict {
    if service.spec.tls.mode == TlsMode::Off {
        return Verdict::yes(
            Reason::Disabled,
            "spec.tls.mode is Off: traffic is readable on the wire",
        );
    }
    let Some(view) = &observed.certificates else {
        return Verdict::unknown(Reason::Reconciling, "no certificate has been issued yet");
    };
    if !view.problems.is_empty() {
        return Verdict::no(Reason::IssueFailed, view.problems.join("; "));
    }
    if view.missing > 0 {
        return Verdict::no(
            Reason::IssueFailed,
            format!("{} certificates are missing", view.missing),
        );
    }
    // Renewal is due at half of the life; when only a quarter is left, it has failed for long.
    let quarter = SignedDuration::from_hours(service.spec.tls.validity_hours.into()) / 4;
    if view.first_end.duration_since(now) < quarter {
        return Verdict::no(
            Reason::ExpiringSoon,
            format!("a certificate ends at {} and wasn't renewed", view.first_end),
        );
    }
    if let Some(text) = waits(observed) {
        return Verdict::yes(Reason::Issued, format!("all certificates are valid; {text}"));
    }
    let tls = &service.spec.tls;
    if tls.mode == TlsMode::Provided && tls.operator_secret_name.is_none() {
        return Verdict::yes(
            Reason::Issued,
            "all certificates are valid; without spec.tls.operatorSecretName the engines' load stays unknown",
        );
    }
    Verdict::yes(Reason::Issued, "all certificates are valid")
}

/// What certificates by a new authority wait for.
fn waits(observed: &Observed) -> Option<String> {
    Some(match observed.handover.waiting? {
        Waiting::Secrets => {
            "those by a new authority are shown when every pod trusts it, and it isn't in every Secret yet"
                .to_owned()
        }
        Waiting::Until(until) => {
            format!("those by a new authority are shown from {until} on, when every pod trusts it")
        }
    })
}

fn progressing(service: &Validated, plan: &Plan, observed: &Observed) -> Verdict {
    let decisions = &plan.decisions;
    let rollout = &decisions.rollout;
    if let Some(failed) = rollout
        .failed_revision
        .as_ref()
        .filter(|failed| **failed == plan.update)
    {
        let why = rollout.failure.clone().unwrap_or_default();
        return if decisions.target == plan.update {
            Verdict::no(Reason::DeadlineExceeded, format!("revision {failed}: {why}"))
        } else {
            Verdict::no(
                Reason::RolledBack,
                format!(
                    "revision {failed}: {why}; groups have revision {}",
                    decisions.target
                ),
            )
        };
    }
    if let Some(weight) = decisions.canary_weight {
        return Verdict::yes(
            Reason::CanaryPaused,
            format!("revision {} gets {weight} % of the requests", decisions.target),
        );
    }
    let updated = decisions
        .groups
        .iter()
        .filter(|g| g.revision == decisions.target)
        .count();
    let all = decisions.groups.len();
    if decisions.current.as_ref() != Some(&decisions.target) || updated < all {
        return Verdict::yes(
            Reason::NewRevision,
            format!("{updated} of {all} groups have revision {}", decisions.target),
        );
    }
    if all != service.wanted_groups() || !decisions.create.is_empty() {
        return Verdict::yes(
            Reason::Scaling,
            format!("{all} groups exist, {} are wanted", service.wanted_groups()),
        );
    }
    if let Some(text) = waits(observed) {
        return Verdict::yes(Reason::Reconciling, format!("certificates: {text}"));
    }
    Verdict::no(
        Reason::Complete,
        format!("all groups have revision {}", decisions.target),
    )
}
