//! What is said of the service as a whole: its spec, its progress, and what needs a look.

use kvasir_operator_api::ConditionType::{self, Accepted, AutoscalingActive, Degraded, Progressing};
use kvasir_operator_api::{InferenceServiceStatus, Reason};
use kvasir_operator_core::child::{Kind, ObjectRef};
use kvasir_operator_core::observed::{FailedWrite, PodView, Waiting};
use serde_json::{Value, json};

use super::{Row, after, at_rest, broken, first, refused, seen, settled};
use crate::fake::Fake;
use crate::story::run;

const READY: ConditionType = ConditionType::Ready;

pub(super) const ROWS: &[Row] = &[
    (READY, "True", Reason::AllComponentsReady, || settled(json!({}))),
    (READY, "Unknown", Reason::Reconciling, || {
        first(json!({ "gateway": { "enabled": false } }))
    }),
    (READY, "False", Reason::NotAccepted, || refused(local())),
    (READY, "False", Reason::CertificatesNotReady, || {
        seen(&at_rest(json!({})), |observed| {
            let view = observed.certificates.as_mut().unwrap();
            view.problems.push("Secret given: it has no tls.key".to_owned());
        })
    }),
    (READY, "False", Reason::ModelNotReady, || broken(65, "")),
    (READY, "False", Reason::EnginesNotReady, || {
        after(json!({}), |fake| fake.fail_pod("chat-g0-0"))
    }),
    (READY, "False", Reason::GatewayNotReady, || {
        after(json!({}), |fake| {
            for pod in fake.pods.values_mut().filter(|pod| pod.view.is_gateway) {
                pod.view.ready = false;
            }
        })
    }),
    (READY, "False", Reason::Suspended, || {
        settled(json!({ "suspend": true }))
    }),
    (Accepted, "True", Reason::Valid, || first(json!({}))),
    (Accepted, "False", Reason::InvalidTopology, || {
        refused(json!({ "topology": { "tensor": 3, "devicesPerPod": 2 } }))
    }),
    (Accepted, "False", Reason::UnsupportedSource, || refused(local())),
    (Accepted, "False", Reason::Unsupported, || {
        refused(json!({ "scheduling": { "gang": "Volcano" } }))
    }),
    (Accepted, "False", Reason::InvalidSpec, || {
        refused(json!({ "tls": { "secretName": "given" } }))
    }),
    (Accepted, "False", Reason::AnonymousNotAllowed, || {
        refused(json!({ "gateway": { "auth": { "mode": "None" } } }))
    }),
    (Accepted, "False", Reason::OverrideForbidden, || {
        refused(json!({ "podOverrides": { "spec": { "hostNetwork": true } } }))
    }),
    (Accepted, "False", Reason::NameCollision, || {
        after(json!({}), |fake| {
            let secret = ObjectRef {
                kind: Kind::Secret,
                name: "chat-gateway-tls".to_owned(),
            };
            let foreign = FailedWrite {
                foreign: true,
                code: None,
                why: "it belongs to somebody else".to_owned(),
            };
            fake.failed_writes.insert(secret, foreign);
        })
    }),
    (Accepted, "False", Reason::QuotaExceeded, || {
        forbidden(Kind::StatefulSet, "exceeded quota: small")
    }),
    (Accepted, "False", Reason::Forbidden, || {
        forbidden(Kind::StatefulSet, "statefulsets.apps is forbidden")
    }),
    (AutoscalingActive, "False", Reason::Disabled, || first(json!({}))),
    (Progressing, "True", Reason::NewRevision, || {
        after(json!({}), |fake| fake.roll("next"))
    }),
    (Progressing, "True", Reason::Scaling, || {
        after(json!({}), |fake| fake.edit(|spec| spec.replicas = 2))
    }),
    (Progressing, "True", Reason::CanaryPaused, || {
        let canary = json!({ "weightPercent": 10, "pauseSeconds": 0 });
        let mut fake = at_rest(json!({ "rollout": { "canary": canary } }));
        fake.roll("next");
        fake.settle();
        fake.status()
    }),
    (Progressing, "True", Reason::Reconciling, || {
        seen(&at_rest(json!({})), |observed| {
            observed.handover.waiting = Some(Waiting::Secrets);
        })
    }),
    (Progressing, "False", Reason::Complete, || settled(json!({}))),
    (Progressing, "False", Reason::DeadlineExceeded, || {
        // Its ranks wait for each other; nothing was ever better.
        let mut fake = Fake::new(json!({ "rollout": { "progressDeadlineSeconds": 60 } }));
        fake.parted = true;
        for _ in 0..15 {
            fake.reconcile();
            fake.tick(5);
        }
        fake.status()
    }),
    (Progressing, "False", Reason::RolledBack, || {
        let mut fake = at_rest(json!({}));
        fake.broken.insert("next".to_owned());
        fake.broken_exit_code = 71;
        fake.roll("next");
        run(&mut fake, 1, |fake| {
            fake.condition("Progressing").1 != "NewRevision"
        });
        fake.status()
    }),
    (Degraded, "True", Reason::ForeignPods, || {
        seen(&at_rest(json!({})), |observed| {
            observed.foreign_pods.push(PodView::default());
        })
    }),
    (Degraded, "False", Reason::AsExpected, || settled(json!({}))),
    (Degraded, "True", Reason::PartialGroups, || {
        after(json!({ "replicas": 2 }), |fake| fake.fail_pod("chat-g1-0"))
    }),
    (Degraded, "True", Reason::RankFlapping, || {
        after(json!({}), |fake| {
            for _ in 0..3 {
                fake.fail_pod("chat-g0-0");
                fake.reconcile();
                fake.tick(1);
            }
        })
    }),
    (Degraded, "True", Reason::NodeLost, || {
        after(json!({}), |fake| {
            let node = fake.status().groups[0].node.clone().unwrap();
            fake.nodes.get_mut(&node).unwrap().not_ready_since = Some(fake.now);
            fake.tick(90);
        })
    }),
    (Degraded, "True", Reason::GroupRestartBudgetExhausted, || {
        let mut fake = Fake::new(json!({ "restartPolicy": { "maxGroupRestarts": 0 } }));
        fake.broken.insert(String::new());
        for _ in 0..200 {
            fake.reconcile();
            fake.tick(5);
        }
        fake.status()
    }),
];

/// A model in a folder of the node, which only a flag of the operator allows.
fn local() -> Value {
    json!({ "model": { "source": { "local": { "path": "/models" } } } })
}

/// An object of this kind may not be made.
fn forbidden(kind: Kind, why: &str) -> InferenceServiceStatus {
    let mut fake = Fake::new(json!({}));
    let answer = FailedWrite {
        foreign: false,
        code: Some(403),
        why: why.to_owned(),
    };
    fake.refuses = Some((kind, answer));
    fake.reconcile();
    fake.reconcile();
    fake.status()
}
