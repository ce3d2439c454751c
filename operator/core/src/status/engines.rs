//! What is said about the model and the engines, the nearest to its cause first.

use kvasir_config::StartFault;
use kvasir_operator_api::{GroupState, GroupStatus, RankFailure, Reason};

use super::conditions::Verdict;
use crate::fault;
use crate::groups::recovery;
use crate::observed::{Observed, PodView};
use crate::plan::Plan;
use crate::validate::Validated;

/// A ready group has loaded the model and tested it.
pub(super) fn model(plan: &Plan, observed: &Observed) -> Verdict {
    let groups = &plan.decisions.groups;
    if groups.iter().any(|g| g.ready_since.is_some()) {
        return Verdict::yes(Reason::Resolved, "a group has loaded the model");
    }
    let failures = groups.iter().filter_map(|g| g.last_failure.as_ref());
    let model_failures = failures.filter_map(|failure| Some((failure, model_reason(failure)?)));
    match model_failures.max_by_key(|(failure, _)| failure.time.as_ref().map(|t| t.0)) {
        Some((failure, reason)) => Verdict::no(reason, failure.message.clone().unwrap_or_default()),
        None if observed.pods.is_empty() => Verdict::unknown(Reason::Resolving, "no engine has started yet"),
        None => Verdict::unknown(Reason::Resolving, "engines load the model"),
    }
}

/// What an engine's end says about its model: by its exit code, or by its last line where the code says nothing.
fn model_reason(failure: &RankFailure) -> Option<Reason> {
    if let Some(fault) = failure.exit_code.and_then(StartFault::of_exit_code) {
        return fault::model_reason(fault);
    }
    let line = failure.message.as_deref()?.to_lowercase();
    let rules: [(&[&str], Reason); 5] = [
        (&["401", "403", "unauthorized", "forbidden"], Reason::Unauthorized),
        (&["digest", "checksum"], Reason::DigestMismatch),
        (&["no space left", "disk full"], Reason::NoSpace),
        (
            &["404", "not found", "no such file", "doesn't exist"],
            Reason::SourceNotFound,
        ),
        (
            &[
                "config.json",
                "safetensors",
                "gguf",
                "tensor",
                "can't load",
                "tokenizer",
            ],
            Reason::LoadFailed,
        ),
    ];
    rules
        .iter()
        .find(|(words, _)| words.iter().any(|word| line.contains(word)))
        .map(|(_, reason)| *reason)
}

pub(super) fn engines(service: &Validated, plan: &Plan, observed: &Observed) -> Verdict {
    let groups = &plan.decisions.groups;
    let available = groups.iter().filter(|g| g.state == GroupState::Ready).count();
    let wanted = service.wanted_groups();
    if wanted == 0 {
        return Verdict::no(Reason::ScaledToZero, "no group is wanted");
    }
    if available >= service.minimum_available().clamp(1, wanted) {
        return Verdict::yes(
            Reason::MinimumGroupsAvailable,
            format!("{available} of {wanted} groups serve"),
        );
    }
    let pods: Vec<&PodView> = observed
        .pods
        .iter()
        .filter(|p| p.group.is_some() && !p.deleting)
        .collect();
    let refused = observed.refused_pods.iter().next().map(|(group, why)| {
        Verdict::no(
            Reason::InsufficientCapacity,
            format!("group {group}: pods can't be created: {why}"),
        )
    });
    let found = refused.or_else(|| trouble(groups, &pods));
    found.unwrap_or_else(|| {
        Verdict::unknown(
            Reason::Starting,
            format!("{available} of {wanted} groups serve; others start"),
        )
    })
}

/// The trouble that explains most, the nearest to its cause first.
fn trouble(groups: &[GroupStatus], pods: &[&PodView]) -> Option<Verdict> {
    let image = |reason: &str| reason.contains("Image");
    if let Some(pod) = pods.iter().find(|p| p.waiting.as_deref().is_some_and(image)) {
        let reason = pod.waiting.clone().unwrap_or_default();
        return Some(Verdict::no(
            Reason::ImagePullFailed,
            format!(
                "pod {}: {reason}: check spec.engine.image and imagePullSecrets",
                pod.name
            ),
        ));
    }
    if let Some(pod) = pods.iter().find(|p| p.unschedulable.is_some()) {
        let why = pod.unschedulable.clone().unwrap_or_default();
        return Some(Verdict::no(
            Reason::InsufficientCapacity,
            format!("pod {} can't be scheduled: {why}", pod.name),
        ));
    }
    let failed = groups.iter().filter(|g| g.state != GroupState::Ready);
    let failed = failed.filter_map(|g| Some((g, g.last_failure.as_ref()?)));
    if let Some((group, failure)) = failed.max_by_key(|(_, failure)| failure.time.as_ref().map(|t| t.0)) {
        let looping = pods
            .iter()
            .any(|p| p.waiting.as_deref() == Some("CrashLoopBackOff"));
        let again = looping || group.restarts > 0 || group.state == GroupState::Exhausted;
        let reason = if again {
            Reason::CrashLoop
        } else {
            Reason::RankFailed
        };
        return Some(Verdict::no(reason, recovery::describe(group.id, failure)));
    }
    let stuck = groups
        .iter()
        .find(|g| g.restarts > 0 && g.state != GroupState::Ready)?;
    Some(Verdict::no(
        Reason::RendezvousTimeout,
        format!(
            "group {}: {} of {} pods joined in time",
            stuck.id, stuck.ready_pods, stuck.pods
        ),
    ))
}
