//! What is said about the model and the engines, the nearest to its cause first.

use kvasir_config::StartFault;
use kvasir_operator_api::{ConditionType, GroupState, GroupStatus, RankFailure, Reason, Retention};

use super::conditions::{OVER_QUOTA, Verdict};
use crate::fault;
use crate::groups::recovery;
use crate::observed::{FOREIGN_POD, Observed, PodView};
use crate::plan::Plan;
use crate::validate::Validated;

/// A ready group has loaded the model and tested it.
pub(super) fn model(service: &Validated, plan: &Plan, observed: &Observed) -> Verdict {
    let groups = &plan.decisions.groups;
    let cache = cache(service);
    if groups.iter().any(|g| g.ready_since.is_some()) {
        return match cache {
            Some(_) => Verdict::yes(
                Reason::Cached,
                "a group has loaded the model; its files lie in the claims of its pods, whose restarts fetch nothing",
            ),
            None => Verdict::yes(Reason::Resolved, "a group has loaded the model"),
        };
    }
    if groups.is_empty() && cache == Some(Retention::Retain) && was_cached(plan, observed) {
        return Verdict::yes(
            Reason::Cached,
            "no group runs; the model's files lie in the claims that the last ones left",
        );
    }
    if let Some((pod, why)) = observed.pods.iter().find_map(refused_image) {
        let reason = reason_of_text(&without_digests(why)).unwrap_or(Reason::PullFailed);
        return Verdict::no(reason, format!("pod {}: {why}", pod.name));
    }
    let failures = groups
        .iter()
        .filter_map(|g| Some((g.id, g.last_failure.as_ref()?)));
    let model_failures = failures.filter_map(|(id, failure)| Some((id, failure, model_reason(failure)?)));
    match model_failures.max_by_key(|(_, failure, _)| failure.time.as_ref().map(|t| t.0)) {
        Some((id, failure, reason)) => {
            let line = failure.message.clone().filter(|line| !line.trim().is_empty());
            Verdict::no(reason, line.unwrap_or_else(|| recovery::describe(id, failure)))
        }
        None if observed.pods.is_empty() => Verdict::unknown(Reason::Resolving, "no engine has started yet"),
        None => Verdict::unknown(Reason::Resolving, "engines load the model"),
    }
}

/// What becomes of the claims with the fetched model, where there are such.
fn cache(service: &Validated) -> Option<Retention> {
    let storage = service.spec.storage.as_ref();
    let cache = storage.and_then(|storage| storage.cache.as_ref());
    cache
        .filter(|_| service.spec.model.source.is_fetched())
        .map(|cache| cache.retention)
}

/// It was said of this revision before.
fn was_cached(plan: &Plan, observed: &Observed) -> bool {
    let said = observed.status.condition(ConditionType::ModelReady);
    observed.status.update_revision.as_ref() == Some(&plan.update)
        && said.is_some_and(|said| said.status == "True" && said.reason == Reason::Cached.as_str())
}

/// What an engine's end says about its model: by its exit code, or by its last line where the code says nothing.
fn model_reason(failure: &RankFailure) -> Option<Reason> {
    if let Some(fault) = failure.exit_code.and_then(StartFault::of_exit_code) {
        return fault::model_reason(fault);
    }
    reason_of_text(failure.message.as_deref()?)
}

fn refused_image(pod: &PodView) -> Option<(&PodView, &String)> {
    Some((pod, pod.model_image_refused.as_ref().filter(|_| !pod.deleting)?))
}

/// Digests have any digits, those of HTTP's codes too.
fn without_digests(text: &str) -> String {
    let mut parts = text.split("sha256:");
    let mut rest = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        rest.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    }
    rest
}

fn reason_of_text(text: &str) -> Option<Reason> {
    let line = text.to_lowercase();
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
        let reason = if why.contains(OVER_QUOTA) {
            Reason::InsufficientCapacity
        } else if why.contains(FOREIGN_POD) {
            Reason::NameCollision
        } else {
            Reason::Forbidden
        };
        Verdict::no(reason, format!("group {group}: pods can't be created: {why}"))
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
        let what = match pod.model_image_refused {
            Some(_) => "spec.model.source.image and its pullSecrets",
            None => "spec.engine.image and imagePullSecrets",
        };
        return Some(Verdict::no(
            Reason::ImagePullFailed,
            format!("pod {}: {reason}: check {what}", pod.name),
        ));
    }
    if let Some(pod) = pods.iter().find(|p| p.unschedulable.is_some()) {
        let why = pod.unschedulable.clone().unwrap_or_default();
        return Some(Verdict::no(
            Reason::InsufficientCapacity,
            format!("pod {} can't be scheduled: {why}", pod.name),
        ));
    }
    if let Some((pod, gates)) = pods.iter().find_map(|p| Some((p, p.gates.as_ref()?))) {
        return Some(Verdict::no(
            Reason::SchedulingGated,
            format!(
                "pod {} has scheduling gates ({gates}): it starts when whoever set them takes them away",
                pod.name
            ),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_no_code_of_http() {
        let said = |text: &str| reason_of_text(&without_digests(text));
        let digest = "sha256:4010000000000000000000000000000000000000000000000000000000000404";
        assert_eq!(
            said(&format!("can't pull r/m@{digest}: connection refused")),
            None
        );
        assert_eq!(
            said(&format!("r/m@{digest}: not found")),
            Some(Reason::SourceNotFound)
        );
        assert_eq!(
            said(&format!("{digest}: 401 Unauthorized")),
            Some(Reason::Unauthorized)
        );
        assert_eq!(without_digests("sha256:"), "");
    }
}
