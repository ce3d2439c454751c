//! Whether a new revision proves itself: rules 6 and 7 of [`super::rollout`].

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kvasir_config::StartFault;
use kvasir_operator_api::{CanarySpec, GroupState, Reason, RolloutStatus};

use super::view::Group;
use super::{Decisions, ids, recovery};
use crate::observed::Observed;
use crate::outcomes::Outcomes;
use crate::validate::Validated;

/// Rule 7.
#[expect(
    clippy::too_many_arguments,
    reason = "a judgement is a function of all that it depends on"
)]
pub(super) fn judge(
    service: &Validated,
    update: &str,
    current: Option<&str>,
    groups: &[Group],
    observed: &Observed,
    memory: &mut RolloutStatus,
    now: Timestamp,
    decisions: &mut Decisions,
) {
    if current == Some(update) || memory.failed_revision.as_deref() == Some(update) {
        return;
    }
    let new: Vec<_> = groups.iter().filter(|g| g.memory.revision == update).collect();
    let ready_before = |id: i32| {
        observed
            .status
            .groups
            .iter()
            .any(|g| g.id == id && g.ready_since.is_some())
    };
    let progressed = new.iter().any(|g| g.ready && !ready_before(g.memory.id))
        || observed
            .status
            .groups
            .iter()
            // A group that can't be made is tried in each round, which is no progress.
            .any(|b| !ids::was_never_seen(b) && !groups.iter().any(|g| g.memory.id == b.id));
    let limit = SignedDuration::from_secs(service.spec.rollout.progress_deadline_seconds.into());
    let due = if service.spec.suspend {
        // Nothing is to make progress: the time begins anew afterwards.
        memory.progressed_at = None;
        Timestamp::MAX
    } else {
        let last = memory.progressed_at.take().filter(|_| !progressed);
        let last = memory.progressed_at.insert(last.unwrap_or(Time(now))).0;
        last.saturating_add(limit).unwrap_or(Timestamp::MAX)
    };
    let exhausted = new.iter().find(|g| g.memory.state == GroupState::Exhausted);
    let failure = if let Some(group) = exhausted {
        Some(format!("group {} used up its restarts", group.memory.id))
    } else if let Some(text) = refusal(current, &new) {
        Some(text)
    } else if let Some(text) = canary_failure(service.spec.rollout.canary.as_ref(), &new, observed) {
        Some(text)
    } else if now >= due {
        Some(format!(
            "no group became ready or left within {} s",
            limit.as_secs()
        ))
    } else {
        decisions.look_at(due);
        None
    };
    if let Some(text) = failure {
        let goes_back = service.spec.rollout.auto_rollback && current.is_some();
        let what = if goes_back {
            "going back to the last good one"
        } else {
            "fix the spec to go on"
        };
        decisions.tell(
            true,
            Reason::DeadlineExceeded,
            format!("revision {update} failed ({text}): {what}"),
        );
        memory.failed_revision = Some(update.to_owned());
        memory.failure = Some(text);
    }
}

/// A canary that fails too many of its requests.
fn canary_failure(canary: Option<&CanarySpec>, new: &[&Group], observed: &Observed) -> Option<String> {
    let analysis = &canary?.analysis;
    let loads = new.iter().filter_map(|g| observed.loads.get(&g.memory.id));
    let recent = loads.fold(Outcomes::default(), |sum, load| sum.plus(load.recent));
    let permille = recent.failed_permille(u64::try_from(analysis.min_requests).unwrap_or(1))?;
    let most = u64::try_from(analysis.max_error_permille).unwrap_or(0);
    (permille > most).then(|| {
        let Outcomes { finished, failed } = recent;
        format!(
            "{failed} of {finished} requests failed within {} s, more than {most} permille",
            analysis.window_seconds
        )
    })
}

/// A new group whose engine says that it can't ever serve: starting it again would end the same way. Only where there is a revision to go
/// back to; otherwise the engine is started again as usual, because whatever is wrong may be put right outside of the spec.
fn refusal(current: Option<&str>, new: &[&Group]) -> Option<String> {
    current?;
    let doomed = new.iter().filter(|g| g.is_unproven());
    let fault = doomed.filter_map(|g| {
        let failure = g.memory.last_failure.as_ref()?;
        let fault = StartFault::of_exit_code(failure.exit_code?)?;
        fault
            .is_permanent()
            .then(|| recovery::describe(g.memory.id, failure))
    });
    fault.min()
}

/// Whether there is something to try a canary against: groups of an old revision serve, and it hasn't been promoted.
pub(super) fn is_tried(
    service: &Validated,
    update: &str,
    current: Option<&str>,
    promoted: bool,
    old_serves: bool,
) -> bool {
    service.spec.rollout.canary.is_some()
        && current.is_some_and(|current| current != update)
        && !promoted
        && service.wanted_groups() > 0
        && old_serves
}

/// Rule 6: whether a canary is being tried.
pub(super) fn canary(
    service: &Validated,
    update: &str,
    current: Option<&str>,
    groups: &[Group],
    memory: &mut RolloutStatus,
    now: Timestamp,
    decisions: &mut Decisions,
) -> bool {
    let Some(spec) = &service.spec.rollout.canary else {
        return false;
    };
    let old = groups
        .iter()
        .any(|g| g.memory.revision != update && !g.memory.draining && g.ready);
    if !is_tried(service, update, current, memory.promoted, old) {
        return false;
    }
    decisions.canary_weight = Some(spec.weight_percent);
    let serves = groups
        .iter()
        .any(|g| g.memory.revision == update && g.is_available());
    if !serves {
        return true;
    }
    let since = memory.canary_since.get_or_insert(Time(now)).0;
    let due = since
        .saturating_add(SignedDuration::from_secs(spec.pause_seconds.into()))
        .unwrap_or(Timestamp::MAX);
    let promoted_by_hand = service.promote.as_deref() == Some(update);
    memory.promoted = promoted_by_hand || (spec.pause_seconds > 0 && now >= due);
    if memory.promoted {
        decisions.canary_weight = None;
    } else if spec.pause_seconds > 0 {
        decisions.look_at(due);
    }
    !memory.promoted
}
