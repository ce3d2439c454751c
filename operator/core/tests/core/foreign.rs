//! Pods and objects that look like the service's and aren't.

use kvasir_operator_api::{ConditionType, labels};
use kvasir_operator_core::child::{Kind, Live, ObjectRef};
use kvasir_operator_core::observed::{Controller, HostView, PodView};
use kvasir_operator_core::validate;
use serde_json::json;

use crate::fake::{Fake, UID, behind, other};
use crate::story::ready;

fn message(fake: &Fake, kind: ConditionType) -> String {
    fake.status().condition(kind).unwrap().message.clone()
}

fn replica_set(name: &str) -> Controller {
    Controller {
        kind: "ReplicaSet".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
    }
}

/// An engine and a gateway as labels go, which load and were told nothing.
fn intruders() -> [PodView; 2] {
    let engine = PodView {
        name: "aa-0".to_owned(),
        group: Some(0),
        loading: true,
        ..PodView::default()
    };
    let gateway = PodView {
        name: "zz".to_owned(),
        is_gateway: true,
        controller: Some(replica_set("zz-1")),
        ..PodView::default()
    };
    [engine, gateway]
}

#[test]
fn pods_with_our_labels_are_told_once_and_neither_counted_nor_touched() {
    let mut fake = Fake::new(json!({}));
    fake.others = vec![other("guest", 0, behind("chat"))];
    fake.settle();
    let before = fake.status();
    for pod in intruders() {
        fake.intrude(pod);
    }
    let intruders: Vec<_> = fake.observe().foreign_pods;
    assert_eq!(intruders.len(), 2);
    let plan = fake.reconcile();
    assert!(plan.is_empty(), "{plan:#?}");
    assert_eq!(fake.observe().foreign_pods, intruders);
    assert_eq!(
        message(&fake, ConditionType::Degraded),
        "pods aa-0 (of nobody) and zz (of ReplicaSet zz-1) carry this service's labels and aren't its own: they count for nothing, but Services, \
         policies and budgets select them; delete them, or take the label kvasir.dev/service from them"
    );
    let mut after = fake.status();
    assert_eq!(fake.condition("Degraded").1, "ForeignPods");
    after.conditions.clone_from(&before.conditions);
    assert_eq!(after, before, "nothing else is another");
    let writes = fake.writes;
    fake.settle();
    assert_eq!(fake.writes, writes);
    fake.pods.remove("aa-0");
    fake.reconcile();
    assert!(message(&fake, ConditionType::Degraded).starts_with("pod zz (of ReplicaSet zz-1) carries"));
    fake.pods.remove("zz");
    fake.settle();
    assert_eq!(fake.condition("Degraded").1, "AsExpected");
}

#[test]
fn many_pods_with_our_labels_are_counted_beside_what_else_is_wrong() {
    let mut fake = ready(1);
    for i in 0..9 {
        let [engine, _] = intruders();
        fake.intrude(PodView {
            name: format!("aa-{i}"),
            ..engine
        });
    }
    fake.fail_pod("chat-g0-0");
    fake.reconcile();
    assert_eq!(fake.condition("Degraded").1, "PartialGroups");
    let message = message(&fake, ConditionType::Degraded);
    let said = "recover; pods aa-0 (of nobody), aa-1 (of nobody), aa-2 (of nobody) and 6 others carry";
    assert!(message.contains(said), "{message}");
}

#[test]
fn neither_part_is_ready_by_pods_of_others() {
    let mut fake = ready(1);
    let [engine, gateway] = intruders();
    for pod in fake.pods.values_mut() {
        pod.view.ready = false;
    }
    fake.intrude(engine);
    fake.intrude(gateway);
    fake.reconcile();
    assert_ne!(fake.condition("EnginesReady").0, "True");
    assert_eq!(fake.condition("GatewayReady").1, "DeploymentUnavailable");
    let status = fake.status();
    assert_eq!(status.gateway.unwrap().ready_replicas, 0);
    assert_eq!(status.groups[0].ready_pods, 0);
}

#[test]
fn an_id_whose_labels_a_foreign_pod_carries_is_given_to_no_group() {
    let mut fake = Fake::new(json!({}));
    let [engine, _] = intruders();
    fake.intrude(engine);
    fake.settle();
    let ids: Vec<i32> = fake.status().groups.iter().map(|group| group.id).collect();
    assert_eq!(ids, [1]);
    assert_eq!(fake.condition("Ready").0, "True");
}

#[test]
fn what_an_earlier_service_of_the_name_left_is_named_all_at_once() {
    let mut fake = ready(1);
    for name in ["chat-authority", "chat-gateway-salt"] {
        let object = json!({ "metadata": { "name": name, "uid": name } });
        let live = Live::new(Kind::Secret, object).unwrap();
        fake.objects.insert(live.reference.clone(), live);
    }
    for live in fake.objects.values_mut() {
        live.object["metadata"]["ownerReferences"] = json!([]);
    }
    fake.service.status = None;
    let of_service = |object: &&ObjectRef| !object.name.contains("g0");
    let left: Vec<ObjectRef> = fake.objects.keys().filter(of_service).cloned().collect();
    assert_eq!(left.len(), 19);
    fake.reconcile();
    assert_eq!(fake.condition("Accepted").1, "NameCollision");
    let accepted = message(&fake, ConditionType::Accepted);
    for object in left {
        assert!(accepted.contains(&object.to_string()), "{object}: {accepted}");
    }
    let ends = "exist and belong to somebody else: delete them or give the service another name";
    assert!(accepted.ends_with(ends), "{accepted}");
    assert!(
        message(&fake, ConditionType::Ready).ends_with(ends),
        "nothing is cut"
    );
    // Its engine is no group's of this service.
    assert_eq!(fake.condition("EnginesReady").0, "Unknown");
    assert!(message(&fake, ConditionType::Degraded).contains("chat-g0-0 (of StatefulSet chat-g0)"));
}

#[test]
fn a_guest_finds_nothing_at_a_host_that_was_made_again_beside_what_the_earlier_one_left() {
    let fake = Fake::new(json!({}));
    let host = validate(&other("host", 0, json!({})), &fake.settings).unwrap();
    let owned = |kind: Kind, name: &str, uid: &str| {
        let object = json!({ "metadata": {
            "name": name, "uid": name, "annotations": { labels::GUESTS: "chat", labels::FILE_HASH: "f" },
            "ownerReferences": [{ "uid": uid, "controller": true }],
        } });
        Live::new(kind, object).unwrap()
    };
    let pod = PodView {
        is_gateway: true,
        template_hash: Some("1".to_owned()),
        controller: Some(replica_set("host-gateway-1")),
        ready: true,
        told: Some("f".to_owned()),
        ..PodView::default()
    };
    let seen = |deployment: &str, file: &str| {
        let children = vec![
            owned(Kind::Deployment, "host-gateway", deployment),
            owned(Kind::ConfigMap, "host-gateway-config", file),
        ];
        let view = HostView::new(&host, "chat", children, [pod.clone()]);
        (view.ready_pods, view.lists_us, view.is_told)
    };
    assert_eq!(seen(&host.uid, &host.uid), (1, true, true));
    assert_eq!(seen(UID, &host.uid), (0, true, true));
    assert_eq!(seen(&host.uid, UID), (1, false, false));
}
