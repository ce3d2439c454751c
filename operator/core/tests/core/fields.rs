//! What single fields of the spec become.

use kvasir_operator_core::child::{Kind, Live};
use kvasir_operator_core::observed::GroupLoad;
use kvasir_operator_core::validate;
use serde_json::{Value, json};

use crate::fake::Fake;

fn objects(fake: &Fake, kind: Kind) -> Vec<&Value> {
    let all = fake.objects.values().filter(|live| live.reference.kind == kind);
    all.map(|live| &live.object).collect()
}

fn knowing(spec: Value, kinds: &[Kind]) -> Fake {
    let mut fake = Fake::new(spec);
    fake.settings.known_kinds.extend(kinds);
    fake
}

#[test]
fn a_service_monitor_comes_with_the_service_it_needs_and_instead_of_the_pod_monitor() {
    let monitored = |kinds: &[Kind]| {
        let mut fake = knowing(json!({ "observability": { "serviceMonitor": true } }), kinds);
        fake.settle();
        fake
    };
    let fake = monitored(&[Kind::PodMonitor, Kind::ServiceMonitor]);
    assert!(objects(&fake, Kind::PodMonitor).is_empty());
    let monitor = objects(&fake, Kind::ServiceMonitor)[0];
    let services = objects(&fake, Kind::Service);
    let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    let selects = |service: &&&Value| {
        let labels = &service["metadata"]["labels"];
        wanted.iter().all(|(key, value)| labels[key] == *value)
    };
    let found: Vec<_> = services.iter().filter(selects).collect();
    let [service] = found.as_slice() else {
        panic!("{found:?}")
    };
    let port = &service["spec"]["ports"][0];
    assert_eq!(port["name"], monitor["spec"]["endpoints"][0]["port"]);
    // Engines and gateway call the port so, whatever its number is.
    assert_eq!(port["targetPort"], "metrics");
    assert_eq!(
        service["spec"]["selector"],
        json!({ "kvasir.dev/service": "chat" })
    );
    let fallback = monitored(&[Kind::PodMonitor]);
    assert_eq!(objects(&fallback, Kind::PodMonitor).len(), 1);
    assert_eq!(
        objects(&fallback, Kind::Service).len(),
        services.len() - 1,
        "nobody asks for its Service"
    );
}

const GATEWAY_API: [Kind; 2] = [Kind::HTTPRoute, Kind::BackendTLSPolicy];

fn routed(kinds: &[Kind]) -> Fake {
    let parents = json!([{ "name": "edge", "namespace": "infra", "sectionName": "https" }]);
    let route = json!({ "parentRefs": parents, "hostnames": ["*.example.com", "chat.example.com"] });
    knowing(json!({ "gateway": { "route": route } }), kinds)
}

#[test]
fn a_route_leads_from_its_gateways_to_the_service_over_verified_tls() {
    let mut fake = routed(&GATEWAY_API);
    fake.settle();
    let route = objects(&fake, Kind::HTTPRoute)[0];
    assert_eq!(
        route["spec"]["parentRefs"],
        json!([{ "name": "edge", "namespace": "infra", "sectionName": "https" }])
    );
    let backend = json!([{ "name": "chat-gateway", "port": 443 }]);
    assert_eq!(route["spec"]["rules"][0]["backendRefs"], backend);
    let policy = &objects(&fake, Kind::BackendTLSPolicy)[0]["spec"];
    assert_eq!(policy["targetRefs"][0]["name"], "chat-gateway");
    let trusted = policy["validation"]["caCertificateRefs"][0]["name"]
        .as_str()
        .unwrap();
    let map = objects(&fake, Kind::ConfigMap)
        .into_iter()
        .find(|map| map["metadata"]["name"] == trusted);
    assert_eq!(map.unwrap()["data"]["ca.crt"], "authorities");
    assert_eq!(policy["validation"]["hostname"], "chat-gateway");
    let url = fake.status().gateway.unwrap().url.unwrap();
    assert_eq!(url, "https://chat.example.com");
}

#[test]
fn a_route_without_the_gateway_api_is_refused() {
    for (kinds, missing) in [
        (&[][..], "HTTPRoute"),
        (&[Kind::HTTPRoute][..], "BackendTLSPolicy"),
    ] {
        let fake = routed(kinds);
        let errors = validate(&fake.service, &fake.settings).unwrap_err();
        assert_eq!(errors[0].path, "spec.gateway.route");
        assert!(errors[0].message.contains(missing), "{}", errors[0].message);
    }
}

#[test]
fn what_gateways_say_about_the_route_is_said_of_the_service() {
    let mut fake = routed(&GATEWAY_API);
    fake.settle();
    let verdict = |status: &str| {
        json!({ "conditions": [
            { "type": "Accepted", "status": "True", "reason": "Accepted", "message": "" },
            { "type": "ResolvedRefs", "status": status, "reason": "BackendNotFound", "message": "no such port" },
        ] })
    };
    let made = fake.objects.clone();
    let mut said = |kind: Kind, status: Value| {
        let reference = made.keys().find(|key| key.kind == kind).unwrap().clone();
        let mut object = made[&reference].object.clone();
        object["status"] = status;
        let live = Live::new(kind, object).unwrap().slim();
        fake.objects.insert(reference, live);
        fake.reconcile();
        let status = fake.status();
        let gateway = status
            .condition(kvasir_operator_api::ConditionType::GatewayReady)
            .unwrap();
        (gateway.reason.clone(), gateway.message.clone())
    };
    let (reason, message) = said(Kind::HTTPRoute, json!({ "parents": [] }));
    assert_eq!(reason, "Available");
    assert!(message.contains("no Gateway has said yet"), "{message}");
    let (reason, message) = said(Kind::HTTPRoute, json!({ "parents": [verdict("False")] }));
    assert_eq!(reason, "RouteNotAccepted");
    assert!(message.contains("BackendNotFound: no such port"), "{message}");
    let one_of_two = json!({ "parents": [verdict("False"), verdict("True")] });
    assert_eq!(said(Kind::HTTPRoute, one_of_two).0, "Available");
    let policy = json!({ "ancestors": [verdict("False")] });
    assert_eq!(said(Kind::BackendTLSPolicy, policy).0, "RouteNotAccepted");
}

/// The file of the first group's engines.
fn engine_file(spec: Value) -> Value {
    let mut fake = Fake::new(spec);
    fake.reconcile();
    let files = objects(&fake, Kind::ConfigMap);
    let mut texts = files.iter().filter_map(|map| map["data"]["engine.yaml"].as_str());
    serde_json::from_str(texts.next().unwrap()).unwrap()
}

const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn engines_are_told_what_the_model_must_be() {
    let pvc = json!({ "pvc": { "claimName": "m" } });
    let file = engine_file(json!({
        "model": { "source": pvc, "sha256": DIGEST, "format": "GGUF" },
        "engine": { "quantization": "Q4_K_M", "kv": { "memoryFractionPercent": 85 } },
    }));
    assert_eq!(file["model-sha256"], DIGEST);
    assert_eq!(file["load-format"], "gguf");
    assert_eq!(file["quantization"], "Q4_K_M");
    assert_eq!(file["gpu-memory-utilization"], 0.85);
    let bare = engine_file(json!({ "model": { "source": pvc } }));
    let added = [
        "model-sha256",
        "load-format",
        "quantization",
        "gpu-memory-utilization",
    ];
    assert!(added.iter().all(|key| bare.get(key).is_none()), "{bare}");
    let http = json!({ "http": { "url": "https://example.com/m.gguf" } });
    let egress = json!({ "modelEgress": [{ "cidr": "192.0.2.0/24" }] });
    let http = engine_file(json!({ "model": { "source": http, "sha256": DIGEST }, "network": egress }));
    assert!(http.get("model-sha256").is_none(), "its address has it");
    assert_eq!(
        http["model"],
        format!("https://example.com/m.gguf#sha256={DIGEST}")
    );
}

#[test]
fn a_model_in_a_retained_claim_stays_cached_when_no_group_runs() {
    let cached = |retention: Option<&str>| {
        let hub = json!({ "huggingFace": { "repo": "org/model" } });
        let mut spec =
            json!({ "model": { "source": hub }, "network": { "modelEgress": [{ "cidr": "192.0.2.0/24" }] } });
        if let Some(retention) = retention {
            spec["storage"] = json!({ "cache": { "size": "1Gi", "retention": retention } });
        }
        let mut fake = Fake::new(spec);
        fake.settle();
        let loaded = fake.condition("ModelReady");
        fake.edit(|spec| spec.suspend = true);
        fake.settle();
        let suspended = fake.condition("ModelReady");
        fake.roll("another revision");
        fake.settle();
        (loaded.1, suspended, fake.condition("ModelReady").0)
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    let unknown = "Unknown".to_owned();
    let resolving = is("Unknown", "Resolving");
    assert_eq!(
        cached(Some("Retain")),
        ("Cached".to_owned(), is("True", "Cached"), unknown.clone())
    );
    assert_eq!(
        cached(Some("Delete")),
        ("Cached".to_owned(), resolving.clone(), unknown.clone())
    );
    assert_eq!(cached(None), ("Resolved".to_owned(), resolving, unknown));
}

/// For each group whether its pods get claims, and that what they mount is there.
fn claims(fake: &Fake) -> Vec<bool> {
    let groups = objects(fake, Kind::StatefulSet).into_iter();
    let one = |set: &Value| {
        let spec = &set["spec"];
        let has_claims = spec["volumeClaimTemplates"][0]["metadata"]["name"] == "cache";
        let volumes = spec["template"]["spec"]["volumes"].as_array().unwrap();
        let is_scratch = volumes.iter().any(|volume| volume["name"] == "cache");
        assert!(has_claims != is_scratch, "{spec}");
        has_claims
    };
    groups.map(one).collect()
}

#[test]
fn another_cache_is_for_new_groups_and_an_edit_of_an_old_one_is_undone_all_the_same() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    for (number, (cache, old, new)) in [
        (json!({ "cache": { "size": "1Gi" } }), false, true),
        (
            json!({ "cache": { "size": "2Gi", "retention": "Retain" } }),
            true,
            true,
        ),
        (json!({}), true, false),
    ]
    .into_iter()
    .enumerate()
    {
        fake.edit(|spec| spec.storage = serde_json::from_value(cache).unwrap());
        fake.settle();
        assert_eq!(claims(&fake), [old], "nothing is written");
        let reference = fake.sets()[0].reference.clone();
        let edited = fake.objects.get_mut(&reference).unwrap();
        edited.object["spec"]["replicas"] = json!(7);
        // What the runtime's cache keeps of it is enough.
        let kept = Live::new(Kind::StatefulSet, edited.object.clone())
            .unwrap()
            .slim();
        assert_eq!(kept.has_claims(), old);
        *edited = Live::new(Kind::StatefulSet, edited.object.take()).unwrap();
        // The fake API server refuses other claims.
        fake.settle();
        assert_eq!(fake.sets()[0].object["spec"]["replicas"], 1);
        assert_eq!(claims(&fake), [old]);
        fake.roll(&number.to_string());
        fake.settle();
        assert_eq!(claims(&fake), [new]);
    }
}

#[test]
fn gateways_have_the_registrys_secrets_too() {
    let mut fake = Fake::new(json!({ "engine": { "imagePullSecrets": [{ "name": "b" }, { "name": "a" }] } }));
    fake.settle();
    for kind in [Kind::StatefulSet, Kind::Deployment] {
        let pod = &objects(&fake, kind)[0]["spec"]["template"]["spec"];
        assert_eq!(
            pod["imagePullSecrets"],
            json!([{ "name": "a" }, { "name": "b" }]),
            "{kind}"
        );
    }
}

#[test]
fn the_size_of_the_weights_is_what_an_engine_of_the_newest_revision_says() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    let size = |fake: &Fake| fake.status().model.unwrap().size_bytes;
    assert_eq!(size(&fake), None);
    let load = |model_bytes| GroupLoad {
        model_bytes,
        ..GroupLoad::default()
    };
    fake.loads.insert(0, load(1000));
    fake.reconcile();
    assert_eq!(size(&fake), Some(1000));
    fake.loads.insert(0, load(0));
    fake.reconcile();
    assert_eq!(size(&fake), Some(1000), "silence takes nothing back");
    fake.loads.insert(0, load(1000));
    fake.loads.insert(1, load(2000));
    fake.roll("next");
    fake.settle();
    assert_eq!(size(&fake), Some(2000));
}
