//! The laws of the operator, as properties over random histories of an adversarial cluster.

use crate::fake::{self, Fake};
use jiff::SignedDuration;
use kvasir_operator_api::{Gang, NameRef, labels};
use kvasir_operator_core::child::{Kind, Live, ObjectRef};
use kvasir_operator_core::observed::{NodeView, PodView};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

/// What may happen.
#[derive(Clone, Debug)]
enum Act {
    Reconcile,
    Tick(i64),
    Scale(i32),
    Roll(u8),
    Suspend(bool),
    DeleteObject(Index),
    EditObject(Index),
    DeletePod(Index),
    FailPod(Index),
    Cordon(Index, bool),
    LoseNode(Index),
    NodeBack(Index),
    Snapshot,
    ReconcileStale,
    LoseStatus,
    ForgetWrites,
    /// The spec is edited so that it is refused, or mended.
    BreakSpec(bool),
    /// So many other services ask for our gateway.
    Guests(u8),
    /// We ask for another one's gateway, which is there or isn't, or have our own.
    Behind(Option<bool>),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Reconcile),
        6 => (1..60i64).prop_map(Act::Tick),
        2 => (0..4i32).prop_map(Act::Scale),
        2 => (0..4u8).prop_map(Act::Roll),
        1 => any::<bool>().prop_map(Act::Suspend),
        2 => any::<Index>().prop_map(Act::DeleteObject),
        2 => any::<Index>().prop_map(Act::EditObject),
        2 => any::<Index>().prop_map(Act::DeletePod),
        2 => any::<Index>().prop_map(Act::FailPod),
        1 => (any::<Index>(), any::<bool>()).prop_map(|(i, on)| Act::Cordon(i, on)),
        1 => any::<Index>().prop_map(Act::LoseNode),
        1 => any::<Index>().prop_map(Act::NodeBack),
        1 => Just(Act::Snapshot),
        1 => Just(Act::ReconcileStale),
        1 => Just(Act::LoseStatus),
        1 => Just(Act::ForgetWrites),
        1 => any::<bool>().prop_map(Act::BreakSpec),
        1 => (0..4u8).prop_map(Act::Guests),
        1 => any::<Option<bool>>().prop_map(Act::Behind),
    ]
}

fn perform(fake: &mut Fake, act: &Act) {
    let node = |fake: &Fake, index: Index| {
        fake.nodes
            .keys()
            .nth(index.index(fake.nodes.len()))
            .unwrap()
            .clone()
    };
    match act {
        Act::Reconcile => drop(fake.reconcile()),
        Act::Tick(seconds) => fake.tick(*seconds),
        Act::Scale(replicas) => fake.edit(|spec| spec.replicas = *replicas),
        Act::Roll(revision) => fake.roll(&revision.to_string()),
        Act::Suspend(on) => fake.edit(|spec| spec.suspend = *on),
        Act::DeleteObject(index) => {
            if let Some(reference) = own(fake, *index) {
                fake.objects.remove(&reference);
            }
        }
        Act::EditObject(index) => {
            if let Some(reference) = own(fake, *index) {
                edit(fake.objects.get_mut(&reference).unwrap());
            }
        }
        Act::DeletePod(index) => pod(fake, *index)
            .into_iter()
            .for_each(|name| fake.delete_pod(&name)),
        Act::FailPod(index) => pod(fake, *index)
            .into_iter()
            .for_each(|name| fake.fail_pod(&name)),
        Act::Cordon(index, on) => {
            let name = node(fake, *index);
            fake.nodes.get_mut(&name).unwrap().cordoned = *on;
        }
        Act::LoseNode(index) => {
            let (name, now) = (node(fake, *index), fake.now);
            fake.nodes
                .get_mut(&name)
                .unwrap()
                .not_ready_since
                .get_or_insert(now);
        }
        Act::NodeBack(index) => {
            let name = node(fake, *index);
            fake.nodes.get_mut(&name).unwrap().not_ready_since = None;
        }
        Act::Snapshot => fake.snapshot(),
        Act::ReconcileStale => fake.reconcile_stale(),
        Act::LoseStatus => fake.edit(|_| ()),
        Act::ForgetWrites => fake.restart_operator(),
        Act::BreakSpec(on) => {
            fake.edit(|spec| spec.scheduling.gang = if *on { Gang::Volcano } else { Gang::None });
        }
        Act::Guests(number) => guests(fake, *number),
        Act::Behind(host) => behind(fake, *host),
    }
    if matches!(act, Act::LoseStatus) {
        fake.service.status = None;
    }
}

fn guests(fake: &mut Fake, number: u8) {
    fake.others
        .retain(|other| other.metadata.name.as_deref() == Some("host"));
    let guests = (0..number).map(|i| fake::other(&format!("guest-{i}"), i.into(), fake::behind("chat")));
    fake.others.extend(guests);
}

fn behind(fake: &mut Fake, host: Option<bool>) {
    fake.others
        .retain(|other| other.metadata.name.as_deref() != Some("host"));
    if host == Some(true) {
        fake.others.push(fake::other("host", 0, json!({})));
    }
    fake.host = host.filter(|is_there| *is_there).map(|_| (2, true));
    fake.edit(|spec| {
        spec.gateway.enabled = host.is_none();
        spec.gateway.gateway_ref = host.map(|_| NameRef {
            name: "host".to_owned(),
        });
    });
}

fn own(fake: &Fake, index: Index) -> Option<ObjectRef> {
    let own: Vec<_> = fake
        .objects
        .values()
        .filter(|live| live.is_owned_by(fake::UID))
        .collect();
    (!own.is_empty()).then(|| own[index.index(own.len())].reference.clone())
}

fn pod(fake: &Fake, index: Index) -> Option<String> {
    (!fake.pods.is_empty()).then(|| {
        fake.pods
            .keys()
            .nth(index.index(fake.pods.len()))
            .unwrap()
            .clone()
    })
}

/// Somebody changes an object with kubectl.
fn edit(live: &mut Live) {
    match live.reference.kind {
        Kind::StatefulSet | Kind::Deployment => live.object["spec"]["replicas"] = json!(7),
        Kind::ConfigMap => live.object["data"] = json!({ "other": "value" }),
        Kind::NetworkPolicy => live.object["spec"]["ingress"] = json!([{}]),
        // The data of a ControllerRevision is immutable.
        Kind::ControllerRevision => {}
        _ => live.object["metadata"]["labels"][labels::MANAGED_BY] = json!("somebody"),
    }
    *live = Live::new(live.reference.kind, live.object.take()).unwrap();
}

/// Objects that look like ours and aren't.
fn foreign(fake: &mut Fake) -> Vec<Live> {
    let mut all = Vec::new();
    for (kind, name) in [
        (Kind::ConfigMap, "chat-notes"),
        (Kind::StatefulSet, "chat-g9"),
        (Kind::Secret, "chat-keys"),
    ] {
        let object = json!({
            "metadata": { "name": name, "namespace": "team", "uid": format!("foreign-{name}"),
                "labels": { labels::SERVICE: "chat", labels::MANAGED_BY: "kvasir" } },
            "spec": { "replicas": 0 },
        });
        let live = Live::new(kind, object).unwrap();
        fake.objects.insert(live.reference.clone(), live.clone());
        all.push(live);
    }
    for (name, group) in [
        ("notes-0", Some(0)),
        ("notes-1", Some(1)),
        ("notes-gateway", None),
    ] {
        fake.intrude(PodView {
            name: name.to_owned(),
            group,
            is_gateway: group.is_none(),
            loading: true,
            ..PodView::default()
        });
    }
    all
}

/// Everything that a law asks for once nothing happens any more.
fn assert_fixed_point(fake: &mut Fake, others: &[Live]) {
    for node in fake.nodes.values_mut() {
        *node = NodeView::default();
    }
    if fake.service.spec.scheduling.gang != Gang::None {
        // What runs comes to rest too.
        fake.settle();
        fake.edit(|spec| spec.scheduling.gang = Gang::None);
    }
    fake.settle();
    let wanted = if fake.service.spec.suspend {
        0
    } else {
        fake.service.spec.replicas
    };
    let status = fake.status();
    assert_eq!(status.replicas, wanted, "{status:#?}");
    assert_eq!(status.available_replicas, wanted);
    assert_eq!(status.updated_replicas, wanted);
    assert_eq!(fake.sets().len() as i32, wanted + 1, "with the foreign one");
    for live in others {
        assert_eq!(fake.objects.get(&live.reference), Some(live));
    }
    for pod in &fake.observe().foreign_pods {
        assert!(pod.loading && pod.told.is_none(), "{} was touched", pod.name);
    }
    if fake.service.spec.gateway.gateway_ref.is_some() {
        let gateways = fake.objects.values().filter(|live| live.is_owned_by(fake::UID));
        let mut gateways = gateways.filter(|live| live.reference.name.starts_with("chat-gateway"));
        assert_eq!(gateways.next(), None, "a gateway that nobody wants");
    }
    let before = fake.writes;
    assert!(fake.reconcile().is_empty());
    assert_eq!(fake.writes, before, "a write at rest");
    for live in fake.objects.values().filter(|live| live.is_owned_by(fake::UID)) {
        let replicas = &live.object["spec"]["replicas"];
        assert!(replicas != &json!(7), "{} keeps an edit", live.reference);
    }
}

#[test]
fn whichever_object_is_edited_after_the_first_round_is_set_back() {
    let history = |edited: Option<usize>| {
        let mut fake = Fake::new(json!({ "replicas": 2, "restartPolicy": { "maxGroupRestarts": 100 } }));
        let others = foreign(&mut fake);
        fake.reconcile();
        let own = |live: &&Live| live.is_owned_by(fake::UID);
        let own: Vec<_> = fake
            .objects
            .values()
            .filter(own)
            .map(|live| live.reference.clone())
            .collect();
        if let Some(edited) = edited {
            eprintln!("edited: {}", own[edited]);
            edit(fake.objects.get_mut(&own[edited]).unwrap());
        }
        assert_fixed_point(&mut fake, &others);
        own.len()
    };
    for edited in 0..history(None) {
        history(Some(edited));
    }
}

/// So many cases, unless PROPTEST_CASES asks for another number.
#[expect(
    clippy::disallowed_methods,
    reason = "the crate reads no environment, its tests do"
)]
fn config(cases: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let is_asked = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig {
        cases: if is_asked { asked.cases } else { cases },
        max_shrink_iters: 400,
        ..asked
    }
}

proptest! {
    #![proptest_config(config(32))]

    /// Whatever happened, when it stops happening the service reaches a fixed point: the wanted number of groups of the
    /// wanted revision, every edit undone, and not one further write.
    #[test]
    fn after_any_history_a_fixed_point_is_reached(acts in prop::collection::vec(act(), 1..60), replicas in 0..4i32) {
        let mut fake = Fake::new(json!({ "replicas": replicas, "restartPolicy": { "maxGroupRestarts": 100 } }));
        let others = foreign(&mut fake);
        for act in &acts {
            perform(&mut fake, act);
        }
        assert_fixed_point(&mut fake, &others);
    }
}

proptest! {
    #![proptest_config(config(10))]

    /// While only the spec changes and pods start as they should, no rollout or scaling ever leaves fewer groups serving
    /// than are wanted, as long as that many served before.
    #[test]
    fn rollouts_never_take_a_serving_group_too_many(rolls in prop::collection::vec((0..6u8, 1..40u32), 1..8), replicas in 1..4i32, surge in 1..3i32) {
        let mut fake = Fake::new(json!({ "replicas": replicas, "rollout": { "maxSurge": surge, "autoRollback": true } }));
        fake.broken.insert("5".to_owned());
        fake.settle();
        for (revision, rounds) in rolls {
            fake.roll(&revision.to_string());
            for _ in 0..rounds {
                fake.reconcile();
                fake.tick(5);
                prop_assert!(fake.serving() >= replicas as usize, "{} of {}: {:#?}", fake.serving(), replicas, fake.status());
                prop_assert!(fake.sets().len() <= (replicas + surge) as usize);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(32))]

    /// However old the operator's reads are, one id never names two groups.
    #[test]
    fn stale_reads_never_make_a_second_group_of_one_id(acts in prop::collection::vec(act(), 1..80)) {
        let mut fake = Fake::new(json!({ "replicas": 2 }));
        for act in &acts {
            // The fake cluster itself refuses an id whose pods are still alive.
            perform(&mut fake, act);
            let mut ids: Vec<_> = fake.sets().iter().filter_map(|s| s.label(labels::GROUP).map(str::to_owned)).collect();
            let number = ids.len();
            ids.sort();
            ids.dedup();
            prop_assert_eq!(ids.len(), number);
        }
    }
}

proptest! {
    #![proptest_config(config(32))]

    /// Nothing is written because time goes by, before the moment that the operator asked to look again at.
    #[test]
    fn time_alone_writes_nothing(acts in prop::collection::vec(act(), 1..60)) {
        let mut fake = Fake::new(json!({ "replicas": 2 }));
        foreign(&mut fake);
        for act in &acts {
            perform(&mut fake, act);
            fake.reconcile();
            let plan = fake.reconcile();
            let later = fake.now + SignedDuration::from_secs(1);
            if plan.is_empty() && plan.look_again > later {
                let before = (fake.writes, fake.status());
                fake.now = later;
                fake.reconcile();
                prop_assert_eq!((fake.writes, fake.status()), before);
            }
        }
    }
}
