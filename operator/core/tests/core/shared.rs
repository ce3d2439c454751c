//! Services that share a gateway: who serves whom, what each side is told, and what happens when the other one comes, changes or goes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kvasir_config::gateway::{GatewayConfig, parse_gateway};
use kvasir_operator_api::{Gang, InferenceService, InferenceServiceSpec, NameRef, Reason};
use kvasir_operator_core::accepted::{Judgement, Last, judge};
use kvasir_operator_core::certificates::Subject;
use kvasir_operator_core::child::{Kind, Live, ObjectRef};
use kvasir_operator_core::{FieldError, Settings, identity, sharing, validate};
use serde_json::{Value, json};

use crate::fake::{Fake, accepted, behind, other};

fn with(mut spec: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        match spec[key].as_object_mut().zip(value.as_object()) {
            Some((inner, value)) => inner.extend(value.clone()),
            None => spec[key] = value.clone(),
        }
    }
    spec
}

/// Our service with these others.
fn host_of(others: Vec<InferenceService>) -> Fake {
    let mut fake = Fake::new(json!({}));
    fake.others = others;
    fake.settle();
    fake
}

/// Our service behind the gateway of `host`.
fn guest_of(host: Value) -> Fake {
    let mut fake = Fake::new(behind("host"));
    fake.others = vec![other("host", 0, host)];
    fake.host = Some((2, true));
    fake
}

fn child<'a>(fake: &'a Fake, kind: Kind, name: &str) -> Option<&'a Live> {
    fake.objects.get(&ObjectRef {
        kind,
        name: name.to_owned(),
    })
}

fn file(fake: &Fake) -> GatewayConfig {
    let map = child(fake, Kind::ConfigMap, "chat-gateway-config").unwrap();
    let text = map.object["data"]["gateway.yaml"].as_str().unwrap();
    parse_gateway(text).unwrap_or_else(|faults| panic!("{faults}\n{text}"))
}

fn models(fake: &Fake) -> Vec<Vec<String>> {
    let models = file(fake).models.into_iter();
    models.map(|model| model.served_model_names).collect()
}

/// What the gateway's pods are made of.
fn template(fake: &Fake) -> Value {
    let deployment = child(fake, Kind::Deployment, "chat-gateway").unwrap();
    deployment.object["spec"]["template"].clone()
}

fn message(fake: &Fake, kind: &str) -> String {
    let status = fake.status();
    let found = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
    found.message.clone()
}

/// What is wrong with our service among these others.
fn refusals(spec: Value, others: Vec<InferenceService>) -> Vec<FieldError> {
    let mut fake = Fake::new(spec);
    fake.others = others;
    fake.service.metadata.creation_timestamp = Some(Time(fake.now));
    fake.judge(&fake.service).unwrap_err()
}

#[test]
fn a_gateway_lists_the_models_of_its_guests_by_name_with_their_own_engines_routing_and_queue() {
    let spec = with(
        behind("chat"),
        &json!({
            "model": { "source": { "pvc": { "claimName": "models" } }, "name": "small", "aliases": ["tiny"] },
            "engine": { "ports": { "grpc": 50055 } },
            "gateway": {
                "routing": { "policy": "LeastKV", "prefixChars": 4000 },
                "limits": { "maxQueue": 7, "queueTimeoutSeconds": 9 },
            },
        }),
    );
    let fake = host_of(vec![
        other("zebra", 1, behind("chat")),
        other("ant", 2, spec),
        other("alone", 3, json!({})),
    ]);
    assert_eq!(models(&fake), [vec!["small", "tiny"], vec!["zebra"]]);
    let file = file(&fake);
    assert_eq!(file.served_model_names, ["chat"]);
    let ant = &file.models[0];
    let dns = ant.engines.dns.as_ref().unwrap();
    assert_eq!(dns.name, "ant-engines.team.svc.cluster.local.");
    assert_eq!(dns.port.get(), 50055);
    let tls = ant.engines.tls.as_ref().unwrap();
    assert_eq!(
        format!("{:?}", tls.names),
        format!("[Uri({:?})]", identity::engine_of("team", "ant"))
    );
    assert_eq!(format!("{:?}", ant.routing.policy), "LeastKV");
    assert_eq!(ant.routing.prefix_chars.map(u32::from), Some(4000));
    assert_eq!((ant.waiting.capacity.get(), ant.waiting.max_wait_seconds), (7, 9));
}

#[test]
fn a_service_without_guests_has_the_file_and_the_pods_that_it_always_had() {
    let fake = host_of(Vec::new());
    let map = child(&fake, Kind::ConfigMap, "chat-gateway-config").unwrap();
    let text = map.object["data"]["gateway.yaml"].as_str().unwrap();
    assert!(
        !text.contains("models:") && !text.contains("prefixChars"),
        "{text}"
    );
    assert_eq!(map.annotation("kvasir.dev/guests"), None);
}

#[test]
fn characters_that_count_for_prefixes_reach_the_file() {
    let fake = {
        let mut fake = Fake::new(json!({ "gateway": { "routing": { "prefixChars": 100 } } }));
        fake.settle();
        fake
    };
    assert_eq!(file(&fake).routing.prefix_chars.map(u32::from), Some(100));
}

#[test]
fn no_guest_that_comes_changes_or_goes_restarts_a_pod_of_the_gateway() {
    let mut fake = host_of(Vec::new());
    let before = template(&fake);
    fake.others = vec![other("guest", 1, behind("chat"))];
    fake.settle();
    assert_eq!(models(&fake), [["guest"]]);
    assert_eq!(template(&fake), before);
    fake.others[0].spec.gateway.limits.max_queue = 3;
    fake.others[0] = accepted(fake.others[0].clone());
    fake.settle();
    assert_eq!(file(&fake).models[0].waiting.capacity.get(), 3);
    assert_eq!(template(&fake), before);
    fake.others.clear();
    fake.settle();
    assert!(models(&fake).is_empty());
    assert_eq!(template(&fake), before);
}

#[test]
fn kubelets_are_told_of_a_file_that_lists_others_and_of_no_other() {
    let mut fake = host_of(Vec::new());
    let told = |fake: &Fake| -> Vec<Option<String>> {
        let gateways = fake.pods.values().filter(|pod| pod.view.is_gateway);
        gateways.map(|pod| pod.view.told.clone()).collect()
    };
    assert_eq!(told(&fake), [None, None]);
    fake.others = vec![
        other("guest", 1, behind("chat")),
        other("ghost", 2, behind("chat")),
    ];
    let validated = fake.judge(&fake.service).unwrap();
    let listed = |fake: &Fake| -> Vec<String> {
        let observed = fake.observe();
        observed.listed(&validated).map(str::to_owned).collect()
    };
    assert!(listed(&fake).is_empty());
    fake.settle();
    let map = child(&fake, Kind::ConfigMap, "chat-gateway-config").unwrap();
    let hash = map.annotation("kvasir.dev/file-hash").map(str::to_owned);
    assert_eq!(told(&fake), [hash.clone(), hash.clone()]);
    assert_eq!(listed(&fake), ["ghost", "guest"]);
    assert!(fake.observe().is_told(&validated));
    // Another file is another hash.
    fake.others[0].spec.gateway.limits.max_queue = 3;
    fake.others[0] = accepted(fake.others[0].clone());
    fake.settle();
    assert_ne!(told(&fake), [hash.clone(), hash.clone()]);
    fake.pods.get_mut("chat-gateway-0").unwrap().view.told = hash;
    assert!(!fake.observe().is_told(&validated));
}

#[test]
fn the_gateway_is_told_the_share_of_a_guests_canary_as_its_own() {
    let canary =
        json!({ "replicas": 2, "rollout": { "canary": { "weightPercent": 10, "pauseSeconds": 0 } } });
    let mut own = Fake::new(canary.clone());
    own.settle();
    own.roll("2");
    for _ in 0..20 {
        own.reconcile();
        own.tick(30);
    }
    own.reconcile();
    let expected = file(&own).revisions;
    assert_eq!(
        expected
            .iter()
            .map(|revision| revision.weight)
            .collect::<Vec<_>>(),
        [10, 90]
    );

    let mut guest = other("guest", 1, with(behind("chat"), &canary));
    guest.status = own.service.status.clone();
    guest.spec.restarted_at = own.service.spec.restarted_at.clone();
    let mut fake = host_of(vec![accepted(guest)]);
    assert_eq!(
        format!("{:?}", file(&fake).models[0].revisions),
        format!("{expected:?}")
    );

    own.service.metadata.annotations = Some(
        [(
            "kvasir.dev/promote".to_owned(),
            own.status().update_revision.unwrap(),
        )]
        .into(),
    );
    own.settle();
    fake.others[0].status = own.service.status.clone();
    fake.others[0] = accepted(fake.others[0].clone());
    fake.settle();
    let after = format!("{:?}", file(&fake).models[0].revisions);
    assert_eq!(after, format!("{:?}", file(&own).revisions));
}

#[test]
fn a_guest_has_engines_and_no_gateway_and_says_where_it_is_found() {
    let mut fake = guest_of(json!({ "gateway": { "service": { "port": 8443 } } }));
    fake.settle();
    assert_eq!(fake.sets().len(), 1);
    for kind in [
        Kind::Deployment,
        Kind::Role,
        Kind::RoleBinding,
        Kind::ConfigMap,
        Kind::ServiceAccount,
    ] {
        assert!(child(&fake, kind, "chat-gateway").is_none(), "{kind}");
    }
    assert!(child(&fake, Kind::ConfigMap, "chat-gateway-config").is_none());
    assert_eq!(
        fake.condition("GatewayReady"),
        ("True".to_owned(), "Available".to_owned())
    );
    assert_eq!(
        message(&fake, "GatewayReady"),
        "2 gateway pods of InferenceService host are ready"
    );
    assert_eq!(fake.condition("Ready").0, "True");
    let gateway = fake.status().gateway.unwrap();
    assert_eq!(gateway.url.as_deref(), Some("https://host-gateway.team.svc:8443"));
    assert_eq!(gateway.ready_replicas, 2);
}

#[test]
fn a_guest_is_ready_when_its_hosts_gateway_is_and_lists_it() {
    let mut fake = guest_of(json!({}));
    fake.host = Some((2, false));
    fake.settle();
    assert_eq!(fake.condition("GatewayReady").0, "Unknown");
    assert_ne!(fake.condition("Ready").0, "True");
    fake.host = Some((2, true));
    fake.host_is_told = false;
    fake.settle();
    assert_eq!(fake.condition("GatewayReady").0, "Unknown");
    fake.host_is_told = true;
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
    // Later changes of the file, which lists it all the time, are others' business.
    fake.host_is_told = false;
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
    fake.host = Some((0, true));
    fake.settle();
    let not = ("False".to_owned(), "DeploymentUnavailable".to_owned());
    assert_eq!(fake.condition("GatewayReady"), not);
    assert!(message(&fake, "GatewayReady").contains("of InferenceService host"));
    fake.host = Some((1, true));
    fake.host_is_told = true;
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
}

#[test]
fn a_change_of_the_gateway_replaces_no_group_and_takes_the_own_one_away() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    let before: Vec<String> = fake.sets().iter().map(|set| set.uid.clone()).collect();
    fake.others = vec![other("host", 0, json!({}))];
    fake.host = Some((2, true));
    fake.edit(|spec| {
        spec.gateway.enabled = false;
        spec.gateway.gateway_ref = Some(NameRef {
            name: "host".to_owned(),
        });
    });
    fake.settle();
    let after: Vec<String> = fake.sets().iter().map(|set| set.uid.clone()).collect();
    assert_eq!(after, before);
    assert!(fake.pods.values().all(|pod| !pod.view.is_gateway));
    let left: Vec<_> = fake
        .objects
        .keys()
        .filter(|object| object.name.contains("gateway"))
        .collect();
    let policy = ObjectRef {
        kind: Kind::NetworkPolicy,
        name: "chat-from-gateway".to_owned(),
    };
    assert_eq!(left, [&policy]);
    fake.edit(|spec| {
        spec.gateway.enabled = true;
        spec.gateway.gateway_ref = None;
    });
    fake.settle();
    assert_eq!(
        fake.sets().iter().map(|set| set.uid.clone()).collect::<Vec<_>>(),
        before
    );
    assert_eq!(fake.condition("Ready").0, "True");
}

/// GatewayReady and its text while our service names `host`, and what is there is `others`.
fn unfit(others: Vec<InferenceService>) -> String {
    let mut fake = Fake::new(behind("host"));
    fake.others = others;
    fake.settle();
    assert_eq!(fake.sets().len(), 1, "the engines run");
    assert_eq!(fake.condition("EnginesReady").0, "True");
    let reason = Reason::NoSharedGateway.to_string();
    assert_eq!(fake.condition("GatewayReady"), ("False".to_owned(), reason));
    assert_eq!(fake.condition("Ready").1, "GatewayNotReady");
    assert_eq!(fake.status().gateway, None);
    let text = message(&fake, "GatewayReady");
    // It heals by itself.
    fake.others = vec![other("host", 0, json!({}))];
    fake.host = Some((2, true));
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
    text
}

#[test]
fn a_host_that_can_not_serve_is_named_with_the_way_out_and_engines_run_meanwhile() {
    let none = unfit(Vec::new());
    assert!(
        none.contains("there is no InferenceService host in this namespace"),
        "{none}"
    );
    let mut leaves = other("host", 0, json!({}));
    leaves.metadata.deletion_timestamp = Some(Time("2026-11-29T12:00:00Z".parse().unwrap()));
    assert!(unfit(vec![leaves]).contains("is being deleted"));
    let closed = unfit(vec![other("host", 0, json!({ "gateway": { "enabled": false } }))]);
    assert!(
        closed.contains("set its spec.gateway.enabled to true"),
        "{closed}"
    );
    let chained = unfit(vec![other("host", 0, behind("next"))]);
    assert!(
        chained.contains("it asks for that of next") && chained.contains("set gateway.enabled to true"),
        "{chained}"
    );
}

#[test]
fn a_name_belongs_to_the_host_first_then_to_the_oldest_and_then_to_the_first_by_name() {
    let named = |name: &str, born: u32, model: &str, alias: &str| {
        let source = json!({ "pvc": { "claimName": "models" } });
        let model = json!({ "model": { "source": source, "name": model, "aliases": [alias] } });
        other(name, born, with(behind("chat"), &model))
    };
    let fake = host_of(vec![
        named("claims-hosts", 1, "x", "chat"),
        named("young", 9, "m", "a"),
        named("old", 2, "m", "b"),
        named("twin-b", 5, "n", "c"),
        named("twin-a", 5, "n", "d"),
    ]);
    // An alias that another one has is left out, and a model whose own name is.
    assert_eq!(models(&fake), [vec!["x"], vec!["m", "b"], vec!["n", "d"]]);

    let ours = json!({ "model": { "source": { "pvc": { "claimName": "models" } }, "name": "m", "aliases": ["other"] } });
    let errors = refusals(
        with(behind("host"), &ours),
        vec![other(
            "host",
            0,
            json!({ "model": { "source": { "pvc": { "claimName": "models" } }, "aliases": ["other"] } }),
        )],
    );
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].path, "spec.model.aliases[0]");
    assert_eq!(errors[0].reason, Reason::NameCollision);
    assert!(
        errors[0].message.contains("for InferenceService host"),
        "{}",
        errors[0]
    );
    let mut elder = named("elder", 1, "m", "e");
    elder.spec.gateway.gateway_ref = Some(NameRef {
        name: "host".to_owned(),
    });
    let errors = refusals(
        with(behind("host"), &ours),
        vec![other("host", 0, json!({})), accepted(elder)],
    );
    assert_eq!(errors[0].path, "spec.model.name");
}

#[test]
fn a_gateway_serves_so_many_others_and_refuses_the_youngest() {
    let guests = (0..65)
        .map(|i| other(&format!("g{i:02}"), i, behind("chat")))
        .collect();
    let fake = host_of(guests);
    assert_eq!(models(&fake).len(), sharing::MOST_GUESTS);
    assert_eq!(models(&fake).last().unwrap(), &["g63"]);
    let mut others: Vec<_> = (0..64)
        .map(|i| other(&format!("g{i:02}"), i, behind("host")))
        .collect();
    others.push(other("host", 0, json!({})));
    let errors = refusals(behind("host"), others);
    assert_eq!(errors[0].path, "spec.gateway.gatewayRef");
}

/// An edit that is refused, of this and that.
fn spoil(service: &mut InferenceService, change: impl FnOnce(&mut InferenceServiceSpec)) {
    change(&mut service.spec);
    service.spec.scheduling.gang = Gang::Volcano;
    *service.metadata.generation.get_or_insert(0) += 1;
}

#[test]
fn an_edit_that_is_refused_changes_nothing_of_a_guests_place() {
    let mut guest = other("guest", 1, behind("chat"));
    spoil(&mut guest, |spec| {
        spec.gateway.gateway_ref = None;
        spec.model.aliases = vec!["else".to_owned()];
        spec.gateway.limits.max_queue = 3;
    });
    let fake = host_of(vec![guest.clone()]);
    assert_eq!(models(&fake), [["guest"]]);
    assert_ne!(file(&fake).models[0].waiting.capacity.get(), 3);
    // One that was never accepted has no place.
    guest.status = None;
    assert!(models(&host_of(vec![guest])).is_empty());
}

#[test]
fn an_edit_of_a_host_that_is_refused_changes_nothing_for_its_guests() {
    let mut fake = guest_of(json!({}));
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
    spoil(&mut fake.others[0], |spec| spec.gateway.enabled = false);
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
}

#[test]
fn a_guest_whose_edit_is_refused_goes_on_behind_its_gateway_as_its_status_says() {
    let mut fake = guest_of(json!({}));
    fake.settle();
    fake.edit(|spec| {
        spec.gateway.gateway_ref = Some(NameRef {
            name: "gone".to_owned(),
        });
        spec.scheduling.gang = Gang::Volcano;
    });
    fake.settle();
    assert_eq!(
        fake.condition("Accepted"),
        ("False".to_owned(), "Unsupported".to_owned())
    );
    assert_eq!(fake.condition("GatewayReady").0, "True");
    // What becomes of that gateway is said all the same.
    fake.host = Some((0, true));
    fake.settle();
    assert_eq!(fake.condition("GatewayReady").1, "DeploymentUnavailable");
}

#[test]
fn a_host_whose_accepted_spec_is_outdated_goes_on_serving_and_newcomers_read_why_they_wait() {
    let mut fake = guest_of(json!({ "scheduling": { "gang": "Volcano" } }));
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
    let mut new = guest_of(json!({ "scheduling": { "gang": "Volcano" } }));
    new.host = Some((2, false));
    new.settle();
    assert_eq!(new.condition("GatewayReady").0, "Unknown");
    let why = message(&new, "GatewayReady");
    assert!(
        why.contains("isn't accepted any more (spec.scheduling.gang"),
        "{why}"
    );
}

#[test]
fn of_two_that_took_up_one_name_at_one_moment_the_younger_goes_on_without_it() {
    let guest = |name: &str, born: u32| other(name, born, with(behind("chat"), &called(name, &["x", name])));
    let fake = host_of(vec![guest("old", 1), guest("young", 2)]);
    assert_eq!(models(&fake), [vec!["old", "x"], vec!["young"]]);
    // On its own side too.
    let mut young = guest_of(json!({}));
    young.service.metadata.creation_timestamp = Some(Time(young.now));
    young.edit(|spec| spec.model.aliases = vec!["x".to_owned(), "own".to_owned()]);
    young.settle();
    young
        .others
        .push(other("old", 1, with(behind("host"), &called("old", &["x"]))));
    young.settle();
    assert_eq!(young.condition("Accepted").1, "NameCollision");
    assert_eq!(young.condition("GatewayReady").0, "True");
    let kept = young.status().accepted_spec.unwrap();
    assert!(kept.contains("\"own\"") && !kept.contains("\"x\""), "{kept}");
}

fn called(name: &str, aliases: &[&str]) -> Value {
    let source = json!({ "pvc": { "claimName": "models" } });
    json!({ "model": { "source": source, "name": name, "aliases": aliases } })
}

#[test]
fn a_name_belongs_to_whoever_serves_it_and_not_to_an_older_service_that_takes_it_up() {
    let young = other("young", 9, with(behind("host"), &called("young", &["m"])));
    let mut fake = guest_of(json!({}));
    fake.others.push(young.clone());
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
    fake.edit(|spec| spec.model.aliases = vec!["m".to_owned()]);
    let errors = fake.judge(&fake.service).unwrap_err();
    assert_eq!(errors[0].path, "spec.model.aliases[0]");
    assert_eq!(errors[0].reason, Reason::NameCollision);
    assert!(
        errors[0].message.contains("leave this alias out"),
        "{}",
        errors[0]
    );
    // It goes on as it was.
    fake.settle();
    assert_eq!(fake.condition("GatewayReady").0, "True");
    // So does a host that takes it up.
    let mut host = host_of(vec![other(
        "young",
        9,
        with(behind("chat"), &called("young", &["m"])),
    )]);
    host.edit(|spec| spec.model.aliases = vec!["free".to_owned(), "m".to_owned()]);
    let errors = host.judge(&host.service).unwrap_err();
    assert_eq!(errors[0].path, "spec.model.aliases[1]");
    host.settle();
    assert_eq!(file(&host).served_model_names, ["chat"]);
    assert_eq!(models(&host), [["young", "m"]]);
}

#[test]
fn the_model_name_that_is_taken_can_not_be_changed_and_the_way_out_says_so() {
    let errors = refusals(
        with(behind("host"), &called("m", &[])),
        vec![
            other("host", 0, json!({})),
            other("first", 1, with(behind("host"), &called("first", &["m"]))),
        ],
    );
    assert_eq!(errors[0].path, "spec.model.name");
    assert!(
        errors[0].message.contains("make this service anew"),
        "{}",
        errors[0]
    );
}

#[test]
fn a_service_that_gets_its_first_gateway_has_its_names_before_those_who_waited_for_it() {
    let mut fake = Fake::new(json!({}));
    fake.others = vec![
        other("early", 1, with(behind("chat"), &called("early", &["chat"]))),
        other("free", 2, behind("chat")),
    ];
    fake.settle();
    assert_eq!(file(&fake).served_model_names, ["chat"]);
    assert_eq!(models(&fake), [["early"], ["free"]]);
}

#[test]
fn no_status_of_a_guest_spoils_its_hosts_file() {
    let canary = json!({ "rollout": { "canary": { "weightPercent": 10 } } });
    let mut guest = other("guest", 1, with(behind("chat"), &canary));
    for status in [
        json!({ "groups": [{ "id": 0, "revision": "" }] }),
        json!({ "currentRevision": "a", "groups": [{ "id": 0, "revision": "a", "readySince": "2026-11-29T00:00:00Z" }] }),
        json!({ "currentRevision": "", "updateRevision": "b", "groups": [{ "id": 0, "revision": "", "readySince": "2026-11-29T00:00:00Z" }] }),
    ] {
        guest.status = serde_json::from_value(status).unwrap();
        let fake = host_of(vec![accepted(guest.clone())]);
        assert_eq!(models(&fake), [["guest"]]);
    }
}

#[test]
fn a_guest_that_is_being_deleted_is_listed_no_longer() {
    let mut fake = host_of(vec![other("guest", 1, behind("chat"))]);
    assert_eq!(models(&fake), [["guest"]]);
    fake.others[0].metadata.deletion_timestamp = Some(Time(fake.now));
    fake.settle();
    assert!(models(&fake).is_empty());
}

#[test]
fn a_gateways_certificate_speaks_for_its_guests_and_no_others() {
    let fake = host_of(vec![
        other("guest", 1, behind("chat")),
        other("stranger", 2, json!({})),
    ]);
    let validated = fake.judge(&fake.service).unwrap();
    let names = identity::names(&validated, &Subject::Gateway, "cluster.local");
    assert_eq!(
        names.uris,
        [
            "spiffe://kvasir.dev/ns/team/service/chat/gateway",
            "spiffe://kvasir.dev/ns/team/service/guest/gateway"
        ]
    );
}

#[test]
fn what_only_a_gateway_of_ones_own_has_is_refused_with_its_field_and_nothing_else_is() {
    let paths = |more: Value| -> Vec<String> {
        let fake = Fake::new(with(behind("host"), &more));
        let errors = validate(&fake.service, &Settings::default())
            .err()
            .unwrap_or_default();
        errors.into_iter().map(|error| error.path).collect()
    };
    let own = json!({
        "gateway": { "replicas": 3, "image": "x", "resources": { "limits": { "cpu": "1" } }, "service": { "port": 1 },
            "ingress": { "host": "h" }, "auth": { "apiKeySecrets": [{ "name": "k" }] }, "tenants": [{ "name": "t" }],
            "limits": { "maxBodyBytes": 2048, "requestTimeoutSeconds": 5, "store": { "type": "Redis", "url": "redis://r" } } },
        "network": { "allowedClients": [{ "podSelector": {} }], "gatewayEgress": [{ "cidr": "10.0.0.0/8", "ports": [1] }] },
        "observability": { "tracing": { "endpoint": "http://otel:4317" } },
    });
    let mut expected = vec![
        "spec.gateway.auth",
        "spec.gateway.image",
        "spec.gateway.ingress",
        "spec.gateway.limits.maxBodyBytes",
        "spec.gateway.limits.requestTimeoutSeconds",
        "spec.gateway.limits.store",
        "spec.gateway.replicas",
        "spec.gateway.resources",
        "spec.gateway.service",
        "spec.gateway.tenants",
        "spec.network.allowedClients",
        "spec.network.gatewayEgress",
        "spec.observability.tracing",
    ];
    expected.sort_unstable();
    assert_eq!(paths(own), expected);
    let routing = json!({ "gateway": { "routing": { "policy": "Session", "sessionHeader": "x-id" }, "limits": { "maxQueue": 5 } } });
    assert!(paths(routing).is_empty());
    assert_eq!(
        paths(json!({ "gateway": { "enabled": true } })),
        ["spec.gateway.gatewayRef"]
    );
    assert_eq!(
        paths(json!({ "gateway": { "gatewayRef": { "name": "chat" } } })),
        ["spec.gateway.gatewayRef.name"]
    );
    assert_eq!(
        paths(json!({ "gateway": { "gatewayRef": { "name": "a/b" } } })),
        ["spec.gateway.gatewayRef.name"]
    );
}

#[test]
fn a_refused_spec_takes_no_trust_from_those_who_share_a_gateway() {
    let kept = |fake: &Fake| match judge(&fake.service, &fake.others, &fake.settings) {
        Judgement::Refused {
            last: Some(Last::Valid(running)),
            ..
        } => running.sharing,
        other => panic!("{other:?}"),
    };
    let mut host = host_of(vec![other("guest", 0, behind("chat"))]);
    host.edit(|spec| spec.scheduling.gang = Gang::Volcano);
    let guests = kept(&host).guests.into_iter().map(|guest| guest.service.name);
    assert_eq!(guests.collect::<Vec<_>>(), ["guest"]);
    let mut guest = guest_of(json!({}));
    guest.settle();
    guest.edit(|spec| spec.model.aliases = vec!["host".to_owned()]);
    assert!(matches!(kept(&guest).host, Some(sharing::Host::Serves(_))));
    // Accepted at one moment, and then the older one has the model's name: the other one is trusted where it was.
    guest.edit(|spec| spec.model.aliases = Vec::new());
    guest.service.metadata.creation_timestamp = Some(Time(guest.now));
    let rival = with(behind("host"), &called("rival", &["chat"]));
    guest.others.push(other("rival", 1, rival));
    let uid = guest.others[0].metadata.uid.clone();
    let host = kept(&guest).host;
    assert!(
        matches!(&host, Some(sharing::Host::Unfit { uid: known, why }) if *known == uid && why.contains("rival")),
        "{host:?}"
    );
}
