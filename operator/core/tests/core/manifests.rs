//! Manifests that the API server admits and the operator refuses, each with the field's path, and what it builds of good ones.

use crate::fake::{self, Fake};
use kvasir_operator_api::{ConditionType, Gang, InferenceService, Quantity, Reason};
use kvasir_operator_core::child::Kind;
use kvasir_operator_core::{FieldError, Settings, status, validate};
use serde_json::{Value, json};

const CASES: &str = include_str!("../../../../e2e/manifests/invalid.yaml");

fn put(manifest: &mut Value, path: &str, value: Value) {
    let mut inner = manifest;
    for key in path.split('.') {
        inner = &mut inner[key];
    }
    *inner = value;
}

fn errors(case: &Value) -> Vec<FieldError> {
    let mut manifest = serde_json::to_value(fake::service(json!({}))).unwrap();
    for (path, value) in case["set"].as_object().into_iter().flatten() {
        put(&mut manifest, path, value.clone());
    }
    let service: InferenceService = serde_json::from_value(manifest).unwrap();
    validate(&service, &Settings::default()).expect_err(case["name"].as_str().unwrap())
}

#[test]
fn every_manifest_that_only_the_operator_can_refuse_is_refused_at_its_field() {
    let cases: Vec<Value> = serde_yaml::from_str(CASES).unwrap();
    let mut seen = 0;
    for case in cases.iter().filter(|case| case["by"] == "operator") {
        let errors = errors(case);
        assert!(
            errors.iter().any(|e| e.path == case["field"]),
            "{}: {errors:?}",
            case["name"]
        );
        assert!(errors.iter().all(|e| !e.message.is_empty()));
        seen += 1;
    }
    assert!(seen >= 25, "only {seen} cases");
}

#[test]
fn the_operators_flags_admit_what_they_are_for() {
    let settings = Settings {
        alpha_topology: true,
        allow_local_sources: true,
        ..Settings::default()
    };
    let service = fake::service(json!({
        "topology": { "tensor": 4, "pipeline": 2, "devicesPerPod": 2 },
        "model": { "source": { "local": { "path": "/models" } } },
    }));
    assert_eq!(validate(&service, &settings).unwrap().shape.pods(), 4);
}

#[test]
fn a_refused_spec_is_reported_with_every_fields_path_and_keeps_what_was_known() {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    fake.edit(|spec| {
        spec.engine.kv.cpu_offload = Some(Quantity("1Gi".to_owned()));
        spec.scheduling.gang = Gang::Volcano;
    });
    let errors = validate(&fake.service, &fake.settings).unwrap_err();
    let after = status::refused(&fake.service, &errors, &fake.settings, fake.now);
    let condition = |part| after.condition(part).unwrap();
    let refused = condition(ConditionType::Accepted);
    assert_eq!(refused.status, "False");
    assert_eq!(refused.reason, Reason::Unsupported.as_str());
    assert!(refused.message.contains("spec.engine.kv.cpuOffload"));
    assert!(refused.message.contains("spec.scheduling.gang"));
    assert_eq!(condition(ConditionType::Ready).reason, "NotAccepted");
    let engines = condition(ConditionType::EnginesReady);
    assert_eq!(engines.status, "True", "the groups still serve");
    assert_eq!(after.replicas, 1);
    assert_eq!(after.conditions.len(), 10);
}

#[test]
fn the_pinned_digest_and_the_time_to_load_are_said_once_a_group_serves() {
    let digest = "a".repeat(64);
    let reference = format!("registry.example/model@sha256:{digest}");
    let mut fake = Fake::new(json!({ "model": { "source": { "image": { "reference": reference } } } }));
    fake.reconcile();
    assert_eq!(fake.status().model.unwrap().resolved_digest, None);
    fake.settle();
    let model = fake.status().model.unwrap();
    assert_eq!(model.resolved_digest, Some(digest));
    let seconds = model.last_load_seconds.unwrap();
    assert!((1..600).contains(&seconds), "{seconds}");
}

/// Where images are built from nothing, nothing but what the first container brings can run in the second.
#[test]
fn a_model_in_an_image_is_copied_by_a_program_that_is_brought_along() {
    let image = |path: Value| json!({ "model": { "source": { "image": { "reference": "r/m@sha256:0", "path": path, "pullPolicy": "Never" } } } });
    for (path, from) in [
        (Value::Null, "/models"),
        (json!("weights/m.gguf"), "/weights/m.gguf"),
    ] {
        let mut fake = Fake::new(image(path));
        fake.reconcile();
        let pod = &fake.sets()[0].object["spec"]["template"]["spec"];
        let [copier, model] = &pod["initContainers"].as_array().unwrap()[..] else {
            panic!("{pod}");
        };
        let engine = &pod["containers"][0];
        assert_eq!(copier["image"], engine["image"]);
        let tools = &copier["volumeMounts"][0]["mountPath"];
        assert_eq!(copier["args"], json!(["models", "install-copier", tools]));
        assert_eq!(
            (&model["image"], &model["imagePullPolicy"]),
            (&json!("r/m@sha256:0"), &json!("Never"))
        );
        assert_eq!(
            model["command"][0],
            json!(format!("{}/loader", tools.as_str().unwrap()))
        );
        let target = &model["volumeMounts"][1];
        assert_eq!(
            model["args"],
            json!(["models", "copy", from, target["mountPath"]])
        );
        let mounts = engine["volumeMounts"].as_array().unwrap();
        let seen = mounts
            .iter()
            .find(|mount| mount["name"] == target["name"])
            .unwrap();
        assert_eq!(
            (&seen["mountPath"], &seen["readOnly"]),
            (&json!("/models"), &json!(true))
        );
        for container in [copier, model] {
            assert_eq!(container["securityContext"], engine["securityContext"]);
            assert_eq!(container["resources"], engine["resources"]);
            assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError");
        }
        let volumes = pod["volumes"].as_array().unwrap();
        assert!(volumes.iter().all(|volume| volume.get("image").is_none()));
    }
}

#[test]
fn an_image_that_cannot_be_had_is_said_of_the_model() {
    let mut fake = Fake::new(json!({ "model": { "source": { "image": { "reference": "r/m@sha256:0" } } } }));
    fake.reconcile();
    fake.tick(1);
    let why = "ErrImagePull: failed to resolve r/m@sha256:0: not found";
    for pod in fake.pods.values_mut() {
        pod.view.waiting = Some("ErrImagePull".to_owned());
        pod.view.model_image_refused = Some(why.to_owned());
    }
    fake.reconcile();
    assert_eq!(
        fake.condition("ModelReady"),
        ("False".to_owned(), "SourceNotFound".to_owned())
    );
    assert_eq!(
        fake.condition("EnginesReady"),
        ("False".to_owned(), "ImagePullFailed".to_owned())
    );
    let status = fake.status();
    let engines = status
        .conditions
        .iter()
        .find(|c| c.type_ == "EnginesReady")
        .unwrap();
    assert!(
        engines.message.contains("spec.model.source.image"),
        "{}",
        engines.message
    );
}

#[test]
fn pods_have_no_privileges_no_token_and_no_writable_root() {
    let mut fake = Fake::new(json!({}));
    fake.reconcile();
    let mut seen = 0;
    for live in fake
        .objects
        .values()
        .filter(|o| matches!(o.reference.kind, Kind::StatefulSet | Kind::Deployment))
    {
        let pod = &live.object["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert!(pod["hostNetwork"].is_null() && pod["hostPID"].is_null());
        for container in pod["containers"].as_array().unwrap() {
            let context = &container["securityContext"];
            assert_eq!(context["readOnlyRootFilesystem"], true);
            assert_eq!(context["allowPrivilegeEscalation"], false);
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
}

#[test]
fn overrides_reach_the_pod_and_leave_the_rest_alone() {
    let mut fake = Fake::new(
        json!({ "podOverrides": { "metadata": { "annotations": { "team": "a" } }, "spec": {
        "containers": [{ "name": "engine", "volumeMounts": [{ "name": "shm", "mountPath": "/dev/shm" }] }],
        "volumes": [{ "name": "shm", "emptyDir": { "medium": "Memory" } }],
    } } }),
    );
    fake.reconcile();
    let set = fake.sets()[0].object.clone();
    let template = &set["spec"]["template"];
    assert_eq!(template["metadata"]["annotations"]["team"], "a");
    assert_eq!(template["metadata"]["labels"]["kvasir.dev/group"], "0");
    let mounts = template["spec"]["containers"][0]["volumeMounts"]
        .as_array()
        .unwrap();
    assert!(
        mounts.iter().any(|m| m["mountPath"] == "/dev/shm")
            && mounts.iter().any(|m| m["mountPath"] == "/models")
    );
}

#[test]
fn no_object_but_a_secret_holds_a_secret_and_roles_name_what_they_read() {
    let mut fake = Fake::new(json!({ "gateway": { "auth": { "apiKeySecrets": [{ "name": "keys-a" }] } } }));
    fake.reconcile();
    assert!(!fake.objects.values().any(|o| o.reference.kind == Kind::Secret));
    for role in fake.objects.values().filter(|o| o.reference.kind == Kind::Role) {
        for rule in role.object["rules"].as_array().unwrap() {
            assert!(!rule["resourceNames"].as_array().unwrap().is_empty());
            assert!(!rule["verbs"].as_array().unwrap().contains(&json!("*")));
        }
    }
    let gateway = fake
        .objects
        .values()
        .find(|o| o.reference.kind == Kind::Deployment)
        .unwrap();
    let volumes = &gateway.object["spec"]["template"]["spec"]["volumes"];
    let keys = volumes
        .as_array()
        .unwrap()
        .iter()
        .find(|v| v["name"] == "keys")
        .unwrap();
    assert_eq!(keys["projected"]["sources"][0]["secret"]["name"], "keys-a");
}

#[test]
fn an_object_of_somebody_else_with_a_name_we_need_is_a_collision() {
    let mut fake = Fake::new(json!({}));
    let object =
        json!({ "metadata": { "name": "chat-gateway", "namespace": "team", "uid": "x" }, "spec": {} });
    let live = kvasir_operator_core::child::Live::new(Kind::Service, object).unwrap();
    fake.objects.insert(live.reference.clone(), live.clone());
    fake.reconcile();
    assert_eq!(
        fake.condition("Accepted"),
        ("False".to_owned(), "NameCollision".to_owned())
    );
    assert_eq!(fake.objects[&live.reference], live);
}

#[test]
fn rules_are_made_where_they_are_wanted_and_name_the_service() {
    let rules = |known: bool, wanted: bool| {
        let mut fake = Fake::new(json!({ "observability": { "rules": wanted } }));
        fake.settings
            .known_kinds
            .extend(known.then_some(Kind::PrometheusRule));
        fake.settle();
        let found = fake
            .objects
            .values()
            .find(|live| live.reference.kind == Kind::PrometheusRule);
        found.map(|live| live.object.clone())
    };
    assert!(rules(false, true).is_none() && rules(true, false).is_none());
    let made = rules(true, true).unwrap();
    let all = made["spec"]["groups"][0]["rules"].as_array().unwrap();
    assert_eq!(all.len(), 3);
    for rule in all {
        let expression = rule["expr"].as_str().unwrap();
        assert!(
            expression.contains("namespace=\"team\",model_name=\"chat\""),
            "{expression}"
        );
    }
    // Most of those that wait do so in the gateway.
    let full = all[2]["expr"].as_str().unwrap();
    let waiting = r#"kvasir_gateway_waiting_requests{namespace="team",pod=~"chat-gateway-.*",model_name=""}"#;
    assert!(full.contains(waiting), "{full}");
}

#[test]
fn a_guests_requests_wait_in_its_hosts_gateway() {
    let gateway = json!({ "enabled": false, "gatewayRef": { "name": "front" } });
    let mut fake = Fake::new(json!({ "observability": { "rules": true }, "gateway": gateway }));
    fake.settings.known_kinds.insert(Kind::PrometheusRule);
    fake.settle();
    let mut rules = fake.objects.values();
    let rules = rules.find(|live| live.reference.kind == Kind::PrometheusRule);
    let full = rules.unwrap().object["spec"]["groups"][0]["rules"][2]["expr"].to_string();
    assert!(
        full.contains("front-gateway-.*") && full.contains(r#"model_name=\"chat\"}) > 0)"#),
        "{full}"
    );
}

#[test]
fn pods_are_monitored_where_the_cluster_knows_monitors_and_the_service_wants_one() {
    let monitors = |known: bool, spec: Value| {
        let mut fake = Fake::new(spec);
        fake.settings
            .known_kinds
            .extend(known.then_some(Kind::PodMonitor));
        fake.settle();
        fake.objects
            .values()
            .filter(|live| live.reference.kind == Kind::PodMonitor)
            .map(|live| live.object.clone())
            .collect::<Vec<_>>()
    };
    let labels =
        json!({ "observability": { "labels": { "release": "prometheus", "kvasir.dev/service": "x" } } });
    assert!(monitors(false, labels.clone()).is_empty());
    assert!(monitors(true, json!({ "observability": { "podMonitor": false } })).is_empty());
    let found = monitors(true, labels);
    let [monitor] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(monitor["metadata"]["labels"]["kvasir.dev/service"], "chat");
    assert_eq!(
        monitor["spec"]["selector"]["matchLabels"]["kvasir.dev/service"],
        "chat"
    );
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], "metrics");
}

/// What a service whose operator was started again is written, after `change`.
fn written_after_restart(change: impl FnOnce(&mut Fake)) -> usize {
    let mut fake = Fake::new(json!({}));
    fake.settle();
    change(&mut fake);
    fake.restart_operator();
    fake.reconcile().write.len()
}

#[test]
fn a_restarted_operator_writes_nothing_where_nothing_changed() {
    assert_eq!(written_after_restart(|_| ()), 0);
}

#[test]
fn a_restarted_operator_writes_everything_of_a_service_that_somebody_changed_meanwhile() {
    let edit = |fake: &mut Fake| {
        let (reference, live) = fake
            .objects
            .iter()
            .find(|(reference, _)| reference.kind == Kind::ConfigMap)
            .map(|(reference, live)| (reference.clone(), live.clone()))
            .unwrap();
        let mut object = live.object;
        object["data"]["stray"] = "x".into();
        let live = kvasir_operator_core::child::Live::new(reference.kind, object).unwrap();
        fake.objects.insert(reference, live);
    };
    let all = Fake::new(json!({})).reconcile().write.len();
    assert_eq!(written_after_restart(edit), all);
}

#[test]
fn a_name_that_a_user_chose_is_no_part_of_an_expression_and_no_template_of_prometheus() {
    let name = "a\\\"} or vector(1) > 0\n{{ query \"up\" }}";
    let mut fake = Fake::new(json!({ "observability": { "rules": true } }));
    fake.edit(|spec| spec.model.name = Some(name.to_owned()));
    fake.settings.known_kinds.insert(Kind::PrometheusRule);
    fake.reconcile();
    let live = fake
        .objects
        .values()
        .find(|live| live.reference.kind == Kind::PrometheusRule);
    let rule = &live.unwrap().object["spec"]["groups"][0]["rules"][2];
    let expression = rule["expr"].as_str().unwrap();
    let escaped = r#"model_name="a\\\"} or vector(1) > 0\n{{ query \"up\" }}"}"#;
    assert!(expression.contains(escaped), "{expression}");
    let summary = rule["annotations"]["summary"].as_str().unwrap();
    assert!(
        summary.contains("{{ `{{` }} query") && !summary.contains("{{ query"),
        "{summary}"
    );
}

#[test]
fn overrides_that_would_take_away_what_the_operator_put_there_are_refused() {
    for (overrides, field) in [
        (
            json!({ "metadata": { "labels": null } }),
            "spec.podOverrides.metadata.labels",
        ),
        (
            json!({ "spec": { "volumes": null } }),
            "spec.podOverrides.spec.volumes",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "engine", "volumeMounts": null }] } }),
            "spec.podOverrides.spec.containers[0].volumeMounts",
        ),
    ] {
        let service = fake::service(json!({ "podOverrides": overrides }));
        let errors = validate(&service, &Settings::default()).unwrap_err();
        assert!(errors.iter().any(|error| error.path == field), "{errors:?}");
    }
}

#[test]
fn no_pod_starts_behind_a_policy_that_is_somebody_elses() {
    let mut fake = Fake::new(json!({}));
    let object = json!({ "metadata": { "name": "chat-deny", "namespace": "team", "uid": "x" }, "spec": { "podSelector": {} } });
    let live = kvasir_operator_core::child::Live::new(Kind::NetworkPolicy, object).unwrap();
    fake.objects.insert(live.reference.clone(), live.clone());
    for _ in 0..3 {
        fake.reconcile();
    }
    let starts_pods = |kind: Kind| matches!(kind, Kind::StatefulSet | Kind::Deployment);
    assert!(!fake.objects.keys().any(|object| starts_pods(object.kind)));
    let secured = ("False".to_owned(), "PolicyApplyFailed".to_owned());
    assert_eq!(fake.condition("NetworkSecured"), secured);
    fake.objects.remove(&live.reference);
    fake.settle();
    assert_eq!(fake.condition("Ready").0, "True");
}

#[test]
fn a_kept_revision_has_the_order_of_keys_that_any_patch_of_it_leaves() {
    let mut fake =
        Fake::new(json!({ "engine": { "maxModelLen": 8, "env": [{ "name": "A", "value": "b" }] } }));
    fake.reconcile();
    let is_revision =
        |object: &&kvasir_operator_core::child::Live| object.reference.kind == Kind::ControllerRevision;
    let data = &fake.objects.values().find(is_revision).unwrap().object["data"];
    let mut sorted = data.clone();
    sorted.sort_all_objects();
    assert_eq!(data.to_string(), sorted.to_string());
}
