//! Which numbers groups get.
//!
//! Ids are given out, not dense: a surge takes a free one and a finished group gives its own back, so any group can be the
//! one that leaves. An id rests after its group is gone, because names, connections and certificates of the old group live
//! on in caches for a while.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kvasir_operator_api::names::MAX_GROUP_ID;
use kvasir_operator_api::{GroupStatus, RestingId};

use super::Decisions;
use super::view::Group;
use crate::child::Kind;
use crate::observed::Observed;
use crate::settings::Settings;
use crate::validate::Validated;

/// Most ids that rest at once; with more the oldest are let go early.
const MAX_RESTING: usize = 256;

/// The ids that may be given out: first those of groups that never came to be, then the free ones, lowest first. Of a free id nothing of an
/// earlier group is left: no StatefulSet (of whatever owner), no pod, no memory, and it has rested.
pub fn free<'a>(service: &'a Validated, observed: &'a Observed) -> impl Iterator<Item = i32> + 'a {
    let unborn = unborn(service, observed);
    let mut taken = existing(service, observed);
    taken.extend(observed.status.groups.iter().map(|group| group.id));
    taken.extend(observed.status.resting_ids.iter().map(|resting| resting.id));
    unborn
        .into_iter()
        .chain((0..=MAX_GROUP_ID).filter(move |id| !taken.contains(id)))
}

/// Ids that were given out and of whose groups nothing was ever seen, because the API server refuses the StatefulSet or an operator ended
/// before it wrote it. Each is given out again: otherwise a group that can't be made would use up an id, and leave its budget, policy and
/// configuration behind, in every round. If the StatefulSet was written after all, its creation fails and it is looked at.
fn unborn(service: &Validated, observed: &Observed) -> BTreeSet<i32> {
    let existing = existing(service, observed);
    let remembered = observed.status.groups.iter();
    let remembered = remembered.filter(|group| was_never_seen(group));
    let ids = remembered.map(|group| group.id);
    // A status that somebody else wrote may hold anything.
    ids.filter(|id| (0..=MAX_GROUP_ID).contains(id) && !existing.contains(id))
        .collect()
}

/// No round has seen the group's StatefulSet so far: the first that does notes since when it isn't ready.
pub fn was_never_seen(group: &GroupStatus) -> bool {
    group.ready_since.is_none() && group.unready_since.is_none() && group.seen.is_empty()
}

/// Ids of which there is a StatefulSet, of whatever owner, or a pod.
fn existing(service: &Validated, observed: &Observed) -> BTreeSet<i32> {
    let sets = observed
        .children
        .iter()
        .filter(|child| child.reference.kind == Kind::StatefulSet)
        .filter_map(|set| service.names.group_id(&set.reference.name));
    let pods = observed.labelled_pods().filter_map(|pod| pod.group);
    sets.chain(pods).collect()
}

/// Keeps the list of resting ids: groups that were remembered and are gone begin to rest; rested ids are free again.
pub fn rest(
    service: &Validated,
    observed: &Observed,
    groups: &[Group],
    settings: &Settings,
    now: Timestamp,
    decisions: &mut Decisions,
) {
    let begun = decisions.create.iter().map(|(id, _)| *id);
    let exists: BTreeSet<i32> = groups.iter().map(|group| group.memory.id).chain(begun).collect();
    let lingers = existing(service, observed);
    let mut resting = observed.status.resting_ids.clone();
    for group in &observed.status.groups {
        if !exists.contains(&group.id) && !resting.iter().any(|r| r.id == group.id) {
            resting.push(RestingId {
                id: group.id,
                since: None,
            });
        }
    }
    for entry in &mut resting {
        // The rest begins when the last pod is gone. Pods of a node that doesn't answer linger for long.
        if lingers.contains(&entry.id) {
            entry.since = None;
        } else {
            entry.since.get_or_insert(Time(now));
        }
    }
    let due = |entry: &RestingId| {
        let since = entry.since.as_ref()?.0;
        Some(since.saturating_add(settings.id_rest).unwrap_or(Timestamp::MAX))
    };
    resting.retain(|entry| due(entry).is_none_or(|due| now < due) && !exists.contains(&entry.id));
    resting.sort_by_key(|entry| (due(entry).unwrap_or(Timestamp::MAX), entry.id));
    let excess = resting.len().saturating_sub(MAX_RESTING);
    resting.drain(..excess);
    if let Some(next) = resting.iter().find_map(due) {
        decisions.look_at(next);
    }
    resting.sort_by_key(|entry| entry.id);
    decisions.resting = resting;
}
