//! Fields of the pod spec that Kubernetes doesn't know: an API server would drop them without a word.

use k8s_openapi::api::core::v1::PodSpec;
use kvasir_operator_api::Reason;
use serde_json::Value;

use crate::field_error::FieldError;

/// Refuses fields of `spec`, at `path`, that no pod has, and values of a kind that their field can't have.
pub(super) fn check(path: &str, spec: &Value, errors: &mut Vec<FieldError>) {
    let mut given = spec.clone();
    remove_nulls(&mut given);
    // Each turn refuses one value and goes on without it.
    while let Err(error) = serde_json::from_value::<PodSpec>(given.clone()) {
        let Some(pointer) = culprit(&given, &error.to_string()) else {
            return errors.push(FieldError::new(
                path,
                Reason::OverrideForbidden,
                error.to_string(),
            ));
        };
        let message = format!("{error}: no pod can have this value");
        errors.push(FieldError::new(
            dotted(path, &pointer),
            Reason::OverrideForbidden,
            message,
        ));
        remove(&mut given, &pointer);
    }
    let kept = serde_json::from_value::<PodSpec>(given.clone()).and_then(serde_json::to_value);
    compare(path, &given, &kept.unwrap_or_default(), errors);
}

/// Null in a patch removes what is there; it says nothing of a pod.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

fn compare(path: &str, given: &Value, kept: &Value, errors: &mut Vec<FieldError>) {
    match given {
        Value::Object(fields) => {
            // What is empty by itself, as an empty list, needn't survive.
            for (key, value) in fields {
                let path = format!("{path}.{key}");
                match kept.get(key) {
                    Some(kept) => compare(&path, value, kept, errors),
                    None if is_empty_list(value) => {}
                    None => errors.push(FieldError::new(
                        path,
                        Reason::OverrideForbidden,
                        "pods have no such field, and Kubernetes would drop it without a word: look for a typing mistake or a wrong place",
                    )),
                }
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                compare(&format!("{path}[{i}]"), item, &kept[i], errors);
            }
        }
        _ => {}
    }
}

fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// One step into a value.
#[derive(Clone)]
enum Step {
    Key(String),
    Index(usize),
}

/// The deepest value without which this error doesn't come: reading ends at the first one.
fn culprit(root: &Value, error: &str) -> Option<Vec<Step>> {
    let mut all = Vec::new();
    places(root, &mut Vec::new(), &mut all);
    all.sort_by_key(|place| std::cmp::Reverse(place.len()));
    all.into_iter().find(|place| {
        let mut without = root.clone();
        remove(&mut without, place);
        serde_json::from_value::<PodSpec>(without).map_or_else(|other| other.to_string() != error, |_| true)
    })
}

/// How many values are looked at for a culprit: a spec that a person wrote has far fewer.
const MOST_PLACES: usize = 2000;

fn places(value: &Value, at: &mut Vec<Step>, all: &mut Vec<Vec<Step>>) {
    let children: Vec<(Step, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (Step::Key(key.clone()), value))
            .collect(),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(i, item)| (Step::Index(i), item))
            .collect(),
        _ => return,
    };
    for (step, child) in children {
        if all.len() >= MOST_PLACES {
            return;
        }
        at.push(step);
        all.push(at.clone());
        places(child, at, all);
        at.pop();
    }
}

fn remove(value: &mut Value, place: &[Step]) {
    let Some((last, way)) = place.split_last() else {
        return;
    };
    let mut at = value;
    for step in way {
        let next = match step {
            Step::Key(key) => at.get_mut(key),
            Step::Index(i) => at.get_mut(i),
        };
        let Some(next) = next else { return };
        at = next;
    }
    match (last, at) {
        (Step::Key(key), Value::Object(fields)) => drop(fields.remove(key)),
        // An item that is taken out would give the others other numbers.
        (Step::Index(i), Value::Array(items)) => {
            if let Some(item) = items.get_mut(*i) {
                *item = Value::Object(serde_json::Map::new());
            }
        }
        _ => {}
    }
}

fn dotted(path: &str, place: &[Step]) -> String {
    place.iter().fold(path.to_owned(), |path, step| match step {
        Step::Key(key) => format!("{path}.{key}"),
        Step::Index(i) => format!("{path}[{i}]"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(spec: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        check("spec", spec, &mut errors);
        errors.into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn fields_that_no_pod_has_are_refused_at_every_depth() {
        for (spec, path) in [
            (json!({ "prioritty": 1 }), "spec.prioritty"),
            (
                json!({ "containers": [{ "name": "engine", "tyy": true }] }),
                "spec.containers[0].tyy",
            ),
            (
                json!({ "containers": [{ "name": "a" }, { "name": "b", "securityContext": { "runAsUsr": 1 } }] }),
                "spec.containers[1].securityContext.runAsUsr",
            ),
            (
                json!({ "volumes": [{ "name": "v", "emptyDir": { "sizelimit": "1Gi" } }] }),
                "spec.volumes[0].emptyDir.sizelimit",
            ),
            (
                json!({ "affinity": { "nodeAffinity": { "required": {} } } }),
                "spec.affinity.nodeAffinity.required",
            ),
        ] {
            assert_eq!(paths(&spec), [path]);
        }
    }

    #[test]
    fn values_that_their_field_cannot_have_are_refused_where_they_stand() {
        assert_eq!(
            paths(
                &json!({ "priority": "high", "containers": [{ "name": "engine", "tty": "yes", "stdin": true }] })
            ),
            ["spec.priority", "spec.containers[0].tty"]
        );
        assert_eq!(paths(&json!({ "containers": [1] })), ["spec.containers[0]"]);
        assert_eq!(paths(&json!("all")), ["spec"]);
    }

    #[test]
    fn what_pods_have_is_taken() {
        let spec = json!({
            "containers": [{ "name": "engine", "volumeMounts": [{ "name": "shm", "mountPath": "/dev/shm" }], "tty": false, "terminationMessagePath": null }],
            "volumes": [{ "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": "1Gi" } }, { "name": "x", "emptyDir": {} }],
            "affinity": { "podAffinity": {} }, "tolerations": [], "enableServiceLinks": false, "terminationGracePeriodSeconds": 0,
            "nodeSelector": { "a": "" },
        });
        assert!(paths(&spec).is_empty(), "{:?}", paths(&spec));
    }
}
