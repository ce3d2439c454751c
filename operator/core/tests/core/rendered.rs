//! The files that engines and gateways are given, read with the parsers that engines and gateways read them with.

use kvasir_config::gateway::{GatewayConfig, Names, RoutingPolicyConfig, parse_gateway};
use kvasir_config::{
    AccessConfig, ConfigError, EngineConfig, GrpcConfig, Layer, ModelConfig, ProcessConfig, engine_options,
    file_layer,
};
use kvasir_operator_core::{Settings, validate};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fake::{Fake, service};

/// The samples of the chart.
#[expect(clippy::disallowed_methods, reason = "the crate reads no files, its tests do")]
fn samples() -> Vec<(String, Value)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/kvasir/samples");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for document in serde_yaml::Deserializer::from_str(&text) {
            let object: Value = serde::Deserialize::deserialize(document).unwrap();
            if object["kind"] == "InferenceService" {
                all.push((path.display().to_string(), object));
            }
        }
    }
    assert!(all.len() >= 4);
    all
}

/// Files of a service: the gateway's, and each group's.
fn files(fake: &Fake) -> (Option<String>, Vec<String>) {
    let text = |key: &str| -> Vec<String> {
        let maps = fake.objects.values().map(|live| &live.object["data"][key]);
        maps.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    (text("gateway.yaml").pop(), text("engine.yaml"))
}

fn gateway(fake: &Fake) -> GatewayConfig {
    let text = files(fake).0.unwrap();
    parse_gateway(&text).unwrap_or_else(|faults| panic!("{faults}\n{text}"))
}

/// Reads an engine's file as `kvasir engine --config` does.
fn engine(text: &str) -> Result<Layer, ConfigError> {
    let specs = engine_options();
    let layer = file_layer(text, "engine.yaml", &specs)?;
    ModelConfig::resolve(&layer)?;
    let mut scheduling = EngineConfig::resolve(&layer)?;
    scheduling.settle();
    scheduling.validate()?;
    let grpc = GrpcConfig::resolve(&layer)?;
    AccessConfig::resolve(&layer)?.validate(&grpc.listen.value)?;
    ProcessConfig::resolve(&layer)?;
    Ok(layer)
}

fn check(fake: &Fake) {
    let (gateway, engines) = files(fake);
    if let Some(text) = gateway {
        parse_gateway(&text).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    }
    for text in engines {
        engine(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

#[test]
fn what_samples_become_is_what_gateways_and_engines_read() {
    for (path, object) in samples() {
        let mut fake = Fake::new(json!({}));
        fake.service = serde_json::from_value(object).unwrap();
        fake.service.metadata.name = Some("chat".to_owned());
        fake.service.metadata.namespace = Some("team".to_owned());
        fake.service.metadata.uid = Some(crate::fake::UID.to_owned());
        // Samples need no switch of the operator.
        fake.settings = Settings::default();
        validate(&fake.service, &fake.settings).unwrap_or_else(|errors| panic!("{path}: {errors:?}"));
        fake.settle();
        assert!(!files(&fake).1.is_empty(), "{path}");
        check(&fake);
    }
}

fn spec() -> impl Strategy<Value = Value> {
    let engine = (
        proptest::option::of(1..100_000i32),
        proptest::option::of(128..4096i32),
        prop_oneof![Just("Auto"), Just("Float16"), Just("BFloat16"), Just("Float32")],
        any::<bool>(),
        proptest::option::of(prop_oneof![Just("1Gi"), Just("1500M"), Just("2147483648")]),
    );
    let tenants = proptest::collection::vec((1..1000i32, -9..9i32, proptest::option::of(1..99i64)), 0..4);
    let policy = prop_oneof![
        Just("PrefixAware"),
        Just("LeastKV"),
        Just("LeastRequests"),
        Just("RoundRobin"),
        Just("Session")
    ];
    let gateway = (auth(), tenants, policy, 0..4i32, 1..99i32, any::<bool>());
    (engine, gateway, model(), 0..3i32, any::<bool>()).prop_map(
        |(engine, gateway, model, replicas, alias)| {
            let (length, tokens, dtype, caching, memory) = engine;
            let (auth, tenants, policy, pods, queue, redis) = gateway;
            let tenants: Vec<Value> = tenants
            .into_iter()
            .enumerate()
            .map(|(i, (weight, priority, limit))| {
                json!({
                    "name": format!("t{i}"), "weight": weight, "priority": priority, "models": ["chat"],
                    "limits": { "requestsPerMinute": limit, "tokensPerMinute": limit, "concurrency": limit },
                    "scopes": ["Inference", "Operations", "Admin"],
                })
            })
            .collect();
            let store = if redis {
                json!({ "type": "Redis", "url": "redis://redis.team.svc:6379" })
            } else {
                json!({})
            };
            json!({
                "replicas": replicas,
                "model": { "source": model, "aliases": if alias { vec!["other"] } else { vec![] } },
                "engine": {
                    "maxModelLen": length, "maxBatchTokens": tokens, "dtype": dtype, "prefixCaching": caching,
                    "kv": { "memory": memory },
                },
                "gateway": {
                    "auth": auth, "tenants": tenants, "routing": { "policy": policy }, "replicas": pods,
                    "limits": { "maxQueue": queue, "store": store },
                },
                "network": { "modelEgress": [{ "cidr": "192.0.2.0/24" }], "gatewayEgress": [{ "cidr": "198.51.100.0/24" }] },
            })
        },
    )
}

fn auth() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({ "mode": "APIKey" })),
        Just(json!({ "mode": "APIKey", "apiKeySecrets": [{ "name": "a" }, { "name": "b" }] })),
        Just(json!({ "mode": "TokenReview" })),
        Just(json!({ "mode": "None" })),
        Just(
            json!({ "mode": "JWT", "jwt": { "issuer": "https://i.example", "audiences": ["a"], "jwksURL": "https://i.example/keys" } })
        ),
    ]
}

fn model() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({ "pvc": { "claimName": "m", "path": "a/b" } })),
        Just(json!({ "huggingFace": { "repo": "org/name", "revision": "abc", "file": "x.gguf" } })),
        Just(json!({ "image": { "reference": "r/m@sha256:0", "path": "model" } })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn whatever_is_accepted_becomes_files_that_can_be_read(spec in spec()) {
        let mut fake = Fake::new(spec);
        let annotations = [("kvasir.dev/allow-anonymous".to_owned(), "true".to_owned())];
        fake.service.metadata.annotations = Some(annotations.into());
        prop_assume!(validate(&fake.service, &fake.settings).is_ok());
        fake.settle();
        prop_assert!(files(&fake).0.is_some());
        check(&fake);
    }
}

#[test]
fn gateway_and_engines_agree_on_names_ports_and_certificates() {
    let mut fake = Fake::new(
        json!({ "model": { "name": "org/chat-1", "source": { "pvc": { "claimName": "models" } } } }),
    );
    fake.settle();
    let pod = &fake.sets()[0].object["spec"]["template"]["spec"];
    let variables = pod["containers"][0]["env"].as_array().unwrap();
    let named = variables.iter().find(|v| v["name"] == "KVASIR_SERVED_MODEL_NAME");
    assert_eq!(
        named.unwrap()["value"],
        gateway(&fake).served_model_names[0].as_str()
    );
    let mut fake = Fake::new(json!({ "model": {
        "name": "served", "aliases": ["also"], "source": { "pvc": { "claimName": "m" } },
    } }));
    fake.settle();
    let gateway = gateway(&fake);
    assert_eq!(gateway.served_model_names, ["served", "also"]);
    let dns = gateway.engines.dns.unwrap();
    assert_eq!(dns.name, "chat-engines.team.svc.cluster.local.");
    let tls = gateway.engines.tls.unwrap();
    let names: Vec<String> = tls
        .names
        .iter()
        .map(|name| serde_json::to_value(name).unwrap().to_string())
        .collect();
    assert_eq!(names, ["\"uri:spiffe://kvasir.dev/ns/team/service/chat/engine\""]);
    let layer = engine(&files(&fake).1[0]).unwrap();
    let grpc = GrpcConfig::resolve(&layer).unwrap();
    assert_eq!(grpc.listen.value.to_string(), format!("0.0.0.0:{}", dns.port));
    let access = AccessConfig::resolve(&layer).unwrap();
    assert!(access.gateway_mode.value);
    let client = serde_json::to_value(&access.tls_client_name.value).unwrap();
    assert_eq!(
        client,
        json!(["uri:spiffe://kvasir.dev/ns/team/service/chat/gateway"])
    );
}

#[test]
fn credentials_lead_to_tenants_and_no_credential_to_nobody() {
    let with = |auth: Value, tenants: Value| {
        let egress = json!({ "gatewayEgress": [{ "cidr": "198.51.100.7/32" }] });
        let mut fake =
            Fake::new(json!({ "gateway": { "auth": auth, "tenants": tenants }, "network": egress }));
        let annotations = [("kvasir.dev/allow-anonymous".to_owned(), "true".to_owned())];
        fake.service.metadata.annotations = Some(annotations.into());
        fake.settle();
        gateway(&fake)
    };
    let open = with(json!({ "mode": "None" }), json!([{ "name": "a" }]));
    assert_eq!(open.auth.anonymous.unwrap().serve_everybody_as, "a");
    let keys = with(json!({}), json!([]));
    assert!(keys.auth.anonymous.is_none());
    assert_eq!(keys.tenants[0].name, "default");
    assert_eq!(keys.tenants[0].models, Names::All);
    let issuer =
        json!({ "issuer": "https://i.example", "audiences": ["a"], "jwksURL": "https://i.example/keys" });
    let jwt = with(
        json!({ "mode": "JWT", "jwt": issuer }),
        json!([{ "name": "a" }, { "name": "b" }]),
    );
    let claim = jwt.auth.jwt[0].claim.clone().unwrap();
    assert_eq!(
        (claim.name.as_str(), claim.tenants["b"].as_str()),
        ("tenant", "b")
    );
    let review = with(json!({ "mode": "TokenReview" }), json!([]))
        .auth
        .token_review
        .unwrap();
    assert_eq!(review.rules[0].namespace.as_deref(), Some("team"));
    assert_ne!(review.audience, "https://kubernetes.default.svc");
}

#[test]
fn a_canary_changes_weights_and_nothing_that_restarts_the_gateway() {
    let canary = json!({ "weightPercent": 10, "pauseSeconds": 600 });
    let mut fake = Fake::new(json!({ "replicas": 2, "rollout": { "canary": canary } }));
    fake.settle();
    let template = |fake: &Fake| {
        let gateway = fake
            .objects
            .values()
            .find(|o| o.object["kind"] == "Deployment")
            .unwrap();
        gateway.object["spec"]["template"].clone()
    };
    let before = template(&fake);
    let weights = |fake: &Fake| -> Vec<u32> {
        let revisions = gateway(fake).revisions;
        revisions.iter().map(|revision| revision.weight).collect()
    };
    // Whoever hasn't read of the canary yet gives it nothing.
    assert_eq!(weights(&fake), [100]);
    fake.roll("next");
    let mut seen = Vec::new();
    for _ in 0..50 {
        fake.reconcile();
        fake.tick(5);
        seen = weights(&fake);
        if seen != [100] {
            break;
        }
    }
    assert_eq!(seen, [10, 90]);
    assert_eq!(template(&fake), before);
}

#[test]
fn without_a_canary_gateways_divide_requests_by_engines() {
    let mut fake = Fake::new(json!({ "replicas": 2 }));
    fake.settle();
    fake.roll("next");
    for _ in 0..50 {
        fake.reconcile();
        fake.tick(5);
        assert!(gateway(&fake).revisions.is_empty());
    }
}

#[test]
fn what_the_gateway_cannot_honour_is_refused() {
    let refused = |spec: Value, path: &str| {
        let errors = validate(&service(spec), &Settings::default()).unwrap_err();
        assert!(
            errors.iter().any(|error| error.to_string().contains(path)),
            "{errors:?}"
        );
    };
    refused(json!({ "tls": { "mode": "Off" } }), "spec.tls.mode");
    refused(
        json!({ "gateway": { "stateStore": { "claimName": "s" } } }),
        "spec.gateway.stateStore",
    );
}

#[test]
fn every_policy_of_the_spec_is_one_of_the_gateways() {
    let mut fake = Fake::new(json!({ "gateway": { "routing": { "policy": "Session" } } }));
    fake.settle();
    assert_eq!(gateway(&fake).routing.policy, RoutingPolicyConfig::Session);
}

#[test]
fn secrets_and_authorities_that_the_spec_names_are_files_of_the_gateway_alone() {
    let store = json!({ "type": "Redis", "url": "redis://r:1", "passwordSecretRef": { "name": "redis", "key": "pass" } });
    let jwt = json!({
        "issuer": "https://i.example", "audiences": ["a"], "jwksURL": "https://i.example/keys",
        "caBundleRef": { "name": "idp", "key": "bundle.pem" },
    });
    let mut fake = Fake::new(json!({
        "gateway": { "auth": { "mode": "JWT", "jwt": jwt }, "limits": { "store": store } },
        "network": { "gatewayEgress": [{ "cidr": "198.51.100.7/32" }] },
    }));
    fake.settle();
    let config = gateway(&fake);
    let deployment = fake
        .objects
        .values()
        .find(|live| live.object["kind"] == "Deployment")
        .unwrap();
    let pod = &deployment.object["spec"]["template"]["spec"];
    // Where a file of the configuration comes from: the object, and its key.
    let origin = |file: &std::path::Path| {
        let file = file.to_str().unwrap();
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let mount = mounts.iter().find(|mount| {
            file.starts_with(mount["mountPath"].as_str().unwrap()) && mount["name"] != "config"
        });
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == mount.unwrap()["name"])
            .unwrap();
        let name = file.rsplit('/').next().unwrap();
        let (object, items) = match &volume["secret"] {
            Value::Null => (&volume["configMap"]["name"], &volume["configMap"]["items"]),
            secret => (&secret["secretName"], &secret["items"]),
        };
        assert_eq!(items[0]["path"], name);
        (object.clone(), items[0]["key"].clone())
    };
    let password = config.limits.store.unwrap().password_file.unwrap();
    assert_eq!(origin(&password), (json!("redis"), json!("pass")));
    let authorities = config.auth.jwt[0].jwks.authorities.clone().unwrap();
    assert_eq!(origin(&authorities), (json!("idp"), json!("bundle.pem")));
}

#[test]
fn what_is_left_out_is_left_out_of_the_gateways_file_so_that_no_pod_restarts_for_it() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    let text = files(&fake).0.unwrap();
    for key in ["tracing", "sessionHeader", "passwordFile"] {
        assert!(!text.contains(key), "{key}: {text}");
    }
    let mut fake = Fake::new(json!({
        "gateway": { "routing": { "policy": "Session", "sessionHeader": "X-Chat" } },
        "observability": { "tracing": { "endpoint": "http://otel.infra:4317", "samplePercent": 5 } },
        "network": { "gatewayEgress": [{ "cidr": "198.51.100.7/32", "ports": [4317] }] },
    }));
    fake.settle();
    let config = gateway(&fake);
    assert_eq!(config.routing.session_header.as_deref(), Some("x-chat"));
    let tracing = config.tracing.unwrap();
    assert_eq!(
        (tracing.endpoint.as_str(), tracing.sample_percent),
        ("http://otel.infra:4317", 5)
    );
}
