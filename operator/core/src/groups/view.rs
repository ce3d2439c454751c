//! A group as observation and memory show it together.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kvasir_operator_api::{GroupState, GroupStatus, labels};

use crate::child::{Kind, Live};
use crate::observed::{NodeView, Observed, PodView};
use crate::settings::Settings;
use crate::validate::Validated;

/// A group that exists.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What is remembered of it, brought up to date.
    pub memory: GroupStatus,
    /// Pods that exist, by ordinal.
    pub pods: Vec<PodView>,
    /// All its pods exist, none is leaving, and all are ready.
    pub ready: bool,
    /// When gateways know that it's ready, at the latest.
    pub joins: Timestamp,
    /// A node under it takes no new pods or evicts them.
    pub leaving: bool,
    /// A node under it doesn't answer, and its pods count as lost.
    pub lost: bool,
    /// Since when, or from when on if the node goes on not answering.
    pub lost_since: Option<Timestamp>,
    /// Requests that run, where it reports them.
    pub running: Option<u32>,
}

impl Group {
    /// It takes requests.
    pub fn is_available(&self) -> bool {
        self.ready && !self.memory.draining && !self.lost
    }

    /// It takes requests, and every gateway knows.
    pub fn has_joined(&self, now: Timestamp) -> bool {
        self.is_available() && now >= self.joins
    }

    /// It was never ready.
    pub fn is_unproven(&self) -> bool {
        self.memory.ready_since.is_none() && !self.ready
    }
}

/// All groups whose StatefulSet exists and isn't being deleted, by id.
pub fn groups(service: &Validated, observed: &Observed, settings: &Settings, now: Timestamp) -> Vec<Group> {
    let mut groups: Vec<_> = observed
        .children
        .iter()
        .filter(|child| child.reference.kind == Kind::StatefulSet && !child.is_deleting())
        .filter(|child| child.is_owned_by(&service.uid))
        .filter_map(|set| {
            let id = service.names.group_id(&set.reference.name)?;
            Some(group(id, set, service, observed, settings, now))
        })
        .collect();
    groups.sort_by_key(|group| group.memory.id);
    groups
}

fn group(
    id: i32,
    set: &Live,
    service: &Validated,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> Group {
    let wanted = set.object["spec"]["replicas"]
        .as_i64()
        .and_then(|n| i32::try_from(n).ok())
        .unwrap_or(1);
    // Pods above the wanted number are left of an edit of the StatefulSet and on their way out: they aren't ranks.
    let pods: Vec<PodView> = observed
        .pods_of(id)
        .into_iter()
        .filter(|pod| pod.ordinal < wanted)
        .cloned()
        .collect();
    let remembered = observed.status.groups.iter().find(|group| group.id == id);
    let mut memory = remembered.cloned().unwrap_or_default();
    memory.id = id;
    set.label(labels::REVISION)
        .unwrap_or_default()
        .clone_into(&mut memory.revision);
    memory.pods = wanted;
    memory.ready_pods =
        i32::try_from(pods.iter().filter(|p| p.ready && !p.deleting).count()).unwrap_or(i32::MAX);
    memory.leader_pod = service.names.pod(id, 0);
    memory.node = pods.first().and_then(|pod| pod.node.clone());
    let load = observed.loads.get(&id);
    memory.kv_usage_permille = load.map(|load| load.kv_usage_permille.into());
    memory.running_requests = load.map(|load| i32::try_from(load.running).unwrap_or(i32::MAX));
    let whole = i32::try_from(pods.len()) == Ok(wanted) && wanted > 0;
    let ready = whole && pods.iter().all(|p| p.ready && !p.deleting);
    let nodes: Vec<&NodeView> = pods
        .iter()
        .filter_map(|pod| observed.nodes.get(pod.node.as_ref()?))
        .collect();
    let leaving = nodes.iter().any(|node| node.is_leaving());
    let lost_since = nodes
        .iter()
        .filter_map(|node| node.lost_since(settings.node_lost_after))
        .min();
    memory.placed_since = placed_since(&pods, memory.placed_since.take(), now);
    memory.evacuating_since = match (leaving, memory.evacuating_since.take()) {
        (true, Some(since)) => Some(since),
        (true, None) => Some(Time(now)),
        (false, _) => None,
    };
    if ready {
        memory.ready_since.get_or_insert(Time(now));
        memory.unready_since = None;
    } else {
        memory.unready_since.get_or_insert(Time(now));
    }
    let since = memory.ready_since.as_ref().map_or(now, |since| since.0);
    let mut group = Group {
        joins: joins(id, since, observed, settings),
        memory,
        pods,
        ready,
        leaving,
        lost: lost_since.is_some_and(|since| now >= since),
        lost_since,
        running: load.map(|load| load.running),
    };
    group.memory.state = state(&group, whole);
    group
}

/// Since when all pods are where they can form a group; nothing while one lacks a node or an image.
fn placed_since(pods: &[PodView], before: Option<Time>, now: Timestamp) -> Option<Time> {
    let placed = !pods.is_empty() && pods.iter().all(PodView::is_placed);
    placed.then(|| before.unwrap_or(Time(now)))
}

/// When every gateway uses a group that has been ready since `since`: it knows of it by then, and believes its certificate.
fn joins(id: i32, since: Timestamp, observed: &Observed, settings: &Settings) -> Timestamp {
    let known = since.saturating_add(settings.join_time).unwrap_or(Timestamp::MAX);
    observed
        .handover
        .joins
        .get(&id)
        .map_or(known, |believed| known.max(*believed))
}

/// The state, but for Exhausted, which recovery decides.
fn state(group: &Group, whole: bool) -> GroupState {
    let memory = &group.memory;
    if memory.draining {
        GroupState::Draining
    } else if group.lost {
        GroupState::Lost
    } else if group.ready {
        GroupState::Ready
    } else if memory.state == GroupState::Exhausted {
        GroupState::Exhausted
    } else if memory.ready_since.is_some() || group.pods.iter().any(PodView::has_failed) {
        GroupState::Recovering
    } else if whole && group.pods.iter().all(|p| p.node.is_some()) {
        GroupState::Starting
    } else {
        GroupState::Pending
    }
}
