//! What happens to groups: which are created, drained, restarted and deleted.
//!
//! Inputs are the wanted number and revision, what was observed, and the remembered status; outputs are [`Decisions`]. The
//! steps, each in its own module: [`view`] puts observation and memory together, [`recovery`] notices failed ranks and lost
//! nodes and decides about restarts, [`rollout`] replaces groups of old revisions and scales.
//!
//! Invariants, held by the properties in `tests/laws.rs`:
//! 1. An id names at most one group: it is given out only when no object, pod or memory of it is left and it has rested, or again for a
//!    group that never came to be.
//! 2. During a Surge with maxUnavailable 0 no ready group is drained while fewer than the wanted number would remain.
//! 3. The same inputs give the same decisions; at rest there are none.
//!
//! The first holds under stale reads too, because a new group's id is in the status that the same round writes, over the
//! version that was read, before anything is created (see [`crate::Plan`]).
//!
//! Nothing here waits for an event: failures are found by comparing uids and restart counts with those remembered, so a pod
//! that was deleted and recreated between two looks is noticed (kubernetes-sigs/lws#998).

pub mod ids;
pub mod recovery;
pub mod rollout;
mod trial;
pub mod view;

use std::collections::BTreeMap;

use jiff::Timestamp;
use kvasir_operator_api::{GroupStatus, InferenceServiceStatus, Reason, RestingId, RolloutStatus};

use crate::observed::Observed;
use crate::settings::Settings;
use crate::validate::Validated;
use view::Group;

/// What is to be done with groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// Groups to create: id and revision.
    pub create: Vec<(i32, String)>,
    /// Groups to delete.
    pub delete: Vec<i32>,
    /// Pods to delete so that their group forms anew: name and uid.
    pub restart_pods: Vec<(String, String)>,
    /// Groups whose engines are told to take no new requests. Telling them twice changes nothing.
    pub drain: Vec<i32>,
    /// Pods whose label for loading is to be removed.
    pub unlabel_pods: Vec<(String, String)>,
    /// Groups that may be evicted by a node drain.
    pub evictable: Vec<i32>,
    /// Revision that groups get now.
    pub target: String,
    /// Revision that the last complete rollout reached.
    pub current: Option<String>,
    /// Memory of the rollout.
    pub rollout: RolloutStatus,
    /// Memory of each group that goes on existing.
    pub groups: Vec<GroupStatus>,
    /// Ids that rest.
    pub resting: Vec<RestingId>,
    /// Share of requests for groups of the target revision in percent, while a canary is tried.
    pub canary_weight: Option<i32>,
    /// What people should be told: reason, text, and whether it is a warning.
    pub events: Vec<Event>,
    /// When something is to be looked at again.
    pub look_again: Option<Timestamp>,
}

/// Something worth telling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// It is a problem.
    pub warning: bool,
    /// Why, in one word.
    pub reason: Reason,
    /// What happened and what to do.
    pub message: String,
}

impl Decisions {
    /// Asks for a look at `at`, or earlier if that was asked before.
    pub(crate) fn look_at(&mut self, at: Timestamp) {
        self.look_again = Some(self.look_again.map_or(at, |before| before.min(at)));
    }

    pub(crate) fn tell(&mut self, warning: bool, reason: Reason, message: String) {
        self.events.push(Event {
            warning,
            reason,
            message,
        });
    }
}

/// Decides about all groups of a service. `update` is the revision of its spec, `known` those that can be built.
pub fn decide(
    service: &Validated,
    update: &str,
    known: &BTreeMap<String, u32>,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> Decisions {
    let mut decisions = Decisions::default();
    let mut groups = view::groups(service, observed, settings, now);
    recovery::decide(service, observed, &mut groups, settings, now, &mut decisions);
    rollout::decide(
        service,
        update,
        known,
        observed,
        &mut groups,
        settings,
        now,
        &mut decisions,
    );
    ids::rest(service, observed, &groups, settings, now, &mut decisions);
    evictable(service, &groups, now, &mut decisions);
    // Others may go when these have joined.
    let joining = groups.iter().filter(|g| g.is_available() && !g.has_joined(now));
    if let Some(due) = joining.map(|g| g.joins).min() {
        decisions.look_at(due);
    }
    unlabel(observed, &mut decisions);
    let deleted = std::mem::take(&mut decisions.delete);
    decisions.groups = groups.into_iter().map(|group| group.memory).collect();
    let born = decisions.create.iter().map(|(id, revision)| GroupStatus {
        id: *id,
        revision: revision.clone(),
        pods: i32::try_from(service.shape.pods()).unwrap_or(i32::MAX),
        leader_pod: service.names.pod(*id, 0),
        ..GroupStatus::default()
    });
    decisions.groups.extend(born);
    decisions.groups.sort_by_key(|group| group.id);
    decisions.delete = deleted;
    decisions
}

/// What the status says was decided about groups, as far as a gateway must know: which revisions there are, and who gets which share.
pub fn remembered(service: &Validated, status: &InferenceServiceStatus) -> Decisions {
    let update = status.update_revision.clone().unwrap_or_default();
    let current = status.current_revision.clone();
    let rollout = status.rollout.clone().unwrap_or_default();
    let failed = rollout.failed_revision.as_ref() == Some(&update);
    let serves = |group: &GroupStatus| group.ready_since.is_some() && group.unready_since.is_none();
    let old = |group: &GroupStatus| group.revision != update && !group.draining && serves(group);
    let old_serves = status.groups.iter().any(old);
    let is_known = !failed && !update.is_empty();
    let is_tried =
        is_known && trial::is_tried(service, &update, current.as_deref(), rollout.promoted, old_serves);
    let canary = service.spec.rollout.canary.as_ref().filter(|_| is_tried);
    Decisions {
        canary_weight: canary.map(|canary| canary.weight_percent),
        target: current.clone().filter(|_| failed).unwrap_or(update),
        current,
        groups: status.groups.clone(),
        rollout,
        ..Decisions::default()
    }
}

/// As many ready groups as are above the minimum may be evicted, those on leaving nodes first. Groups that aren't ready may
/// always go: they serve nobody. A group that has waited for its replacement longer than a rollout may take goes too: a node
/// drain never waits for ever.
fn evictable(service: &Validated, groups: &[Group], now: Timestamp, decisions: &mut Decisions) {
    let deadline = jiff::SignedDuration::from_secs(service.spec.rollout.progress_deadline_seconds.into());
    let mut ready: Vec<_> = groups.iter().filter(|g| g.is_available()).collect();
    ready.sort_by_key(|g| (!g.leaving, g.memory.id));
    let joined = ready.iter().filter(|g| g.has_joined(now)).count();
    let spare = joined.saturating_sub(service.minimum_available());
    let overdue = |g: &Group| {
        let since = g.memory.evacuating_since.as_ref();
        since.is_some_and(|since| now.duration_since(since.0) >= deadline)
    };
    decisions.evictable = groups
        .iter()
        .filter(|g| !g.is_available() || overdue(g))
        .map(|g| g.memory.id)
        .chain(ready.iter().take(spare).map(|g| g.memory.id))
        .collect();
    decisions.evictable.sort_unstable();
    decisions.evictable.dedup();
}

/// A pod that is ready has loaded its model and needs no way to the network any more.
fn unlabel(observed: &Observed, decisions: &mut Decisions) {
    let loaded = observed
        .pods
        .iter()
        .filter(|p| p.loading && p.ready && !p.deleting);
    decisions.unlabel_pods = loaded.map(|p| (p.name.clone(), p.uid.clone())).collect();
    decisions.unlabel_pods.sort();
}
