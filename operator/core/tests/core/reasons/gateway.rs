//! What is said of the gateway, of the network's policies and of certificates.

use jiff::SignedDuration;
use kvasir_operator_api::ConditionType::{CertificatesReady, GatewayReady, NetworkSecured};
use kvasir_operator_api::Reason;
use kvasir_operator_core::build::route::Taken;
use kvasir_operator_core::child::Kind;
use kvasir_operator_core::enforcement::Enforcement;
use kvasir_operator_core::observed::FailedWrite;
use serde_json::json;

use super::{Row, at_rest, first, seen, settled};
use crate::fake::{Fake, behind, other};

pub(super) const ROWS: &[Row] = &[
    (GatewayReady, "True", Reason::Available, || settled(json!({}))),
    (GatewayReady, "True", Reason::Disabled, || {
        first(json!({ "gateway": { "enabled": false } }))
    }),
    (GatewayReady, "False", Reason::DeploymentUnavailable, || {
        first(json!({}))
    }),
    (GatewayReady, "False", Reason::NoReadyGroups, || {
        settled(json!({ "suspend": true }))
    }),
    (GatewayReady, "False", Reason::RouteNotAccepted, || {
        seen(&guest(), |observed| {
            let host = observed.host.as_mut().unwrap();
            host.route = Taken::No("Gateway public: NotAllowedByListeners".to_owned());
        })
    }),
    (GatewayReady, "False", Reason::NoSharedGateway, || {
        first(behind("nobody"))
    }),
    (GatewayReady, "Unknown", Reason::Reconciling, || {
        seen(&guest(), |observed| {
            observed.host.as_mut().unwrap().lists_us = false;
        })
    }),
    (NetworkSecured, "True", Reason::PoliciesApplied, || {
        settled(json!({}))
    }),
    (NetworkSecured, "Unknown", Reason::ProbePending, || {
        first(json!({}))
    }),
    (NetworkSecured, "False", Reason::Open, || {
        first(json!({ "network": { "mode": "Open" } }))
    }),
    (NetworkSecured, "False", Reason::PolicyApplyFailed, || {
        let mut fake = Fake::new(json!({}));
        let answer = FailedWrite {
            foreign: false,
            code: Some(500),
            why: "etcdserver: request timed out".to_owned(),
        };
        fake.refuses = Some((Kind::NetworkPolicy, answer));
        fake.reconcile();
        fake.reconcile();
        fake.status()
    }),
    (NetworkSecured, "False", Reason::EnforcementUnverified, || {
        seen(&at_rest(json!({})), |observed| {
            let reached = vec!["port 50051 (grpc) of pod chat-g0-0".to_owned()];
            observed.enforcement = Some(Enforcement::Ignored { reached });
        })
    }),
    (CertificatesReady, "True", Reason::Issued, || settled(json!({}))),
    (CertificatesReady, "Unknown", Reason::Reconciling, || {
        seen(&at_rest(json!({})), |observed| observed.certificates = None)
    }),
    (CertificatesReady, "False", Reason::IssueFailed, || {
        seen(&at_rest(json!({})), |observed| {
            observed.certificates.as_mut().unwrap().missing = 1;
        })
    }),
    (CertificatesReady, "False", Reason::ExpiringSoon, || {
        let fake = at_rest(json!({}));
        let end = |minutes| fake.now + SignedDuration::from_hours(6) + SignedDuration::from_mins(minutes);
        let with = |end| {
            seen(&fake, |observed| {
                observed.certificates.as_mut().unwrap().first_end = end;
            })
        };
        // A quarter of a day is left, and no longer.
        let just = with(end(0));
        assert_eq!(just.condition(CertificatesReady).unwrap().status, "True");
        with(end(-1))
    }),
];

/// A service that is served by another one's gateway.
fn guest() -> Fake {
    let mut fake = Fake::new(behind("host"));
    fake.others = vec![other("host", 0, json!({}))];
    fake.host = Some((2, true));
    fake.settle();
    fake
}
