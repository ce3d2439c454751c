//! The custom resource definition that a cluster gets.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use serde_json::json;

use crate::labels;
use crate::resource::InferenceService;
use crate::rules;
use crate::structural::structural;

/// The definition of `InferenceService`: structural schema with defaults, rules, columns, status and scale subresources.
#[expect(
    clippy::missing_panics_doc,
    reason = "the definition is fixed at build time, and a test makes it"
)]
pub fn crd() -> CustomResourceDefinition {
    let mut definition =
        serde_json::to_value(InferenceService::crd()).expect("a definition made of JSON values serializes");
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["x-kubernetes-validations"] = rules::ROOT.json();
    structural(schema);
    // Helm deletes what a release no longer has; with the definition it would delete every service.
    definition["metadata"]["annotations"] = json!({ "helm.sh/resource-policy": "keep" });
    definition["metadata"]["labels"] = json!({ labels::MANAGED_BY: labels::MANAGED_BY_VALUE });
    serde_json::from_value(definition).expect("only values of the schema were rewritten")
}
