//! The gateway's Deployment and configuration.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    Affinity, ConfigMap, ConfigMapVolumeSource, Container, PersistentVolumeClaimVolumeSource,
    PodAffinityTerm, PodAntiAffinity, PodSpec, PodTemplateSpec, ProjectedVolumeSource,
    ServiceAccountTokenProjection, Volume, VolumeProjection, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kvasir_operator_api::{AuthMode, TlsMode, labels};
use serde_json::{Value, json};

use super::{config, engine_pod, meta, pod};
use crate::child::{Child, Kind};
use crate::groups::Decisions;
use crate::settings::Settings;
use crate::validate::Validated;

/// Port for clients.
pub const GATEWAY_PORT: i32 = 8443;
/// Port for Prometheus.
pub const METRICS_PORT: i32 = 9090;
/// Port for the kubelet's probes.
pub const HEALTH_PORT: i32 = 8081;
/// Port for the operator.
pub const ADMIN_PORT: i32 = 8082;
/// Key of the gateway's settings, which follow the spec.
const SETTINGS_KEY: &str = "gateway.yaml";
/// Key of the groups and their weights, which the gateway reads again on every change.
const GROUPS_KEY: &str = "groups.yaml";
/// Where the keys of clients appear, one folder per Secret.
const KEYS_PATH: &str = "/etc/kvasir-keys";

/// The gateway's configuration. The groups change with every rollout and don't restart it.
pub fn configuration(service: &Validated, decisions: &Decisions) -> Child {
    let name = service.names.gateway_config();
    let object = ConfigMap {
        metadata: meta::of_service(service, &name),
        data: Some(
            [
                (SETTINGS_KEY.to_owned(), settings_file(service).to_string()),
                (GROUPS_KEY.to_owned(), groups_file(service, decisions).to_string()),
            ]
            .into(),
        ),
        ..ConfigMap::default()
    };
    Child::new(Kind::ConfigMap, &name, &object)
}

/// What of the spec the gateway follows.
fn settings_file(service: &Validated) -> Value {
    let spec = &service.spec.gateway;
    json!({
        "model": service.model_name(),
        "aliases": service.spec.model.aliases,
        "listen": format!("0.0.0.0:{GATEWAY_PORT}"),
        "routing": spec.routing,
        "auth": { "mode": spec.auth.mode, "jwt": spec.auth.jwt, "keys": KEYS_PATH },
        "limits": spec.limits,
        "tenants": spec.tenants,
        "log-level": config::log_level(service.spec.observability.log_level),
        "json": true,
    })
}

/// Groups, where their leaders are, and which take how much. A draining group takes nothing new.
fn groups_file(service: &Validated, decisions: &Decisions) -> Value {
    let port = service.spec.engine.ports.grpc;
    let groups: Vec<Value> = decisions
        .groups
        .iter()
        .map(|group| {
            let host = format!(
                "{}.{}.{}.svc",
                service.names.pod(group.id, 0),
                service.names.ranks_service(),
                service.namespace
            );
            json!({ "id": group.id, "address": format!("{host}:{port}"), "revision": group.revision, "draining": group.draining })
        })
        .collect();
    let canary = decisions
        .canary_weight
        .map(|weight| json!({ "revision": decisions.target, "weightPercent": weight }));
    json!({ "groups": groups, "canary": canary })
}

/// The gateway's Deployment.
pub fn deployment(service: &Validated, settings: &Settings) -> Child {
    let name = service.names.gateway();
    let selector = labels::of_component(service.names.service(), labels::GATEWAY);
    let mut pod_labels = labels::of_service(service.names.service());
    pod_labels.extend(selector.clone());
    let object = Deployment {
        metadata: meta::of_service(service, &name),
        spec: DeploymentSpec {
            replicas: Some(service.spec.gateway.replicas),
            revision_history_limit: Some(1),
            selector: meta::selector(selector),
            // A new pod serves before an old one leaves.
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels),
                    // Other settings need other processes; the groups are read again by running ones.
                    annotations: Some([(SETTINGS_HASH.to_owned(), settings_hash(service))].into()),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(service, settings)),
            },
            ..DeploymentSpec::default()
        },
        status: None,
    };
    Child::new(Kind::Deployment, &name, &object)
}

/// Annotation of the gateway's pods that makes new settings restart them.
const SETTINGS_HASH: &str = "kvasir.dev/settings-hash";

fn settings_hash(service: &Validated) -> String {
    kvasir_operator_api::names::short_hash(settings_file(service).to_string().as_bytes())
}

fn pod(service: &Validated, settings: &Settings) -> PodSpec {
    let mut pod = pod::unprivileged();
    pod.service_account_name = Some(service.names.gateway());
    pod.containers = vec![container(service, settings)];
    pod.volumes = Some(volumes(service));
    pod.termination_grace_period_seconds =
        Some(i64::from(service.spec.disruption.drain_timeout_seconds) + 30);
    pod.affinity = Some(Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: PodAffinityTerm {
                    label_selector: Some(meta::selector(labels::of_component(
                        service.names.service(),
                        labels::GATEWAY,
                    ))),
                    topology_key: "kubernetes.io/hostname".to_owned(),
                    ..PodAffinityTerm::default()
                },
            }]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    });
    pod
}

fn container(service: &Validated, settings: &Settings) -> Container {
    let spec = &service.spec.gateway;
    let image = spec.image.as_deref().unwrap_or(&settings.gateway_image);
    let mut container = pod::container("gateway", image, &spec.resources);
    container.args = Some(vec![
        "gateway".to_owned(),
        format!("--config={}/{SETTINGS_KEY}", config::CONFIG_PATH),
    ]);
    container.ports = Some(vec![
        pod::port("https", GATEWAY_PORT),
        pod::port("metrics", METRICS_PORT),
        pod::port("health", HEALTH_PORT),
        pod::port("admin", ADMIN_PORT),
    ]);
    container.readiness_probe = Some(pod::probe("/ready", HEALTH_PORT, 5, 1));
    container.liveness_probe = Some(pod::probe("/health", HEALTH_PORT, 10, 6));
    let mut mounts = vec![
        pod::mount("config", config::CONFIG_PATH, true),
        pod::mount("tmp", "/tmp", false),
    ];
    if service.spec.tls.mode != TlsMode::Off {
        mounts.push(pod::mount("tls", engine_pod::TLS_PATH, true));
    }
    for (i, secret) in spec.auth.api_key_secrets.iter().enumerate() {
        mounts.push(pod::mount(
            &format!("keys-{i}"),
            &format!("{KEYS_PATH}/{}", secret.name),
            true,
        ));
    }
    if spec.state_store.is_some() {
        mounts.push(pod::mount("state", "/state", false));
    }
    if spec.auth.mode == AuthMode::TokenReview {
        mounts.push(pod::mount(
            "token",
            "/var/run/secrets/kubernetes.io/serviceaccount",
            true,
        ));
    }
    container.volume_mounts = Some(mounts);
    container
}

fn volumes(service: &Validated) -> Vec<Volume> {
    let spec = &service.spec.gateway;
    let mut volumes = vec![
        Volume {
            name: "config".to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: service.names.gateway_config(),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        pod::scratch("tmp"),
    ];
    if service.spec.tls.mode != TlsMode::Off {
        let own = service.names.gateway_certificate();
        let given = service
            .spec
            .tls
            .secret_name
            .clone()
            .filter(|_| service.spec.tls.mode == TlsMode::Provided);
        volumes.push(pod::secret("tls", &given.unwrap_or(own)));
    }
    for (i, secret) in spec.auth.api_key_secrets.iter().enumerate() {
        volumes.push(pod::secret(&format!("keys-{i}"), &secret.name));
    }
    if let Some(store) = &spec.state_store {
        volumes.push(Volume {
            name: "state".to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: store.claim_name.clone(),
                read_only: None,
            }),
            ..Volume::default()
        });
    }
    if spec.auth.mode == AuthMode::TokenReview {
        volumes.push(token());
    }
    volumes
}

/// A short-lived token, for the one mode that asks the API server about clients.
fn token() -> Volume {
    Volume {
        name: "token".to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(vec![VolumeProjection {
                service_account_token: Some(ServiceAccountTokenProjection {
                    path: "token".to_owned(),
                    expiration_seconds: Some(3600),
                    ..ServiceAccountTokenProjection::default()
                }),
                ..VolumeProjection::default()
            }]),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}
