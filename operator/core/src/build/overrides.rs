//! Merges a user's overrides into a pod template, the way a strategic merge patch does for the lists that pods have:
//! lists whose items have a name are merged by it, other lists are replaced, null removes.

use serde_json::Value;

/// Lists that are merged by a key of their items.
const KEYED: &[(&str, &str)] = &[
    ("containers", "name"),
    ("volumes", "name"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("imagePullSecrets", "name"),
    ("topologySpreadConstraints", "topologyKey"),
    ("resourceClaims", "name"),
];

/// Merges `patch` into `base`.
pub fn merge(base: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *base = patch.clone();
        return;
    };
    if !base.is_object() {
        *base = Value::Object(serde_json::Map::new());
    }
    for (key, change) in changes {
        let keyed = KEYED.iter().find(|(list, _)| list == key).map(|(_, by)| *by);
        match (change, keyed) {
            (Value::Null, _) => {
                if let Some(object) = base.as_object_mut() {
                    object.remove(key);
                }
            }
            (Value::Array(items), Some(by)) => merge_list(&mut base[key.as_str()], items, by),
            _ => merge(&mut base[key.as_str()], change),
        }
    }
}

fn merge_list(base: &mut Value, items: &[Value], by: &str) {
    if !base.is_array() {
        *base = Value::Array(Vec::new());
    }
    let Some(list) = base.as_array_mut() else { return };
    for item in items {
        match list.iter_mut().find(|existing| existing[by] == item[by]) {
            Some(existing) => merge(existing, item),
            None => list.push(item.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_and_volumes_are_merged_by_name() {
        let mut template = json!({ "spec": {
            "containers": [{ "name": "engine", "image": "a", "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }] }],
            "volumes": [{ "name": "tmp", "emptyDir": {} }],
        }});
        let patch = json!({ "spec": {
            "containers": [{ "name": "engine", "volumeMounts": [{ "name": "shm", "mountPath": "/dev/shm" }] }],
            "volumes": [{ "name": "shm", "emptyDir": { "medium": "Memory" } }],
        }});
        merge(&mut template, &patch);
        assert_eq!(template["spec"]["containers"][0]["image"], "a");
        assert_eq!(
            template["spec"]["containers"][0]["volumeMounts"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
        assert_eq!(template["spec"]["volumes"][1]["emptyDir"]["medium"], "Memory");
    }

    #[test]
    fn null_removes_and_plain_lists_are_replaced() {
        let mut base = json!({ "a": 1, "list": [1, 2] });
        merge(&mut base, &json!({ "a": null, "list": [3] }));
        assert_eq!(base, json!({ "list": [3] }));
    }
}
