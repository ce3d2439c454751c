//! Disruption budgets.
//!
//! One per group with disjoint selectors, because two budgets over one pod make every eviction fail. A group is closed
//! (`maxUnavailable: 0`) or open as a whole (`100%`): a drain takes whole groups and never half of one.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kvasir_operator_api::labels;

use super::meta;
use crate::child::{Child, Kind};
use crate::validate::Validated;

/// A group's budget.
pub fn group(service: &Validated, id: i32, open: bool) -> Child {
    let name = service.names.group(id);
    let object = PodDisruptionBudget {
        metadata: meta::of_group(service, id, &name),
        spec: Some(PodDisruptionBudgetSpec {
            selector: Some(meta::selector(labels::of_group(service.names.service(), id))),
            max_unavailable: Some(if open {
                IntOrString::String("100%".to_owned())
            } else {
                IntOrString::Int(0)
            }),
            // A pod that isn't ready serves nobody and never holds up a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    };
    Child::new(Kind::PodDisruptionBudget, &name, &object)
}

/// The gateway's budget: one pod at a time.
pub fn gateway(service: &Validated) -> Child {
    let name = service.names.gateway();
    let object = PodDisruptionBudget {
        metadata: meta::of_service(service, &name),
        spec: Some(PodDisruptionBudgetSpec {
            selector: Some(meta::selector(labels::of_component(
                service.names.service(),
                labels::GATEWAY,
            ))),
            max_unavailable: Some(IntOrString::Int(1)),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    };
    Child::new(Kind::PodDisruptionBudget, &name, &object)
}
