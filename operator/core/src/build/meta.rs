//! Metadata that every child has: name, namespace, labels, and the service as its owner.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kvasir_operator_api::labels;

use crate::validate::Validated;

/// Metadata of one of the service's own objects.
pub fn of_service(service: &Validated, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(service.namespace.clone()),
        labels: Some(labels::of_service(service.names.service())),
        owner_references: Some(vec![owner(service)]),
        ..ObjectMeta::default()
    }
}

/// Metadata of an object that belongs to one group.
pub fn of_group(service: &Validated, id: i32, name: &str) -> ObjectMeta {
    let mut metadata = of_service(service, name);
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::GROUP.to_owned(), id.to_string());
    metadata
}

fn owner(service: &Validated) -> OwnerReference {
    OwnerReference {
        api_version: "kvasir.dev/v1alpha1".to_owned(),
        kind: "InferenceService".to_owned(),
        name: service.name.clone(),
        uid: service.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A selector of pods that have all these labels.
pub fn selector(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector {
        match_labels: Some(labels),
        match_expressions: None,
    }
}

/// A selector as a user wrote it.
pub fn user_selector(selector: &kvasir_operator_api::LabelSelector) -> LabelSelector {
    LabelSelector {
        match_labels: (!selector.match_labels.is_empty()).then(|| selector.match_labels.clone()),
        match_expressions: None,
    }
}
