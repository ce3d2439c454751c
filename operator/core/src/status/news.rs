//! What of a new status people should be told: what turned bad and isn't told where it was decided, and that all is well.
//!
//! A status says how things are, and events say that they changed. A reason that comes and goes is told each time, one that stays is told
//! once, by whichever operator saw it first: what was told is what the last status says.

use kvasir_operator_api::{ConditionType, InferenceServiceStatus, Reason};

use crate::groups::Event;

/// Reasons that are worth an event when they appear, by condition. Failed ranks, lost nodes, used up budgets and failed rollouts are told by
/// [`groups`](crate::groups) with more than a condition knows; a gateway without engines is a consequence.
const TOLD: [(ConditionType, &[Reason]); 8] = [
    (
        ConditionType::Accepted,
        &[
            Reason::InvalidTopology,
            Reason::UnsupportedSource,
            Reason::Unsupported,
            Reason::InvalidSpec,
            Reason::AnonymousNotAllowed,
            Reason::OverrideForbidden,
            Reason::NameCollision,
            Reason::QuotaExceeded,
            Reason::Forbidden,
        ],
    ),
    (
        ConditionType::ModelReady,
        &[
            Reason::PullFailed,
            Reason::Unauthorized,
            Reason::DigestMismatch,
            Reason::NoSpace,
            Reason::SourceNotFound,
            Reason::LoadFailed,
        ],
    ),
    (
        ConditionType::EnginesReady,
        &[
            Reason::InsufficientCapacity,
            Reason::SchedulingGated,
            Reason::ImagePullFailed,
            Reason::RendezvousTimeout,
            Reason::Forbidden,
        ],
    ),
    (
        ConditionType::GatewayReady,
        &[Reason::RouteNotAccepted, Reason::NoSharedGateway],
    ),
    (
        ConditionType::NetworkSecured,
        &[Reason::PolicyApplyFailed, Reason::EnforcementUnverified],
    ),
    (
        ConditionType::CertificatesReady,
        &[Reason::IssueFailed, Reason::ExpiringSoon],
    ),
    (
        ConditionType::Degraded,
        &[Reason::RankFlapping, Reason::ForeignPods],
    ),
    (ConditionType::Ready, &[Reason::AllComponentsReady]),
];

/// What to tell of the step from one status to the next.
pub fn news(before: &InferenceServiceStatus, after: &InferenceServiceStatus) -> Vec<Event> {
    let mut all = Vec::new();
    for (kind, reasons) in TOLD {
        let (was, Some(is)) = (before.condition(kind), after.condition(kind)) else {
            continue;
        };
        let is_new = was.is_none_or(|was| was.reason != is.reason);
        let told = reasons.iter().find(|reason| reason.as_str() == is.reason);
        if let Some(reason) = told.filter(|_| is_new) {
            all.push(Event {
                warning: kind != ConditionType::Ready,
                reason: *reason,
                message: is.message.clone(),
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    use super::*;

    fn status(kind: ConditionType, reason: Reason) -> InferenceServiceStatus {
        InferenceServiceStatus {
            conditions: vec![Condition {
                type_: kind.as_str().to_owned(),
                status: "False".to_owned(),
                reason: reason.as_str().to_owned(),
                message: "what to do".to_owned(),
                observed_generation: None,
                last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
            }],
            ..InferenceServiceStatus::default()
        }
    }

    #[test]
    fn what_turned_bad_is_told_once_and_each_time_that_it_turns() {
        let good = status(ConditionType::Accepted, Reason::Valid);
        let bad = status(ConditionType::Accepted, Reason::NameCollision);
        let [event] = &news(&good, &bad)[..] else {
            panic!("one event")
        };
        assert!(event.warning);
        assert_eq!(
            (event.reason, event.message.as_str()),
            (Reason::NameCollision, "what to do")
        );
        assert_eq!(news(&InferenceServiceStatus::default(), &bad).len(), 1);
        assert!(news(&bad, &bad).is_empty() && news(&bad, &good).is_empty());
    }

    #[test]
    fn that_a_service_is_ready_is_told_and_is_no_warning() {
        let waits = status(ConditionType::Ready, Reason::Reconciling);
        let ready = status(ConditionType::Ready, Reason::AllComponentsReady);
        let told = news(&waits, &ready);
        assert_eq!(told.len(), 1);
        assert!(!told[0].warning && news(&ready, &ready).is_empty());
    }

    #[test]
    fn a_reason_of_one_condition_says_nothing_of_another() {
        let engines = status(ConditionType::EnginesReady, Reason::ScaledToZero);
        let suspended = status(ConditionType::Ready, Reason::Suspended);
        assert!(news(&InferenceServiceStatus::default(), &engines).is_empty());
        assert!(news(&InferenceServiceStatus::default(), &suspended).is_empty());
    }
}
