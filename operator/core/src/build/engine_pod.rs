//! The pod of an engine.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, HostPathVolumeSource, PersistentVolumeClaimVolumeSource, PodSpec,
    Volume,
};
use kvasir_operator_api::{ModelSource, PullPolicy, TlsMode};

use super::engine::{CACHE_VOLUME, CONFIG_KEY};
use super::{config, environment, model_image, placement, pod};
use crate::observed::ENGINE_CONTAINER;
use crate::revision::Revision;
use crate::settings::Settings;
use crate::validate::Validated;

/// Where the group's certificate appears.
pub const TLS_PATH: &str = "/etc/kvasir-tls";
/// How long a group may take to start, in probes of five seconds: an hour, because large models load slowly. Whether that is
/// too long is the rollout's to decide.
const STARTUP_PROBES: i32 = 720;

/// The pod of an engine. `has_cache` says that its StatefulSet has a claim for fetched models.
pub fn pod(
    service: &Validated,
    id: i32,
    revision: &Revision,
    settings: &Settings,
    has_cache: bool,
) -> PodSpec {
    let spec = &revision.spec;
    let scheduling = &spec.scheduling;
    let mut pod = pod::unprivileged();
    pod.init_containers = model_image::containers(revision);
    pod.containers = vec![container(service, id, revision, settings)];
    pod.volumes = Some(volumes(service, id, revision, has_cache));
    pod.service_account_name = Some(
        spec.service_account_name
            .clone()
            .unwrap_or_else(|| service.names.engine_account()),
    );
    // Running requests end within the drain timeout; the rest is for the engine to say goodbye.
    pod.termination_grace_period_seconds =
        Some(i64::from(service.spec.disruption.drain_timeout_seconds) + 30);
    let image = spec.source.image.iter().flat_map(|image| &image.pull_secrets);
    pod.image_pull_secrets = pod::pull_secrets(spec.engine.image_pull_secrets.iter().chain(image));
    pod.node_selector = (!scheduling.node_selector.is_empty()).then(|| scheduling.node_selector.clone());
    pod.tolerations = placement::tolerations(scheduling);
    pod.priority_class_name
        .clone_from(&scheduling.priority_class_name);
    pod.scheduler_name.clone_from(&scheduling.scheduler_name);
    pod.runtime_class_name.clone_from(&scheduling.runtime_class_name);
    pod.topology_spread_constraints = placement::spread(service, scheduling);
    pod.affinity = spec
        .topology
        .placement
        .as_ref()
        .map(|p| placement::affinity(service, id, p));
    pod
}

fn container(service: &Validated, id: i32, revision: &Revision, settings: &Settings) -> Container {
    let engine = &revision.spec.engine;
    let ports = &engine.ports;
    let mut container = pod::container(ENGINE_CONTAINER, &revision.image, &engine.resources);
    container.image_pull_policy = Some(pull_policy(engine.image_pull_policy).to_owned());
    let mut args = vec![
        "engine".to_owned(),
        format!("--config={}/{CONFIG_KEY}", config::CONFIG_PATH),
    ];
    args.extend(engine.extra_args.iter().cloned());
    container.args = Some(args);
    container.env = Some(environment::variables(service, id, revision, settings));
    container.env_from = environment::sources(engine);
    container.ports = Some(vec![
        pod::port("grpc", ports.grpc),
        pod::port("rendezvous", ports.rendezvous),
        pod::port("collective", ports.collective),
        pod::port("metrics", ports.metrics),
        pod::port("health", ports.health),
        pod::port("admin", ports.admin),
    ]);
    container.startup_probe = Some(pod::probe("/health", ports.health, 5, STARTUP_PROBES));
    container.readiness_probe = Some(pod::probe("/ready", ports.health, 5, 1));
    container.liveness_probe = Some(pod::probe("/health", ports.health, 10, 6));
    let mut mounts = vec![
        pod::mount("config", config::CONFIG_PATH, true),
        pod::mount(CACHE_VOLUME, config::CACHE_PATH, false),
        pod::mount("tmp", "/tmp", false),
    ];
    if model_volume(&revision.spec.source).is_some() {
        mounts.push(pod::mount(model_image::MODEL_VOLUME, config::MODEL_PATH, true));
    }
    if revision.spec.tls != TlsMode::Off {
        mounts.push(pod::mount("tls", TLS_PATH, true));
    }
    container.volume_mounts = Some(mounts);
    container
}

/// The policy as Kubernetes calls it.
pub fn pull_policy(policy: PullPolicy) -> &'static str {
    match policy {
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Always => "Always",
        PullPolicy::Never => "Never",
    }
}

fn volumes(service: &Validated, id: i32, revision: &Revision, has_cache: bool) -> Vec<Volume> {
    let mut volumes = vec![
        Volume {
            name: "config".to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: service.names.group_config(id),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        pod::scratch("tmp"),
    ];
    if !has_cache {
        volumes.push(pod::scratch(CACHE_VOLUME));
    }
    volumes.extend(model_volume(&revision.spec.source));
    volumes.extend(model_image::tools(revision));
    if revision.spec.tls != TlsMode::Off {
        let own = service.names.group_certificate(id);
        // As groups of earlier versions have it.
        let given = revision.spec.tls_secret_name.as_deref();
        volumes.push(pod::secret("tls", given.unwrap_or(&own)));
    }
    volumes
}

/// The volume that holds the model, where the engine doesn't fetch it itself.
fn model_volume(source: &ModelSource) -> Option<Volume> {
    if source.image.is_some() {
        return Some(pod::scratch(model_image::MODEL_VOLUME));
    }
    let mut volume = Volume {
        name: model_image::MODEL_VOLUME.to_owned(),
        ..Volume::default()
    };
    if let Some(pvc) = &source.pvc {
        volume.persistent_volume_claim = Some(PersistentVolumeClaimVolumeSource {
            claim_name: pvc.claim_name.clone(),
            read_only: Some(true),
        });
    } else if let Some(local) = &source.local {
        volume.host_path = Some(HostPathVolumeSource {
            path: local.path.clone(),
            type_: None,
        });
    } else {
        return None;
    }
    Some(volume)
}
