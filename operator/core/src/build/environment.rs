//! The variables of an engine's container.

use k8s_openapi::api::core::v1::{
    ConfigMapEnvSource, ConfigMapKeySelector, EnvFromSource, EnvVar, EnvVarSource, ObjectFieldSelector,
    SecretEnvSource, SecretKeySelector,
};
use kvasir_operator_api::{EngineSpec, HuggingFaceSource, labels};

use crate::ranks::Shape;
use crate::revision::Revision;
use crate::settings::Settings;
use crate::validate::Validated;

/// What clients call the model.
pub const SERVED_NAME: &str = "KVASIR_SERVED_MODEL_NAME";

/// What tells a pod its place, and the user's variables. Reserved names were refused before.
pub fn variables(service: &Validated, id: i32, revision: &Revision, settings: &Settings) -> Vec<EnvVar> {
    let mut all = vec![
        field("KVASIR_POD_NAME", "metadata.name"),
        field("KVASIR_POD_UID", "metadata.uid"),
        field("KVASIR_POD_IP", "status.podIP"),
        field(
            "KVASIR_POD_INDEX",
            &format!("metadata.labels['{}']", labels::POD_INDEX),
        ),
        value("KVASIR_GROUP", service.names.group(id)),
        // For its figures, which alerts and dashboards put beside the gateway's. A variable, because engines of before that is read have
        // nothing against one, and would refuse a file with a key that they don't know.
        value(SERVED_NAME, service.model_name().to_owned()),
    ];
    all.extend(place_among_ranks(service, id, revision, settings));
    all.extend(revision.spec.source.hugging_face.iter().flat_map(hub));
    all.extend(revision.spec.engine.env.iter().map(user_variable));
    all
}

/// Where the other ranks are. One rank has no peers to find.
fn place_among_ranks(service: &Validated, id: i32, revision: &Revision, settings: &Settings) -> Vec<EnvVar> {
    let Some(shape) = Shape::new(&revision.spec.topology)
        .ok()
        .filter(|shape| shape.ranks() > 1)
    else {
        return Vec::new();
    };
    let topology = &revision.spec.topology;
    let port = revision.spec.engine.ports.rendezvous;
    let meeting = service
        .names
        .rendezvous(id, &service.namespace, &settings.cluster_domain, port);
    vec![
        value("KVASIR_RENDEZVOUS", meeting),
        value("KVASIR_WORLD_SIZE", shape.ranks().to_string()),
        value("KVASIR_TENSOR_PARALLEL_SIZE", topology.tensor.to_string()),
        value("KVASIR_PIPELINE_PARALLEL_SIZE", topology.pipeline.to_string()),
        value("KVASIR_DATA_PARALLEL_SIZE", topology.data.to_string()),
    ]
}

fn hub(source: &HuggingFaceSource) -> Vec<EnvVar> {
    let endpoint = source
        .endpoint
        .clone()
        .map(|endpoint| value("HF_ENDPOINT", endpoint));
    let token = source.token_secret_ref.as_ref().map(|token| EnvVar {
        name: "HF_TOKEN".to_owned(),
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: token.name.clone(),
                key: token.key.clone(),
                optional: Some(false),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    });
    endpoint.into_iter().chain(token).collect()
}

fn field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.to_owned(),
                api_version: None,
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn value(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value),
        ..EnvVar::default()
    }
}

fn user_variable(variable: &kvasir_operator_api::EnvVar) -> EnvVar {
    let from = EnvVarSource {
        secret_key_ref: variable.secret_key_ref.as_ref().map(|r| SecretKeySelector {
            name: r.name.clone(),
            key: r.key.clone(),
            optional: None,
        }),
        config_map_key_ref: variable
            .config_map_key_ref
            .as_ref()
            .map(|r| ConfigMapKeySelector {
                name: r.name.clone(),
                key: r.key.clone(),
                optional: None,
            }),
        field_ref: variable.field_path.as_ref().map(|path| ObjectFieldSelector {
            field_path: path.clone(),
            api_version: None,
        }),
        ..EnvVarSource::default()
    };
    EnvVar {
        name: variable.name.clone(),
        value: variable.value.clone(),
        value_from: variable.value.is_none().then_some(from),
    }
}

/// Secrets and ConfigMaps whose keys become variables.
pub fn sources(engine: &EngineSpec) -> Option<Vec<EnvFromSource>> {
    let all = engine.env_from.iter().map(|source| EnvFromSource {
        prefix: source.prefix.clone(),
        secret_ref: source.secret_ref.as_ref().map(|r| SecretEnvSource {
            name: r.name.clone(),
            optional: None,
        }),
        config_map_ref: source.config_map_ref.as_ref().map(|r| ConfigMapEnvSource {
            name: r.name.clone(),
            optional: None,
        }),
    });
    let all: Vec<_> = all.collect();
    (!all.is_empty()).then_some(all)
}
