//! Notices failed ranks and decides when all pods of a group are replaced.
//!
//! Containers restart in place first: that keeps node, devices and page cache, and the kubelet backs off. Only when a group
//! doesn't form again in time are all its pods deleted at once, after a wait that doubles with each restart. When the
//! restarts of the window are used up the group stays as it is, for inspection; other groups serve on
//! (kubernetes-sigs/lws#1048: thirty recreations in ninety seconds).
//!
//! Time doesn't run against a group while one of its pods waits for a node or an image: replacing it would lose its place in
//! the queue (kubernetes-sigs/lws PR 725). Only where two groups hold nodes that each other wait for do all but one let go.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kvasir_operator_api::{GroupState, MAX_MESSAGE_BYTES, RankFailure, Reason, RestartPolicySpec, SeenPod};

use super::Decisions;
use super::view::Group;
use crate::observed::{OUT_OF_SERVICE, Observed, PodView};
use crate::settings::Settings;
use crate::text::clip;
use crate::validate::Validated;

/// Updates the groups' memory and decides about restarts.
pub fn decide(
    service: &Validated,
    observed: &Observed,
    groups: &mut [Group],
    settings: &Settings,
    now: Timestamp,
    decisions: &mut Decisions,
) {
    for group in groups.iter_mut() {
        let known = observed
            .status
            .groups
            .iter()
            .any(|before| before.id == group.memory.id);
        notice(service, group, known, decisions);
        forget_window(&service.spec.restart_policy, group, now);
        if group.lost && group.memory.state != GroupState::Draining {
            tell_lost(observed, group, decisions);
        }
        if let Some(due) = group.lost_since.filter(|_| !group.lost) {
            decisions.look_at(due);
        }
        restart(&service.spec.restart_policy, group, settings, now, decisions);
        watch_for_pods(group, now, decisions);
    }
    release(&service.spec.restart_policy, groups, settings, now, decisions);
}

/// How soon pods exist that nothing forbids.
pub const PODS_APPEAR: SignedDuration = SignedDuration::from_secs(5);
/// How often it is looked why they don't: nothing else tells.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(15);

fn watch_for_pods(group: &Group, now: Timestamp, decisions: &mut Decisions) {
    let some_lack = i32::try_from(group.pods.len()).unwrap_or(i32::MAX) < group.memory.pods;
    if let Some(since) = group.memory.unready_since.as_ref().filter(|_| some_lack) {
        let early = since.0.saturating_add(PODS_APPEAR).unwrap_or(Timestamp::MAX);
        let later = now.saturating_add(ASK_AGAIN).unwrap_or(Timestamp::MAX);
        decisions.look_at(if now < early { early } else { later });
    }
}

/// Two groups that each hold half of the nodes wait for each other for ever (kaito-project/kaito#2174). All but the first of those that
/// found nodes for some of their pods only give them back, and try again after the longest pause between restarts. That is no failure and
/// takes nothing from their budget. Nobody asks before whether all pods would find nodes: only the scheduler knows what fits beside
/// everything else, and whoever wanted to work it out had to read all pods of the cluster.
fn release(
    policy: &RestartPolicySpec,
    groups: &mut [Group],
    settings: &Settings,
    now: Timestamp,
    decisions: &mut Decisions,
) {
    let half = |group: &&mut Group| {
        group.memory.state == GroupState::Pending
            && group.pods.iter().any(|pod| pod.node.is_some())
            && group.pods.iter().any(|pod| pod.unschedulable.is_some())
    };
    let pause = SignedDuration::from_secs(policy.backoff_max_seconds.into());
    for group in groups.iter_mut().filter(half).skip(1) {
        let later =
            |since: &Time, wait: SignedDuration| since.0.saturating_add(wait).unwrap_or(Timestamp::MAX);
        let waited = group.memory.unready_since.as_ref();
        let tried = group.memory.restarted_at.as_ref();
        let due = waited
            .map(|since| later(since, settings.reform_timeout))
            .max(tried.map(|at| later(at, pause)));
        let Some(due) = due else { continue };
        if now < due {
            decisions.look_at(due);
            continue;
        }
        let doomed = group.pods.iter().filter(|pod| !pod.deleting);
        let doomed = doomed.map(|pod| (pod.name.clone(), pod.uid.clone()));
        decisions.restart_pods.extend(doomed);
        group.memory.restarted_at = Some(Time(now));
        group.memory.unready_since = Some(Time(now));
        let id = group.memory.id;
        decisions.tell(
            true,
            Reason::InsufficientCapacity,
            format!("group {id} found nodes for some of its pods only and gives them back, so that another group can start: add nodes, or lower spec.replicas"),
        );
    }
}

/// Compares uids and restart counts with those remembered.
fn notice(service: &Validated, group: &mut Group, known: bool, decisions: &mut Decisions) {
    let seen: Vec<SeenPod> = group
        .pods
        .iter()
        .map(|pod| SeenPod {
            ordinal: pod.ordinal,
            uid: pod.uid.clone(),
            restarts: pod.restarts,
        })
        .collect();
    for (pod, now_seen) in group.pods.iter().zip(&seen) {
        let before = group.memory.seen.iter().find(|s| s.ordinal == pod.ordinal);
        let fresh_failure = match before {
            Some(before) => before.uid == now_seen.uid && before.restarts < now_seen.restarts,
            None => pod.has_failed(),
        };
        if fresh_failure || (pod.finished && before.is_some_and(|b| b.uid != now_seen.uid)) {
            let failure = failure(service, pod);
            decisions.tell(true, Reason::RankFailed, describe(group.memory.id, &failure));
            group.memory.last_failure = Some(failure);
        } else if known && before.is_some_and(|b| b.uid != now_seen.uid) {
            decisions.tell(
                false,
                Reason::RankFailed,
                format!(
                    "group {}: pod {} was replaced; its ranks join again",
                    group.memory.id, pod.name
                ),
            );
        }
    }
    // A pod that is gone is remembered until its successor is seen.
    let gone = |s: &SeenPod| s.ordinal < group.memory.pods && !seen.iter().any(|n| n.ordinal == s.ordinal);
    let mut all: Vec<_> = group.memory.seen.iter().filter(|s| gone(s)).cloned().collect();
    all.extend(seen);
    all.sort_by_key(|s| s.ordinal);
    group.memory.seen = all;
}

fn failure(service: &Validated, pod: &PodView) -> RankFailure {
    let ended = pod.terminated.clone().unwrap_or_default();
    let line = ended.last_line();
    let ordinal = u32::try_from(pod.ordinal).unwrap_or(0);
    RankFailure {
        rank: i32::try_from(service.shape.first_rank_of_pod(ordinal)).unwrap_or(i32::MAX),
        pod: pod.name.clone(),
        reason: if ended.reason.is_empty() {
            "Error".to_owned()
        } else {
            ended.reason
        },
        exit_code: pod.terminated.as_ref().map(|t| t.exit_code),
        message: line.map(|line| clip(&line, MAX_MESSAGE_BYTES / 2)),
        time: ended.at.map(Time),
    }
}

/// One line about a failed rank.
pub fn describe(group: i32, failure: &RankFailure) -> String {
    // As shells have it: 128 and the signal.
    let end = match failure.exit_code {
        Some(code @ 129..=192) => format!(", exit code {code} (signal {})", code - 128),
        Some(code) => format!(", exit code {code}"),
        None => String::new(),
    };
    let line = failure.message.as_ref();
    let line = line.map_or_else(String::new, |line| format!("; the last line of its log: {line}"));
    format!(
        "group {group}: rank {} in pod {} ended: {}{end}{line}",
        failure.rank, failure.pod, failure.reason
    )
}

fn forget_window(policy: &RestartPolicySpec, group: &mut Group, now: Timestamp) {
    let window = SignedDuration::from_secs(policy.window_seconds.into());
    let over = |since: &Time| now.duration_since(since.0) >= window;
    if group.memory.window_started_at.as_ref().is_some_and(over) {
        group.memory.window_started_at = None;
        group.memory.restarts = 0;
        if group.memory.state == GroupState::Exhausted {
            group.memory.state = GroupState::Recovering;
        }
    }
}

fn tell_lost(observed: &Observed, group: &Group, decisions: &mut Decisions) {
    let before = observed.status.groups.iter().find(|g| g.id == group.memory.id);
    if before.is_none_or(|before| before.state != GroupState::Lost) {
        let node = group.memory.node.as_deref().unwrap_or("unknown");
        decisions.tell(
            true,
            Reason::NodeLost,
            format!(
                "group {}: node {node} doesn't answer; a replacement is started. If the node is off for good, kubectl taint nodes {node} \
                 {OUT_OF_SERVICE}=:NoExecute lets Kubernetes forget its pods",
                group.memory.id
            ),
        );
    }
}

/// How long the group waits before its next restart.
pub fn backoff(policy: &RestartPolicySpec, restarts: i32) -> SignedDuration {
    let doublings = u32::try_from(restarts.saturating_sub(1)).unwrap_or(0).min(31);
    let seconds = i64::from(policy.backoff_initial_seconds) << doublings;
    SignedDuration::from_secs(seconds.min(policy.backoff_max_seconds.into()))
}

fn restart(
    policy: &RestartPolicySpec,
    group: &mut Group,
    settings: &Settings,
    now: Timestamp,
    decisions: &mut Decisions,
) {
    let Some(since) = group.memory.unready_since.clone() else {
        return;
    };
    let idle = matches!(
        group.memory.state,
        GroupState::Ready | GroupState::Draining | GroupState::Lost | GroupState::Exhausted
    );
    let failed = group.pods.iter().any(PodView::has_failed) || group.memory.ready_since.is_some();
    if idle || !failed || group.pods.is_empty() {
        return;
    }
    let Some(placed) = &group.memory.placed_since else {
        return;
    };
    let mut due = since
        .0
        .max(placed.0)
        .saturating_add(settings.reform_timeout)
        .unwrap_or(Timestamp::MAX);
    if let Some(last) = &group.memory.restarted_at {
        let wait = backoff(policy, group.memory.restarts);
        due = due.max(last.0.saturating_add(wait).unwrap_or(Timestamp::MAX));
    }
    if now < due {
        decisions.look_at(due);
        return;
    }
    let id = group.memory.id;
    if group.memory.restarts >= policy.max_group_restarts {
        group.memory.state = GroupState::Exhausted;
        decisions.tell(
            true,
            Reason::GroupRestartBudgetExhausted,
            format!("group {id}: {} restarts didn't help; it stays as it is for inspection. Fix the cause and change spec.restartedAt", group.memory.restarts),
        );
        return;
    }
    group.memory.restarts += 1;
    group.memory.window_started_at.get_or_insert(Time(now));
    group.memory.restarted_at = Some(Time(now));
    group.memory.unready_since = Some(Time(now));
    let doomed = group.pods.iter().filter(|pod| !pod.deleting);
    decisions
        .restart_pods
        .extend(doomed.map(|pod| (pod.name.clone(), pod.uid.clone())));
    decisions.tell(
        true,
        Reason::RankFailed,
        format!(
            "group {id} didn't form again; all its pods are replaced (restart {} of {})",
            group.memory.restarts, policy.max_group_restarts
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(reason: &str, exit_code: i32, message: Option<&str>) -> RankFailure {
        RankFailure {
            rank: 0,
            pod: "chat-g0-0".to_owned(),
            reason: reason.to_owned(),
            exit_code: Some(exit_code),
            message: message.map(str::to_owned),
            time: None,
        }
    }

    #[test]
    fn a_signal_is_named_and_the_last_line_of_a_log_is_not_told_as_the_cause() {
        assert_eq!(
            describe(0, &failure("Error", 137, Some("serving"))),
            "group 0: rank 0 in pod chat-g0-0 ended: Error, exit code 137 (signal 9); the last line of its log: serving"
        );
        assert_eq!(
            describe(0, &failure("Error", 1, None)),
            "group 0: rank 0 in pod chat-g0-0 ended: Error, exit code 1"
        );
    }
}
