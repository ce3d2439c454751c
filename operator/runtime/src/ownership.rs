//! Whose the fields of a child are.
//!
//! An apply takes away only what its own manager applied before. So fields that a creation set, which the API server counts as
//! an update, would outlive an apply that leaves them out; and fields that somebody else added (a sidecar, a host network)
//! would stay for ever. Children are ours outright: before an object is applied, everything but metadata becomes ours in the
//! API server's record, and the apply that follows takes away what isn't wanted. Metadata of others stays theirs: controllers
//! keep annotations and finalizers there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Map, Value};

use crate::watch::MANAGER;

/// The record in which everything but others' metadata is ours; nothing if it says that already.
pub(crate) fn claim(managers: Vec<ManagedFieldsEntry>) -> Option<Vec<ManagedFieldsEntry>> {
    let mut ours = Map::new();
    let mut template = None;
    let mut others = Vec::new();
    let mut changed = false;
    for mut entry in managers {
        let is_ours = entry.manager.as_deref() == Some(MANAGER);
        if entry.subresource.is_some() {
            others.push(entry);
            continue;
        }
        let is_apply = entry.operation.as_deref() == Some("Apply");
        let fields = entry.fields_v1.take().map(|fields| fields.0).unwrap_or_default();
        let Value::Object(mut fields) = fields else {
            continue;
        };
        if is_ours {
            changed |= !is_apply;
            merge(&mut ours, fields);
            template.get_or_insert(entry);
            continue;
        }
        let metadata = fields.remove("f:metadata");
        changed |= !fields.is_empty();
        merge(&mut ours, fields);
        if let Some(metadata) = metadata {
            let left = [("f:metadata".to_owned(), metadata)].into_iter().collect();
            entry.fields_v1 = Some(FieldsV1(Value::Object(left)));
            others.push(entry);
        }
    }
    if !changed {
        return None;
    }
    let mut entry = template.or_else(|| others.first().cloned())?;
    entry.manager = Some(MANAGER.to_owned());
    entry.operation = Some("Apply".to_owned());
    entry.fields_v1 = Some(FieldsV1(Value::Object(ours)));
    others.push(entry);
    Some(others)
}

/// Adds the fields of `from` to `into`.
fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(there)), Value::Object(more)) => merge(there, more),
            (Some(_), _) => {}
            (None, value) => drop(into.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            api_version: Some("v1".to_owned()),
            fields_type: Some("FieldsV1".to_owned()),
            fields_v1: Some(FieldsV1(fields)),
            manager: Some(manager.to_owned()),
            operation: Some(operation.to_owned()),
            ..ManagedFieldsEntry::default()
        }
    }

    fn fields(entries: &[ManagedFieldsEntry], manager: &str) -> Value {
        let entry = entries
            .iter()
            .find(|entry| entry.manager.as_deref() == Some(manager));
        entry.unwrap().fields_v1.clone().unwrap().0
    }

    #[test]
    fn what_is_ours_already_is_left_alone() {
        let status = ManagedFieldsEntry {
            subresource: Some("status".to_owned()),
            ..entry("controller", "Update", json!({ "f:status": {} }))
        };
        let metadata = entry(
            "controller",
            "Update",
            json!({ "f:metadata": { "f:annotations": {} } }),
        );
        let ours = entry(MANAGER, "Apply", json!({ "f:spec": {} }));
        assert_eq!(claim(vec![status, metadata, ours]), None);
    }

    #[test]
    fn a_creation_becomes_an_apply() {
        let claimed = claim(vec![entry(MANAGER, "Update", json!({ "f:spec": { "f:a": {} } }))]).unwrap();
        assert_eq!(
            claimed,
            [entry(MANAGER, "Apply", json!({ "f:spec": { "f:a": {} } }))]
        );
    }

    #[test]
    fn fields_of_others_become_ours_and_their_metadata_stays_theirs() {
        let edit = json!({ "f:metadata": { "f:labels": { "f:x": {} } }, "f:spec": { "f:b": {}, "f:a": { "f:c": {} } } });
        let claimed = claim(vec![
            entry("kubectl-edit", "Update", edit),
            entry(MANAGER, "Apply", json!({ "f:spec": { "f:a": { "f:d": {} } } })),
        ])
        .unwrap();
        assert_eq!(
            fields(&claimed, "kubectl-edit"),
            json!({ "f:metadata": { "f:labels": { "f:x": {} } } })
        );
        assert_eq!(
            fields(&claimed, MANAGER),
            json!({ "f:spec": { "f:b": {}, "f:a": { "f:c": {}, "f:d": {} } } })
        );
    }
}
