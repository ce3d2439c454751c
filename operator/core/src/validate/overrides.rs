//! Which parts of the pod template a user may override.
//!
//! An allow-list would follow Kubernetes with every release, so this is a list of what the operator owns: what the network
//! policies select on or open, what keeps the pods unprivileged, and what makes a group. Only volumes are an allow-list, because most
//! kinds of them reach the node.

use kvasir_operator_api::Reason;
use serde_json::{Map, Value};

use super::unknown;
use crate::field_error::FieldError;

/// Labels and annotations with this prefix are the operator's.
pub const OWNED_LABEL_PREFIX: &str = "kvasir.dev/";

/// Fields of the pod spec that the operator owns, and where to set them instead.
const OWNED_POD_FIELDS: &[(&str, &str)] = &[
    ("hostNetwork", "network policies don't reach such pods"),
    ("hostPID", "pods share nothing with the node"),
    ("hostIPC", "pods share nothing with the node"),
    ("hostUsers", "pods share nothing with the node"),
    ("securityContext", "pods run without privileges"),
    ("serviceAccountName", "use spec.serviceAccountName"),
    ("serviceAccount", "use spec.serviceAccountName"),
    ("automountServiceAccountToken", "engine pods get no token"),
    ("subdomain", "ranks find each other by it"),
    ("hostname", "ranks find each other by it"),
    ("setHostnameAsFQDN", "ranks find each other by it"),
    ("hostAliases", "ranks find each other by name"),
    ("dnsPolicy", "ranks find each other by name"),
    ("dnsConfig", "ranks find each other by name"),
    ("restartPolicy", "the engine is always restarted"),
    (
        "ephemeralContainers",
        "containers beside the engine share its network identity",
    ),
    (
        "initContainers",
        "containers beside the engine share its network identity",
    ),
    ("nodeName", "use spec.scheduling.nodeSelector"),
    ("hostnameOverride", "ranks find each other by it"),
    ("shareProcessNamespace", "processes see nothing of each other"),
];

/// Fields of the engine container that the operator owns.
const OWNED_CONTAINER_FIELDS: &[(&str, &str)] = &[
    ("securityContext", "the engine runs without privileges"),
    ("ports", "use spec.engine.ports"),
    ("command", "use spec.engine.extraArgs"),
    ("args", "use spec.engine.extraArgs"),
    ("env", "use spec.engine.env"),
    ("envFrom", "use spec.engine.envFrom"),
    ("image", "use spec.engine.image"),
    ("livenessProbe", "readiness decides about requests"),
    ("readinessProbe", "readiness decides about requests"),
    ("startupProbe", "readiness decides about requests"),
    ("lifecycle", "the engine drains when it is stopped"),
];

/// Volumes that a pod may have: those of Kubernetes' restricted pod security, less what could hold a token or name a driver. All others
/// lie on the node or are mounted by it from a place that the pod names.
const ALLOWED_VOLUMES: &[&str] = &[
    "configMap",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "secret",
];

/// Refuses overrides of what the operator owns.
pub(super) fn check(overrides: Option<&Map<String, Value>>, errors: &mut Vec<FieldError>) {
    let Some(overrides) = overrides else { return };
    for (key, value) in overrides {
        match key.as_str() {
            "metadata" => metadata(value, errors),
            "spec" => pod(value, errors),
            other => refuse(
                errors,
                format!("spec.podOverrides.{other}"),
                "only metadata and spec of the pod template can be overridden",
            ),
        }
    }
}

fn refuse(errors: &mut Vec<FieldError>, path: String, why: &str) {
    let message = format!("the operator owns this field ({why}): take it out of podOverrides");
    errors.push(FieldError::new(path, Reason::OverrideForbidden, message));
}

fn metadata(value: &Value, errors: &mut Vec<FieldError>) {
    let Some(fields) = value.as_object() else {
        return refuse(
            errors,
            "spec.podOverrides.metadata".to_owned(),
            "it must be an object",
        );
    };
    for (part, entries) in fields {
        if part != "labels" && part != "annotations" {
            refuse(
                errors,
                format!("spec.podOverrides.metadata.{part}"),
                "only labels and annotations can be added",
            );
            continue;
        }
        let Some(entries) = entries.as_object() else {
            refuse(
                errors,
                format!("spec.podOverrides.metadata.{part}"),
                "it must be an object",
            );
            continue;
        };
        for (key, value) in entries {
            if !value.is_string() {
                let path = format!("spec.podOverrides.metadata.{part}.{key}");
                refuse(errors, path, "a value must be a text");
            }
            if key.starts_with(OWNED_LABEL_PREFIX) || key.contains("kubernetes.io/") {
                refuse(
                    errors,
                    format!("spec.podOverrides.metadata.{part}.{key}"),
                    "policies and selectors rest on it",
                );
            }
        }
    }
}

fn pod(value: &Value, errors: &mut Vec<FieldError>) {
    let base = "spec.podOverrides.spec";
    let Some(fields) = value.as_object() else {
        return refuse(errors, base.to_owned(), "it must be an object");
    };
    // A strategic merge patch can delete and replace through keys that begin with a dollar sign.
    for key in fields.keys().filter(|key| key.starts_with('$')) {
        refuse(
            errors,
            format!("{base}.{key}"),
            "directives could delete what the operator sets",
        );
    }
    for (key, why) in OWNED_POD_FIELDS {
        if fields.contains_key(*key) {
            refuse(errors, format!("{base}.{key}"), why);
        }
    }
    for (i, container) in list(base, fields, "containers", errors) {
        engine_container(&format!("{base}.containers[{i}]"), container, errors);
    }
    for (i, volume) in list(base, fields, "volumes", errors) {
        volume_source(&format!("{base}.volumes[{i}]"), volume, errors);
    }
    let mut further = Vec::new();
    unknown::check(base, value, &mut further);
    // What is refused for what it is needn't be refused for how it is written too.
    let refused: Vec<String> = errors.iter().map(|error| error.path.clone()).collect();
    further.retain(|error| !refused.iter().any(|path| error.path.starts_with(path.as_str())));
    errors.extend(further);
}

/// The items of a list that is merged with the operator's. Anything else in its place, as null, would remove what the operator put there.
fn list<'a>(
    path: &str,
    fields: &'a Map<String, Value>,
    name: &str,
    errors: &mut Vec<FieldError>,
) -> impl Iterator<Item = (usize, &'a Value)> + use<'a> {
    let value = fields.get(name);
    let items = value.and_then(Value::as_array);
    if value.is_some() && items.is_none() {
        refuse(errors, format!("{path}.{name}"), "only items can be added");
    }
    items.into_iter().flatten().enumerate()
}

fn volume_source(path: &str, volume: &Value, errors: &mut Vec<FieldError>) {
    let Some(fields) = volume.as_object() else {
        return refuse(errors, path.to_owned(), "it must be an object");
    };
    for kind in fields.keys().filter(|key| *key != "name") {
        if !ALLOWED_VOLUMES.contains(&kind.as_str()) {
            refuse(
                errors,
                format!("{path}.{kind}"),
                "it could open the node or a token to the pod",
            );
        }
    }
}

fn engine_container(path: &str, container: &Value, errors: &mut Vec<FieldError>) {
    if container["name"] != "engine" {
        return refuse(
            errors,
            format!("{path}.name"),
            "containers beside the engine share its network identity",
        );
    }
    if container
        .get("volumeMounts")
        .is_some_and(|mounts| !mounts.is_array())
    {
        refuse(errors, format!("{path}.volumeMounts"), "only items can be added");
    }
    for (key, why) in OWNED_CONTAINER_FIELDS {
        if container.get(*key).is_some() {
            refuse(errors, format!("{path}.{key}"), why);
        }
    }
    for key in container
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .filter(|key| key.starts_with('$'))
    {
        refuse(
            errors,
            format!("{path}.{key}"),
            "directives could delete what the operator sets",
        );
    }
}
