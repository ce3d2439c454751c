//! Replaces groups of old revisions, scales, and goes back when a revision fails.
//!
//! One list of rules covers rollouts, scaling, suspension and leaving nodes, because they are one thing: the groups that
//! should exist are the wanted number of the target revision on nodes that stay; all others are stale.
//!
//! 1. A stale group that never served is deleted at once: a broken revision can't hold up its fix
//!    (kubernetes-sigs/lws#567).
//! 2. New groups are created while no more than the wanted number and `maxSurge` exist. Lost groups don't count: their
//!    replacement doesn't wait for a node that doesn't answer.
//! 3. A stale group that serves is drained when enough others serve without it, and gateways know of them: the wanted number less
//!    `maxUnavailable`.
//!    The oldest revision goes first, then the group with fewest running requests. One that doesn't serve goes before, as
//!    soon as the new revision has proven itself.
//! 4. Groups above the wanted number go: those that don't serve first, then those with fewest running requests.
//! 5. A draining group is deleted when its requests have ended, or after the drain timeout. Its engines are told at once to
//!    take nothing new: gateways read that in the load they report, and a request that is refused goes to another group.
//! 6. While a canary is tried there is one group of the target revision and no stale group leaves.
//! 7. A rollout fails when it makes no progress in time, when a new group uses up its restarts, when a new engine says that it can't
//!    ever serve (its self-test failed, or its model or configuration can't be used), or when a canary fails too many requests. Then the target becomes the last good revision, until the spec changes.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kvasir_operator_api::{GroupState, RolloutStatus, RolloutStrategy};

use super::view::Group;
use super::{Decisions, ids, trial};
use crate::observed::Observed;
use crate::settings::Settings;
use crate::validate::Validated;

/// Everything that the rules look at.
struct Rollout<'a> {
    service: &'a Validated,
    observed: &'a Observed,
    settings: &'a Settings,
    now: Timestamp,
    wanted: usize,
    target: String,
    surge: usize,
    minimum: usize,
    canary: bool,
}

/// Decides and updates the groups' memory. `known` are the revisions that can be built, with their age.
#[expect(
    clippy::too_many_arguments,
    reason = "a decision is a function of all that it depends on"
)]
pub fn decide(
    service: &Validated,
    update: &str,
    known: &BTreeMap<String, u32>,
    observed: &Observed,
    groups: &mut Vec<Group>,
    settings: &Settings,
    now: Timestamp,
    decisions: &mut Decisions,
) {
    let mut memory = memory(update, observed, now);
    let current = observed.status.current_revision.clone();
    trial::judge(
        service,
        update,
        current.as_deref(),
        groups,
        observed,
        &mut memory,
        now,
        decisions,
    );
    let failed = memory.failed_revision.as_deref() == Some(update);
    let back = current
        .clone()
        .filter(|c| failed && service.spec.rollout.auto_rollback && known.contains_key(c));
    let target = back.unwrap_or_else(|| update.to_owned());
    let wanted = service.wanted_groups();
    let canary = !failed
        && trial::canary(
            service,
            update,
            current.as_deref(),
            groups,
            &mut memory,
            now,
            decisions,
        );
    let rollout = Rollout {
        service,
        observed,
        settings,
        now,
        wanted,
        surge: surge(service, groups),
        minimum: minimum(service),
        canary,
        target,
    };
    rollout.step(groups, known, decisions);
    let complete = rollout.is_complete(groups, decisions);
    decisions.current = if complete {
        Some(rollout.target.clone())
    } else {
        current
    };
    if complete && rollout.target == update {
        memory.canary_since = None;
        memory.promoted = false;
        memory.failed_revision = None;
        memory.failure = None;
    }
    decisions.target = rollout.target;
    decisions.rollout = memory;
}

/// The remembered rollout; a new one when the spec's revision changed.
fn memory(update: &str, observed: &Observed, now: Timestamp) -> RolloutStatus {
    let before = observed.status.rollout.clone().unwrap_or_default();
    if observed.status.update_revision.as_deref() == Some(update) {
        return before;
    }
    RolloutStatus {
        started_at: Some(Time(now)),
        progressed_at: Some(Time(now)),
        ..RolloutStatus::default()
    }
}

/// A leaving node surges its groups even where a rollout wouldn't.
fn surge(service: &Validated, groups: &[Group]) -> usize {
    let spec = &service.spec.rollout;
    let asked = match spec.strategy {
        RolloutStrategy::Surge => usize::try_from(spec.max_surge).unwrap_or(0),
        RolloutStrategy::Recreate => 0,
    };
    let leaving = groups.iter().any(|g| g.leaving && !g.memory.draining);
    asked.max(usize::from(leaving))
}

/// Groups that must serve throughout.
fn minimum(service: &Validated) -> usize {
    let spec = &service.spec.rollout;
    let asked = usize::try_from(spec.max_unavailable).unwrap_or(0);
    let missing = match spec.strategy {
        RolloutStrategy::Surge => asked,
        RolloutStrategy::Recreate => asked.max(1),
    };
    service.wanted_groups().saturating_sub(missing)
}

impl Rollout<'_> {
    fn is_fresh(&self, group: &Group) -> bool {
        group.memory.revision == self.target && !group.leaving && !group.lost && !group.memory.draining
    }

    fn is_stale(&self, group: &Group) -> bool {
        !self.is_fresh(group) && !group.lost && !group.memory.draining
    }

    fn step(&self, groups: &mut Vec<Group>, known: &BTreeMap<String, u32>, decisions: &mut Decisions) {
        self.delete_unproven(groups, decisions);
        self.delete_drained(groups, decisions);
        self.delete_lost(groups, decisions);
        self.drain_stale(groups, known, decisions);
        self.drain_surplus(groups, decisions);
        self.create(groups, known, decisions);
    }

    /// Rule 1.
    fn delete_unproven(&self, groups: &mut Vec<Group>, decisions: &mut Decisions) {
        let doomed = |g: &Group| (self.is_stale(g) || g.memory.draining) && g.is_unproven();
        remove(groups, decisions, doomed);
    }

    /// Rule 5.
    fn delete_drained(&self, groups: &mut Vec<Group>, decisions: &mut Decisions) {
        let timeout = SignedDuration::from_secs(self.service.spec.disruption.drain_timeout_seconds.into());
        let mut next = None;
        let mut doomed = Vec::new();
        for group in groups.iter().filter(|g| g.memory.draining) {
            let since = group.memory.draining_since.as_ref().map_or(self.now, |t| t.0);
            let wait = match group.running {
                Some(0) => SignedDuration::ZERO,
                Some(_) => timeout,
                None => self.settings.drain_settle.min(timeout),
            };
            let due = since.saturating_add(wait).unwrap_or(Timestamp::MAX);
            // Gateways hear of the drain from the engine: a request may still be on its way.
            let settled = since
                .saturating_add(self.settings.drain_settle.min(timeout))
                .unwrap_or(Timestamp::MAX);
            let due = due.max(settled);
            if self.now >= due || !group.ready {
                doomed.push(group.memory.id);
            } else {
                decisions.drain.push(group.memory.id);
                next = Some(next.map_or(due, |before: Timestamp| before.min(due)));
            }
        }
        if let Some(due) = next {
            decisions.look_at(due);
        }
        remove(groups, decisions, |g| doomed.contains(&g.memory.id));
    }

    /// A lost group goes when enough others serve. Until then it may come back.
    fn delete_lost(&self, groups: &mut Vec<Group>, decisions: &mut Decisions) {
        if available(groups) >= self.wanted {
            remove(groups, decisions, |g| g.lost);
        }
    }

    /// Rule 3.
    fn drain_stale(&self, groups: &mut Vec<Group>, known: &BTreeMap<String, u32>, decisions: &mut Decisions) {
        if self.canary && self.wanted > 0 {
            return;
        }
        let proven = groups.iter().any(|g| self.is_fresh(g) && g.ready);
        if self.wanted == 0 || proven || self.surge == 0 {
            remove(groups, decisions, |g| self.is_stale(g) && !g.ready);
        }
        loop {
            let joined = groups.iter().filter(|g| g.has_joined(self.now)).count();
            let candidate = groups
                .iter_mut()
                .filter(|g| self.is_stale(g) && g.ready)
                .min_by_key(|g| {
                    let age = known.get(&g.memory.revision).copied().unwrap_or(0);
                    (
                        !g.leaving,
                        age,
                        g.running.unwrap_or(0),
                        std::cmp::Reverse(g.memory.id),
                    )
                });
            match candidate {
                Some(group) if joined > self.minimum => drain(group, self.now, decisions),
                _ => return,
            }
        }
    }

    /// Rule 4.
    fn drain_surplus(&self, groups: &mut Vec<Group>, decisions: &mut Decisions) {
        let fresh = groups.iter().filter(|g| self.is_fresh(g)).count();
        let mut surplus = fresh.saturating_sub(self.wanted_fresh());
        let mut idle: Vec<_> = groups
            .iter()
            .filter(|g| self.is_fresh(g) && !g.ready)
            .map(|g| g.memory.id)
            .collect();
        idle.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        idle.truncate(surplus);
        surplus -= idle.len();
        remove(groups, decisions, |g| idle.contains(&g.memory.id));
        for _ in 0..surplus {
            let least = groups
                .iter_mut()
                .filter(|g| self.is_fresh(g))
                .min_by_key(|g| (g.running.unwrap_or(0), std::cmp::Reverse(g.memory.id)));
            if let Some(group) = least {
                drain(group, self.now, decisions);
            }
        }
    }

    fn wanted_fresh(&self) -> usize {
        if self.canary {
            self.wanted.min(1)
        } else {
            self.wanted
        }
    }

    /// Rule 2.
    fn create(&self, groups: &[Group], known: &BTreeMap<String, u32>, decisions: &mut Decisions) {
        if !known.contains_key(&self.target) {
            return;
        }
        let fresh = groups.iter().filter(|g| self.is_fresh(g)).count();
        let occupied = groups.iter().filter(|g| !g.lost).count() + decisions.delete.len();
        let room = (self.wanted + self.surge).saturating_sub(occupied);
        let missing = self.wanted_fresh().saturating_sub(fresh);
        for id in ids::free(self.service, self.observed).take(missing.min(room)) {
            decisions.create.push((id, self.target.clone()));
        }
    }

    /// The wanted number of the target revision serves, and nothing else is left.
    fn is_complete(&self, groups: &[Group], decisions: &Decisions) -> bool {
        let all = groups.iter().all(|g| self.is_fresh(g) && g.ready);
        all && groups.len() == self.wanted && decisions.create.is_empty() && !self.canary
    }
}

fn available(groups: &[Group]) -> usize {
    groups.iter().filter(|g| g.is_available()).count()
}

fn drain(group: &mut Group, now: Timestamp, decisions: &mut Decisions) {
    group.memory.draining = true;
    group.memory.draining_since = Some(Time(now));
    group.memory.state = GroupState::Draining;
    decisions.look_at(now);
}

/// Moves the groups that `doomed` picks from the list to the decisions.
fn remove(groups: &mut Vec<Group>, decisions: &mut Decisions, doomed: impl Fn(&Group) -> bool) {
    groups.retain(|group| {
        let goes = doomed(group);
        if goes {
            decisions.delete.push(group.memory.id);
        }
        !goes
    });
}
