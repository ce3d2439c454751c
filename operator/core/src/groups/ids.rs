//! Which numbers groups get.
//!
//! Ids are given out, not dense: a surge takes a free one and a finished group gives its own back, so any group can be the
//! one that leaves. An id rests after its group is gone, because names, connections and certificates of the old group live
//! on in caches for a while.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kvasir_operator_api::RestingId;
use kvasir_operator_api::names::MAX_GROUP_ID;

use super::Decisions;
use super::view::Group;
use crate::child::Kind;
use crate::observed::Observed;
use crate::settings::Settings;
use crate::validate::Validated;

/// Most ids that rest at once; with more the oldest are let go early.
const MAX_RESTING: usize = 256;

/// The ids that are free, lowest first. Nothing of an earlier group is left: no StatefulSet (of whatever owner), no pod, no
/// memory, and it has rested.
pub fn free<'a>(service: &'a Validated, observed: &'a Observed) -> impl Iterator<Item = i32> + 'a {
    let taken = taken(service, observed);
    (0..=MAX_GROUP_ID).filter(move |id| !taken.contains(id))
}

fn taken(service: &Validated, observed: &Observed) -> BTreeSet<i32> {
    let sets = observed
        .children
        .iter()
        .filter(|child| child.reference.kind == Kind::StatefulSet)
        .filter_map(|set| service.names.group_id(&set.reference.name));
    let pods = observed.pods.iter().filter_map(|pod| pod.group);
    let remembered = observed.status.groups.iter().map(|group| group.id);
    let resting = observed.status.resting_ids.iter().map(|resting| resting.id);
    sets.chain(pods).chain(remembered).chain(resting).collect()
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
    let exists: BTreeSet<i32> = groups.iter().map(|group| group.memory.id).collect();
    let lingers: BTreeSet<i32> = observed
        .children
        .iter()
        .filter(|child| child.reference.kind == Kind::StatefulSet)
        .filter_map(|set| service.names.group_id(&set.reference.name))
        .chain(observed.pods.iter().filter_map(|pod| pod.group))
        .collect();
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
