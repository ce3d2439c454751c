//! What the definition promises: structural, bounded, small, documented; and names that can't collide.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::names::{Names, fit, is_rfc_1035};
use crate::{ConditionType, InferenceService, InferenceServiceSpec, Reason, crd, labels, names};

fn definition() -> Value {
    serde_json::to_value(crd()).unwrap()
}

fn schema() -> Value {
    definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Calls `visit` with the path and the schema of each field.
fn walk(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    if let Some(properties) = schema["properties"].as_object() {
        for (name, inner) in properties {
            walk(&format!("{path}.{name}"), inner, visit);
        }
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            walk(&format!("{path}{suffix}"), &schema[key], visit);
        }
    }
}

fn minimal() -> Value {
    json!({ "model": { "source": { "pvc": { "claimName": "models" } } } })
}

#[test]
fn group_version_names_and_scope_are_those_of_the_design() {
    let definition = definition();
    assert_eq!(definition["metadata"]["name"], "inferenceservices.kvasir.dev");
    let names = &definition["spec"]["names"];
    assert_eq!(names["kind"], "InferenceService");
    assert_eq!(names["shortNames"], json!(["kis"]));
    assert_eq!(names["categories"], json!(["kvasir", "inference"]));
    assert_eq!(definition["spec"]["scope"], "Namespaced");
    let version = &definition["spec"]["versions"][0];
    assert_eq!(version["name"], "v1alpha1");
    assert_eq!(
        version["selectableFields"],
        json!([{ "jsonPath": ".spec.model.name" }])
    );
}

#[test]
fn scale_subresource_names_replicas_and_the_leaders_selector() {
    assert_eq!(
        definition()["spec"]["versions"][0]["subresources"]["scale"],
        json!({
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        })
    );
}

#[test]
fn schema_is_structural() {
    walk("", &schema(), &mut |path, schema| {
        for key in [
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "$ref",
            "nullable",
            "title",
            "definitions",
            "const",
        ] {
            assert!(schema.get(key).is_none(), "{path} has {key}: {schema}");
        }
        let typed = schema["type"].is_string() || schema["x-kubernetes-int-or-string"] == true;
        assert!(typed, "{path} has no type: {schema}");
    });
}

#[test]
fn every_integer_and_every_list_in_the_spec_has_bounds() {
    walk("spec", &schema()["properties"]["spec"], &mut |path, schema| {
        if schema["type"] == "integer" {
            assert!(
                schema["minimum"].is_number() && schema["maximum"].is_number(),
                "{path} has no bounds"
            );
            assert!(schema["format"].is_null(), "{path}: the bounds say it all");
        }
        if schema["type"] == "array" {
            assert!(schema["maxItems"].is_u64(), "{path} may be endless");
            // Items that are named are merged by their names; others make up the list as a whole. Two Gateways may have one name.
            let named = schema["items"]["properties"]["name"].is_object() && !path.ends_with("parentRefs");
            assert_eq!(
                schema["x-kubernetes-list-type"] == "map",
                named || path.ends_with("metrics") || path.ends_with("topologySpreadConstraints"),
                "{path}"
            );
        }
        if schema["additionalProperties"].is_object() {
            assert!(schema["maxProperties"].is_u64(), "{path} may be endless");
        }
    });
}

#[test]
fn every_string_that_a_rule_reads_has_a_longest_length() {
    walk("spec", &schema()["properties"]["spec"], &mut |path, schema| {
        let free = schema["type"] == "string" && schema["enum"].is_null() && !path.ends_with("{}");
        let bounded = schema["maxLength"].is_u64() || schema["pattern"].as_str().is_some_and(has_own_length);
        assert!(!free || bounded, "{path} has no maxLength");
    });
}

/// A pattern such as `^[0-9a-f]{64}$`, which fixes the length itself.
fn has_own_length(pattern: &str) -> bool {
    pattern.starts_with("^[") && pattern.ends_with("}$")
}

#[test]
fn every_map_list_requires_or_defaults_its_keys() {
    walk("", &schema(), &mut |path, schema| {
        if schema["x-kubernetes-list-type"] == "map" {
            for key in schema["x-kubernetes-list-map-keys"].as_array().unwrap() {
                let required = schema["items"]["required"]
                    .as_array()
                    .is_some_and(|all| all.contains(key));
                let default = &schema["items"]["properties"][key.as_str().unwrap()]["default"];
                assert!(required || !default.is_null(), "{path}: key {key} may be absent");
            }
        }
    });
}

#[test]
fn every_field_is_documented_in_full_sentences() {
    let known = ["", ".apiVersion", ".kind", ".metadata"];
    walk("", &schema(), &mut |path, schema| {
        if known.contains(&path) || path.ends_with("[]") || path.ends_with("{}") {
            return;
        }
        let text = schema["description"].as_str().unwrap_or_default();
        assert!(
            text.ends_with('.') || text.ends_with(':'),
            "{path} is described as {text:?}"
        );
        assert!(!text.contains('\n'), "{path}");
    });
}

#[test]
fn a_minimal_manifest_gets_every_default_of_the_specification() {
    let spec: InferenceServiceSpec = serde_json::from_value(minimal()).unwrap();
    assert_eq!(spec.replicas, 1);
    assert!(!spec.suspend);
    assert_eq!(spec.engine.ports.grpc, 50051);
    assert!(spec.engine.prefix_caching);
    assert_eq!(
        (spec.topology.tensor, spec.topology.pipeline, spec.topology.data),
        (1, 1, 1)
    );
    assert_eq!((spec.rollout.max_surge, spec.rollout.max_unavailable), (1, 0));
    assert_eq!(spec.restart_policy.max_group_restarts, 6);
    assert_eq!(spec.disruption.drain_timeout_seconds, 300);
    assert_eq!(spec.gateway.replicas, 2);
    assert_eq!(spec.tls.validity_hours, 24);
    assert_eq!(spec.network.dns.ports, vec![53]);
}

/// Fills in the schema's defaults as the API server does.
fn apply_defaults(schema: &Value, value: &mut Value) {
    if let (Some(properties), Some(object)) = (schema["properties"].as_object(), value.as_object_mut()) {
        for (name, inner) in properties {
            if !object.contains_key(name) && !inner["default"].is_null() {
                object.insert(name.clone(), inner["default"].clone());
            }
            if let Some(field) = object.get_mut(name) {
                apply_defaults(inner, field);
            }
        }
    }
    if let Some(items) = value.as_array_mut() {
        for item in items {
            apply_defaults(&schema["items"], item);
        }
    }
}

#[test]
fn defaults_of_the_schema_are_those_of_the_types() {
    let mut defaulted = minimal();
    defaulted["autoscaling"] = json!({ "maxReplicas": 3 });
    defaulted["gateway"] = json!({ "tenants": [{ "name": "a" }] });
    defaulted["network"] = json!({ "modelEgress": [{ "cidr": "10.0.0.0/8" }] });
    let by_type: InferenceServiceSpec = serde_json::from_value(defaulted.clone()).unwrap();
    apply_defaults(&schema()["properties"]["spec"], &mut defaulted);
    assert_eq!(
        defaulted["topology"]["devicesPerPod"], 1,
        "the schema has defaults at all"
    );
    let by_schema: InferenceServiceSpec = serde_json::from_value(defaulted.clone()).unwrap();
    assert_eq!(by_type, by_schema);
    // What we write back is what the API server stored: no field appears or vanishes.
    assert_eq!(serde_json::to_value(&by_schema).unwrap(), defaulted);
}

#[test]
fn autoscaling_without_a_mode_means_internal() {
    let mut spec = minimal();
    spec["autoscaling"] = json!({ "maxReplicas": 3 });
    let spec: InferenceServiceSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.autoscaling.unwrap().mode, crate::AutoscalingMode::Internal);
}

#[test]
fn quantities_may_be_numbers() {
    let mut spec = minimal();
    spec["engine"] = json!({ "resources": { "requests": { "cpu": 2, "memory": "4Gi" } } });
    let spec: InferenceServiceSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.engine.resources.requests["cpu"].0, "2");
}

#[test]
fn conditions_and_reasons_are_distinct_pascal_case_words() {
    let types: BTreeSet<_> = ConditionType::ALL.iter().map(|t| t.as_str()).collect();
    assert_eq!(types.len(), ConditionType::ALL.len());
    for reason in Reason::ALL {
        let text = reason.as_str();
        assert!(text.starts_with(|c: char| c.is_ascii_uppercase()), "{text}");
        assert!(text.chars().all(|c| c.is_ascii_alphanumeric()), "{text}");
    }
}

#[test]
fn resource_round_trips_through_json() {
    let object = json!({
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": { "name": "chat", "namespace": "team" },
        "spec": minimal(),
    });
    let service: InferenceService = serde_json::from_value(object).unwrap();
    let again: InferenceService = serde_json::from_value(serde_json::to_value(&service).unwrap()).unwrap();
    assert_eq!(service, again);
}

/// All names of one service's children.
fn children(service: &str) -> BTreeMap<String, &'static str> {
    let names = Names::new(service);
    let mut all = BTreeMap::from([
        (names.ranks_service(), "ranks"),
        (names.engine_service(), "engines"),
        (names.gateway(), "gateway"),
        (names.gateway_config(), "gateway config"),
        (names.gateway_secret(), "gateway secret"),
        (names.engine_account(), "engine"),
        (names.trust_bundle(), "trust"),
        (names.metrics_service(), "metrics"),
        (names.authority(), "authority"),
        (names.gateway_certificate(), "gateway certificate"),
        (names.gateway_issued(), "gateway issued"),
        (names.operator_certificate(), "operator certificate"),
        (names.revision("0123456789"), "revision"),
    ]);
    for id in [0, 1, 12, names::MAX_GROUP_ID] {
        all.insert(names.group(id), "group");
        all.insert(names.group_config(id), "group config");
        all.insert(names.group_certificate(id), "group certificate");
        all.insert(names.group_issued(id), "group issued");
    }
    all
}

#[test]
fn longest_names_fit_what_kubernetes_allows() {
    let service = "a".repeat(names::MAX_SERVICE_NAME);
    for name in children(&service).keys() {
        assert!(is_rfc_1035(name), "{name}");
    }
    let group = Names::new(&service).group(names::MAX_GROUP_ID);
    assert!(group.len() + 1 + 10 <= 63, "revision label of {group}");
}

#[test]
fn children_of_services_named_like_each_others_children_have_other_names() {
    let base = "chat";
    for child in children(base).keys() {
        let other = children(child);
        for name in children(base).keys() {
            assert!(
                !other.contains_key(name),
                "{name} belongs to {base} and to {child}"
            );
        }
    }
}

#[test]
fn group_id_is_read_back_from_its_name_only() {
    let names = Names::new("chat");
    assert_eq!(names.group_id("chat-g7"), Some(7));
    for other in [
        "chat-g07",
        "chat-g+7",
        "chat-g-7",
        "chat-g",
        "chat-g7-0",
        "other-g7",
        "chat-g4096",
        "chat-gateway",
    ] {
        assert_eq!(names.group_id(other), None, "{other}");
    }
}

#[test]
fn leaders_selector_names_service_component_and_ordinal() {
    assert_eq!(
        labels::leaders_selector("chat"),
        "kvasir.dev/service=chat,kvasir.dev/component=engine,apps.kubernetes.io/pod-index=0"
    );
}

#[test]
fn rendezvous_is_fully_qualified() {
    assert_eq!(
        Names::new("chat").rendezvous(3, "team", "cluster.local", 29500),
        "chat-g3-0.chat-ranks.team.svc.cluster.local.:29500"
    );
}

proptest! {
    #[test]
    fn any_name_is_made_valid_and_stays_distinct(a in "\\PC{1,80}", b in "\\PC{1,80}") {
        let (fitted_a, fitted_b) = (fit(&a, 40), fit(&b, 40));
        prop_assert!(is_rfc_1035(&fitted_a), "{fitted_a}");
        prop_assert!(fitted_a.len() <= 40);
        prop_assert_eq!(a == b, fitted_a == fitted_b);
    }

    #[test]
    fn any_json_that_parses_as_a_spec_is_written_back_the_same(replicas in 0..1000i32, tensor in 1..64i32, name in "[a-z]{1,9}") {
        let mut value = minimal();
        value["replicas"] = replicas.into();
        value["topology"] = json!({ "tensor": tensor });
        value["model"]["name"] = name.into();
        let spec: InferenceServiceSpec = serde_json::from_value(value).unwrap();
        let again: InferenceServiceSpec = serde_json::from_value(serde_json::to_value(&spec).unwrap()).unwrap();
        prop_assert_eq!(spec, again);
    }
}
