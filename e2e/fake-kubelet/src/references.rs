//! Secrets and ConfigMaps that a pod needs before it starts.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use crate::play::Obstacle;

/// What isn't there, as the kubelet would say it. `exists` is asked for each kind (`secret`, `configmap`) and name.
pub(crate) fn missing(pod: &Pod, exists: impl Fn(&str, &str) -> bool) -> Option<Obstacle> {
    let spec = pod.spec.as_ref()?;
    let absent = |all: Vec<(&'static str, String)>| all.into_iter().find(|(kind, name)| !exists(kind, name));
    let volumes = spec.volumes.iter().flatten().flat_map(of_volume).collect();
    if let Some((kind, name)) = absent(volumes) {
        return Some(Obstacle {
            reason: "ContainerCreating".to_owned(),
            message: format!("{kind} \"{name}\" not found"),
        });
    }
    let variables = spec.containers.iter().flat_map(of_container).collect();
    absent(variables).map(|(kind, name)| Obstacle {
        reason: "CreateContainerConfigError".to_owned(),
        message: format!("{kind} \"{name}\" not found"),
    })
}

fn of_volume(volume: &Volume) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    if let Some(secret) = volume.secret.as_ref().filter(|s| s.optional != Some(true)) {
        all.extend(secret.secret_name.clone().map(|name| ("secret", name)));
    }
    if let Some(map) = volume.config_map.as_ref().filter(|m| m.optional != Some(true)) {
        all.push(("configmap", map.name.clone()));
    }
    for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        if let Some(secret) = source.secret.as_ref().filter(|s| s.optional != Some(true)) {
            all.push(("secret", secret.name.clone()));
        }
        if let Some(map) = source.config_map.as_ref().filter(|m| m.optional != Some(true)) {
            all.push(("configmap", map.name.clone()));
        }
    }
    all
}

fn of_container(container: &Container) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    for from in container
        .env
        .iter()
        .flatten()
        .filter_map(|v| v.value_from.as_ref())
    {
        if let Some(key) = from.secret_key_ref.as_ref().filter(|k| k.optional != Some(true)) {
            all.push(("secret", key.name.clone()));
        }
        if let Some(key) = from
            .config_map_key_ref
            .as_ref()
            .filter(|k| k.optional != Some(true))
        {
            all.push(("configmap", key.name.clone()));
        }
    }
    for from in container.env_from.iter().flatten() {
        if let Some(secret) = from.secret_ref.as_ref().filter(|s| s.optional != Some(true)) {
            all.push(("secret", secret.name.clone()));
        }
        if let Some(map) = from.config_map_ref.as_ref().filter(|m| m.optional != Some(true)) {
            all.push(("configmap", map.name.clone()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn what_a_pod_mounts_must_be_there_unless_it_is_optional() {
        let pod = serde_json::from_value(serde_json::json!({
            "metadata": {},
            "spec": {
                "volumes": [{"name": "a", "secret": {"secretName": "cert"}}, {"name": "b", "secret": {"secretName": "may", "optional": true}}],
                "containers": [{"name": "c", "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "t"}}}]}],
            },
        }))
        .unwrap();
        let none = missing(&pod, |_, _| false).unwrap();
        assert_eq!(
            (none.reason.as_str(), none.message.as_str()),
            ("ContainerCreating", "secret \"cert\" not found")
        );
        let variable = missing(&pod, |_, name| name == "cert").unwrap();
        assert_eq!(variable.reason, "CreateContainerConfigError");
        assert_eq!(missing(&pod, |_, name| name != "may"), None);
    }
}
