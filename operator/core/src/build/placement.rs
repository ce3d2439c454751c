//! Where engine pods go.

use k8s_openapi::api::core::v1::{
    Affinity, PodAffinity, PodAffinityTerm, PodAntiAffinity, Toleration, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kvasir_operator_api::{
    PlacementSpec, SchedulingSpec, TaintEffect, TolerationOperator, WhenUnsatisfiable, labels,
};

use super::meta;
use crate::validate::Validated;

/// The user's tolerations.
pub fn tolerations(scheduling: &SchedulingSpec) -> Option<Vec<Toleration>> {
    let all = scheduling.tolerations.iter().map(|t| Toleration {
        key: t.key.clone(),
        operator: Some(
            match t.operator {
                TolerationOperator::Equal => "Equal",
                TolerationOperator::Exists => "Exists",
            }
            .to_owned(),
        ),
        value: t.value.clone(),
        effect: t.effect.map(|effect| {
            match effect {
                TaintEffect::NoSchedule => "NoSchedule",
                TaintEffect::PreferNoSchedule => "PreferNoSchedule",
                TaintEffect::NoExecute => "NoExecute",
            }
            .to_owned()
        }),
        toleration_seconds: t.toleration_seconds,
    });
    let all: Vec<_> = all.collect();
    (!all.is_empty()).then_some(all)
}

/// Seconds that a gateway stays on a node that doesn't answer.
const ABSENCE_SECONDS: i64 = 30;

/// Tolerations of a gateway. The API server's default leaves pods on a lost node for five minutes, in which a service with one gateway has no
/// door; a new gateway costs nothing but seconds.
pub fn short_absence() -> Vec<Toleration> {
    ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
        .map(|key| Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            toleration_seconds: Some(ABSENCE_SECONDS),
            value: None,
        })
        .to_vec()
}

/// Spreads groups: only leading pods are counted, one per group.
pub fn spread(service: &Validated, scheduling: &SchedulingSpec) -> Option<Vec<TopologySpreadConstraint>> {
    let mut leaders = labels::of_component(service.names.service(), labels::ENGINE);
    leaders.insert(labels::POD_INDEX.to_owned(), "0".to_owned());
    let all = scheduling
        .topology_spread_constraints
        .iter()
        .map(|constraint| TopologySpreadConstraint {
            max_skew: constraint.max_skew,
            topology_key: constraint.topology_key.clone(),
            when_unsatisfiable: match constraint.when_unsatisfiable {
                WhenUnsatisfiable::DoNotSchedule => "DoNotSchedule",
                WhenUnsatisfiable::ScheduleAnyway => "ScheduleAnyway",
            }
            .to_owned(),
            label_selector: Some(meta::selector(leaders.clone())),
            ..TopologySpreadConstraint::default()
        });
    let all: Vec<_> = all.collect();
    (!all.is_empty()).then_some(all)
}

/// Packs a group into one domain, and keeps other groups of the service out of it where that is wanted.
pub fn affinity(service: &Validated, id: i32, placement: &PlacementSpec) -> Affinity {
    let together = PodAffinityTerm {
        label_selector: Some(meta::selector(labels::of_group(service.names.service(), id))),
        topology_key: placement.pack_topology_key.clone(),
        ..PodAffinityTerm::default()
    };
    let mut affinity = PodAffinity::default();
    if placement.required {
        affinity.required_during_scheduling_ignored_during_execution = Some(vec![together]);
    } else {
        affinity.preferred_during_scheduling_ignored_during_execution = Some(vec![WeightedPodAffinityTerm {
            weight: 100,
            pod_affinity_term: together,
        }]);
    }
    Affinity {
        pod_affinity: Some(affinity),
        pod_anti_affinity: placement.exclusive.then(|| PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: Some(vec![PodAffinityTerm {
                label_selector: Some(other_groups(service, id)),
                topology_key: placement.pack_topology_key.clone(),
                ..PodAffinityTerm::default()
            }]),
            ..PodAntiAffinity::default()
        }),
        node_affinity: None,
    }
}

fn other_groups(service: &Validated, id: i32) -> LabelSelector {
    LabelSelector {
        match_labels: Some(labels::of_component(service.names.service(), labels::ENGINE)),
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: labels::GROUP.to_owned(),
            operator: "NotIn".to_owned(),
            values: Some(vec![id.to_string()]),
        }]),
    }
}
