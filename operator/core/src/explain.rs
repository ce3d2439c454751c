//! Why a service is as it is, from its pods up to Ready, in words for people.
//!
//! A function of what was read: the service with its status, its pods and their nodes. Lines that say "fine" are counted,
//! lines that explain something are spelled out, and the last paragraph says what to do.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use kvasir_operator_api::names::Names;
use kvasir_operator_api::{
    ConditionType, GroupState, GroupStatus, InferenceService, InferenceServiceStatus, Reason,
};

use crate::groups::recovery;
use crate::observed::{NodeView, PodView, is_named_for};
use crate::status::foreign::with_owner;

/// Conditions between the pods and Ready, causes first.
const PARTS: [ConditionType; 8] = [
    ConditionType::Accepted,
    ConditionType::CertificatesReady,
    ConditionType::ModelReady,
    ConditionType::EnginesReady,
    ConditionType::GatewayReady,
    ConditionType::NetworkSecured,
    ConditionType::Progressing,
    ConditionType::Degraded,
];

/// The explanation, with a line break at its end.
pub fn explain(
    service: &InferenceService,
    pods: &[PodView],
    nodes: &BTreeMap<String, NodeView>,
    now: Timestamp,
) -> String {
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let Some(status) = &service.status else {
        return format!(
            "{namespace}/{name}: no operator has looked at this service yet.\n\nWhat to do: check that kvasir-operator runs and looks after namespace {namespace}.\n"
        );
    };
    let mut out = format!("{namespace}/{name}: {}\n", headline(status));
    stale(service, status, &mut out);
    section("Pods", pod_lines(&Names::new(name), pods, nodes), &mut out);
    section("Groups", group_lines(status, now), &mut out);
    section("Parts", part_lines(status, now), &mut out);
    section("Ready", ready_lines(status, now), &mut out);
    if let Some(advice) = advice(status) {
        say(&mut out, format_args!("\nWhat to do: {advice}\n"));
    }
    out
}

/// Writing into a text can't fail.
fn say(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).ok();
}

fn section(title: &str, lines: Vec<String>, out: &mut String) {
    if lines.is_empty() {
        return;
    }
    say(out, format_args!("\n{title}\n"));
    for line in lines {
        say(out, format_args!("  {line}\n"));
    }
}

fn headline(status: &InferenceServiceStatus) -> String {
    match status.condition(ConditionType::Ready) {
        Some(ready) if ready.status == "True" => "ready".to_owned(),
        Some(ready) if ready.status == "False" => format!("not ready, because of {}", ready.reason),
        Some(ready) => format!("not known to be ready ({})", ready.reason),
        None => "nothing is known yet".to_owned(),
    }
}

fn stale(service: &InferenceService, status: &InferenceServiceStatus, out: &mut String) {
    let (Some(generation), Some(observed)) = (service.metadata.generation, status.observed_generation) else {
        return;
    };
    if observed < generation {
        say(
            out,
            format_args!(
                "The status is about generation {observed} of the spec, which is at {generation}: the operator hasn't looked at the last change yet.\n"
            ),
        );
    }
}

fn pod_lines(names: &Names, pods: &[PodView], nodes: &BTreeMap<String, NodeView>) -> Vec<String> {
    let (mut all, strangers): (Vec<&PodView>, Vec<&PodView>) =
        pods.iter().partition(|pod| is_named_for(names, pod));
    all.sort_by_key(|pod| (pod.is_gateway, pod.group, pod.ordinal, pod.name.clone()));
    let mut lines = Vec::new();
    for (what, gateway) in [("engine", false), ("gateway", true)] {
        let fine = all
            .iter()
            .filter(|p| p.is_gateway == gateway && p.ready && trouble(p, nodes).is_none());
        match fine.count() {
            0 => {}
            1 => lines.push(format!("1 {what} pod is ready.")),
            many => lines.push(format!("{many} {what} pods are ready.")),
        }
    }
    if all.is_empty() {
        lines.push("There are no pods.".to_owned());
    }
    lines.extend(
        all.iter()
            .filter_map(|pod| Some(format!("{}: {}", pod.name, trouble(pod, nodes)?))),
    );
    let other = |pod: &&PodView| {
        format!(
            "{} carries the service's labels and isn't its own.",
            with_owner(pod)
        )
    };
    lines.extend(strangers.iter().map(other));
    lines
}

/// What is wrong with a pod; nothing if it is ready on a good node.
fn trouble(pod: &PodView, nodes: &BTreeMap<String, NodeView>) -> Option<String> {
    if pod.deleting {
        return Some("is ending.".to_owned());
    }
    if let Some(why) = &pod.unschedulable {
        return Some(format!("no node takes it: {why}."));
    }
    if let Some(gates) = &pod.gates {
        return Some(format!("is held back by scheduling gates: {gates}."));
    }
    let node = pod.node.as_ref().and_then(|name| Some((name, nodes.get(name)?)));
    let on_node = node.and_then(|(name, view)| node_trouble(name, view));
    if pod.ready {
        return on_node;
    }
    let mut text = match (&pod.node, &pod.waiting) {
        (None, _) => "waits for the scheduler".to_owned(),
        (Some(_), Some(reason)) => format!("waits: {reason}"),
        (Some(node), None) if pod.running => format!("runs on {node} and isn't ready yet"),
        (Some(node), None) => format!("starts on {node}"),
    };
    if let Some(ended) = &pod.terminated {
        say(
            &mut text,
            format_args!("; it ended with exit code {}", ended.exit_code),
        );
        if !ended.reason.is_empty() {
            say(&mut text, format_args!(" ({})", ended.reason));
        }
        if let Some(line) = ended.last_line() {
            say(&mut text, format_args!(": {line}"));
        }
    }
    if pod.restarts > 0 {
        let ending = if pod.restarts == 1 { "" } else { "s" };
        say(&mut text, format_args!("; {} restart{ending}", pod.restarts));
    }
    text.push('.');
    if let Some(on_node) = on_node {
        say(&mut text, format_args!(" {on_node}"));
    }
    Some(text)
}

fn node_trouble(name: &str, node: &NodeView) -> Option<String> {
    if node.not_ready_since.is_some() && node.out_of_service {
        Some(format!("Node {name} is out of service."))
    } else if node.not_ready_since.is_some() {
        Some(format!("Node {name} doesn't answer."))
    } else if node.no_execute {
        Some(format!("Node {name} evicts its pods."))
    } else if node.cordoned {
        Some(format!("Node {name} is cordoned."))
    } else {
        None
    }
}

fn group_lines(status: &InferenceServiceStatus, now: Timestamp) -> Vec<String> {
    if status.groups.is_empty() {
        return vec!["There are no groups.".to_owned()];
    }
    status.groups.iter().map(|group| group_line(group, now)).collect()
}

fn group_line(group: &GroupStatus, now: Timestamp) -> String {
    let (id, ready, pods) = (group.id, group.ready_pods, group.pods);
    let since = |at: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        at.map(|at| format!(" for {}", age(at.0, now)))
            .unwrap_or_default()
    };
    let mut text = match group.state {
        GroupState::Pending => format!("Group {id} waits for its pods: {ready} of {pods} are ready"),
        GroupState::Starting => format!(
            "Group {id} loads its model{}: {ready} of {pods} pods are ready",
            since(group.unready_since.as_ref())
        ),
        GroupState::Ready => format!("Group {id} serves{}", since(group.ready_since.as_ref())),
        GroupState::Draining => format!(
            "Group {id} takes no new requests{}{}",
            since(group.draining_since.as_ref()),
            group
                .running_requests
                .map(|n| format!(", {n} still run"))
                .unwrap_or_default()
        ),
        GroupState::Recovering => format!(
            "Group {id} forms again{}: {ready} of {pods} pods are ready",
            since(group.unready_since.as_ref())
        ),
        GroupState::Exhausted => format!(
            "Group {id} has used up its restarts ({}) and stays as it is for inspection",
            group.restarts
        ),
        GroupState::Lost => format!("Group {id} is lost: its node doesn't answer"),
    };
    say(&mut text, format_args!(" (revision {}).", group.revision));
    if group.state != GroupState::Ready
        && let Some(failure) = &group.last_failure
    {
        say(
            &mut text,
            format_args!(" Last failure: {}.", recovery::describe(id, failure)),
        );
    }
    text
}

fn part_lines(status: &InferenceServiceStatus, now: Timestamp) -> Vec<String> {
    PARTS
        .iter()
        .filter_map(|kind| condition_line(status, *kind, now))
        .collect()
}

fn ready_lines(status: &InferenceServiceStatus, now: Timestamp) -> Vec<String> {
    condition_line(status, ConditionType::Ready, now)
        .into_iter()
        .collect()
}

fn condition_line(status: &InferenceServiceStatus, kind: ConditionType, now: Timestamp) -> Option<String> {
    let condition = status.condition(kind)?;
    let (value, reason) = (&condition.status, &condition.reason);
    let since = age(condition.last_transition_time.0, now);
    let mut text = format!("{kind} is {value} ({reason}) for {since}");
    if !condition.message.is_empty() {
        say(&mut text, format_args!(": {}", condition.message));
    }
    if !text.ends_with('.') {
        text.push('.');
    }
    Some(text)
}

/// In the largest unit that leaves at least two, as kubectl has it.
fn age(from: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(from).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// What helps against the first part that is known to be bad. Something may be, though the service answers.
fn advice(status: &InferenceServiceStatus) -> Option<&'static str> {
    let ready = status.condition(ConditionType::Ready)?;
    let bad = PARTS
        .iter()
        .filter_map(|kind| status.condition(*kind))
        .filter(|c| c.status == "False" && c.type_ != "Degraded");
    let degraded = status
        .conditions
        .iter()
        .find(|c| c.type_ == "Degraded" && c.status == "True");
    let suspended = Some(ready).filter(|c| c.reason == Reason::Suspended.as_str());
    let reasons = suspended.into_iter().chain(bad).chain([ready]).chain(degraded);
    let mut reasons = reasons.map(|c| c.reason.as_str());
    let patience = "wait: nothing is known to be wrong; look again in a minute.";
    reasons
        .find_map(remedy)
        .or_else(|| (ready.status != "True").then_some(patience))
}

/// What helps, by reason.
#[expect(clippy::too_many_lines, reason = "one table, a row per reason")]
fn remedy(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "InvalidTopology"
        | "UnsupportedSource"
        | "Unsupported"
        | "InvalidSpec"
        | "OverrideForbidden"
        | "AnonymousNotAllowed" => {
            "change the field that Accepted names: until then what runs goes on by the spec that was accepted last."
        }
        "NameCollision" => "delete or rename what the message names, or give the service another name.",
        "QuotaExceeded" => "ask for a larger quota of the namespace, or lower replicas or resources.",
        "Forbidden" => {
            "read in the message what forbids it: an object that isn't there, a policy of the cluster or of the namespace, or rights that the operator lacks."
        }
        "IssueFailed" => {
            "look at what is named: at the operator's log in mode Internal, otherwise at whoever fills the Secret."
        }
        "ExpiringSoon" => "look at the operator's log: renewing has failed for a long time.",
        "PullFailed" => {
            "check that the model's source can be reached: spec.network.modelEgress, name and revision."
        }
        "Unauthorized" => "check the token in the Secret that the model's source names.",
        "DigestMismatch" => "correct spec.model.sha256, or find out who changed the files.",
        "NoSpace" => "give spec.storage.cache a larger size.",
        "SourceNotFound" => "correct the model's source: there is no such claim, repository or file.",
        "LoadFailed" => {
            "the files can't be loaded: read the line above, and the log of the pod that it names."
        }
        "InsufficientCapacity" => {
            "add a node that fits, lower spec.engine.resources, or widen spec.scheduling."
        }
        "SchedulingGated" => {
            "find out who holds the pod back: kubectl get pod POD -o jsonpath='{.spec.schedulingGates}'; a queue lets it go when its turn comes."
        }
        "ImagePullFailed" => {
            "correct the image that the message names (spec.engine.image or spec.model.source.image), or name the registry's Secret beside it."
        }
        "RankFailed" | "CrashLoop" | "RendezvousTimeout" => {
            "read the log of the pod that is named (kubectl logs POD --previous); OOMKilled means that it needed more memory than its limit."
        }
        "RouteNotAccepted" => {
            "look at the Gateways of spec.gateway.route.parentRefs: kubectl describe httproute."
        }
        "NoSharedGateway" => {
            "do what GatewayReady says: the engines run, and nobody leads requests to them until then."
        }
        "DeploymentUnavailable" => {
            "look at the pods of the gateway that GatewayReady names: kubectl describe pods -l kvasir.dev/component=gateway; each waits for all Secrets of spec.gateway.auth."
        }
        "NodeLost" => {
            "bring the node back, or taint it with node.kubernetes.io/out-of-service=:NoExecute if it is off for good; groups move by themselves."
        }
        "PolicyApplyFailed" => {
            "delete the NetworkPolicy that is named if it isn't the service's, or let the operator write it."
        }
        "EnforcementUnverified" => {
            "install a network plugin that enforces NetworkPolicies, or set spec.network.mode to Open if everybody may connect."
        }
        "GroupRestartBudgetExhausted" | "RankFlapping" => {
            "read what the last failure says and put that right; then set spec.restartedAt to another text, which replaces all groups."
        }
        "DeadlineExceeded" | "RolledBack" => {
            "the last change of the spec failed and says why: change the spec again, or take the change back."
        }
        "ForeignPods" => {
            "delete the pods that Degraded names, or take the label kvasir.dev/service from them."
        }
        "PartialGroups" => "wait: some groups form again; look at the last failure above if they don't.",
        "Suspended" => "set spec.suspend to false.",
        "ScaledToZero" => "set spec.replicas to at least 1.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_advice_or_needs_none() {
        use Reason as R;
        let good = [
            R::AllComponentsReady,
            R::Valid,
            R::Resolved,
            R::Cached,
            R::MinimumGroupsAvailable,
            R::Available,
            R::PoliciesApplied,
            R::Issued,
            R::MetricsFlowing,
            R::NewRevision,
            R::Scaling,
            R::CanaryPaused,
            R::Complete,
            R::AsExpected,
            R::EditUndone,
        ];
        // Nothing is known yet, or somebody wanted it so.
        let neutral = [
            R::Reconciling,
            R::Resolving,
            R::Starting,
            R::ProbePending,
            R::Disabled,
            R::Open,
        ];
        // Another condition says why.
        let consequences = [
            R::NotAccepted,
            R::EnginesNotReady,
            R::GatewayNotReady,
            R::ModelNotReady,
            R::CertificatesNotReady,
            R::NoReadyGroups,
        ];
        let unbuilt = [
            R::MetricsStale,
            R::MetricsAPIConflict,
            R::TargetInvalid,
            R::ReplicasContested,
        ];
        for reason in R::ALL {
            let needs_none = good.contains(reason)
                || neutral.contains(reason)
                || consequences.contains(reason)
                || unbuilt.contains(reason);
            assert_eq!(remedy(reason.as_str()).is_none(), needs_none, "{reason}");
        }
    }
}
