//! The gateway's Deployment and configuration.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    Affinity, ConfigMap, ConfigMapProjection, ConfigMapVolumeSource, Container, KeyToPath,
    PersistentVolumeClaimVolumeSource, PodAffinityTerm, PodAntiAffinity, PodSpec, PodTemplateSpec,
    ProjectedVolumeSource, SecretProjection, SecretVolumeSource, ServiceAccountTokenProjection, Volume,
    VolumeProjection, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kvasir_config::gateway::write_gateway;
use kvasir_operator_api::{AuthMode, LimitsStoreType, NameRef, TlsMode, labels, names};

use super::{config, engine_pod, gateway_config, meta, placement, pod};
use crate::child::{Child, Kind};
use crate::groups::Decisions;
use crate::identity;
use crate::observed::GATEWAY_CONTAINER;
use crate::settings::Settings;
use crate::validate::Validated;

/// Port for clients.
pub const GATEWAY_PORT: i32 = 8443;
/// Port for Prometheus and for the kubelet's probes.
pub const METRICS_PORT: i32 = 9090;
/// Key of the gateway's configuration file.
pub const SETTINGS_KEY: &str = "gateway.yaml";
/// Key of the file with the Redis server's address.
pub const REDIS_KEY: &str = "redis-url";
/// Where the keys of clients appear.
pub const KEYS_PATH: &str = "/etc/kvasir-keys";
/// Where the password of the Redis server appears.
pub const REDIS_PATH: &str = "/etc/kvasir-redis";
/// Where the authorities of the identity provider appear.
pub const JWKS_PATH: &str = "/etc/kvasir-jwks";
/// Where the seed of the tenants' cache salts appears.
pub const SALT_PATH: &str = "/etc/kvasir-salt";

/// The gateway's configuration. Weights of a canary change with its rollout and don't restart the gateway, which reads them again.
pub fn configuration(service: &Validated, decisions: &Decisions, settings: &Settings) -> Child {
    let name = service.names.gateway_config();
    let file = write_gateway(&gateway_config::build(service, Some(decisions), settings));
    let mut data = BTreeMap::from([(SETTINGS_KEY.to_owned(), file)]);
    if let Some(url) = &service.spec.gateway.limits.store.url {
        data.insert(REDIS_KEY.to_owned(), url.clone());
    }
    let mut metadata = meta::of_service(service, &name);
    let guests: Vec<&str> = service
        .sharing
        .guests
        .iter()
        .map(|guest| guest.service.name.as_str())
        .collect();
    if !guests.is_empty() {
        let hash = names::short_hash(data[SETTINGS_KEY].as_bytes());
        let annotations = [
            (labels::GUESTS.to_owned(), guests.join(",")),
            (labels::FILE_HASH.to_owned(), hash),
        ];
        metadata.annotations = Some(annotations.into());
    }
    let object = ConfigMap {
        metadata,
        data: Some(data),
        ..ConfigMap::default()
    };
    Child::new(Kind::ConfigMap, &name, &object)
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
                    // Other settings need other processes; weights are read again by running ones.
                    annotations: Some([(SETTINGS_HASH.to_owned(), settings_hash(service, settings))].into()),
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

fn settings_hash(service: &Validated, settings: &Settings) -> String {
    let file = write_gateway(&gateway_config::build(service, None, settings));
    let redis = service
        .spec
        .gateway
        .limits
        .store
        .url
        .as_deref()
        .unwrap_or_default();
    names::short_hash(format!("{file}\n{redis}").as_bytes())
}

fn pod(service: &Validated, settings: &Settings) -> PodSpec {
    let mut pod = pod::unprivileged();
    pod.service_account_name = Some(service.names.gateway());
    pod.containers = vec![container(service, settings)];
    pod.volumes = Some(volumes(service));
    // One image is engine and gateway unless the spec says otherwise, and one registry has both.
    pod.image_pull_secrets = pod::pull_secrets(service.spec.engine.image_pull_secrets.iter());
    pod.tolerations = Some(placement::short_absence());
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
    let mut container = pod::container(GATEWAY_CONTAINER, image, &spec.resources);
    container.args = Some(vec![
        "gateway".to_owned(),
        "run".to_owned(),
        format!("--config={}/{SETTINGS_KEY}", config::CONFIG_PATH),
        format!(
            "--log-level={}",
            config::log_level(service.spec.observability.log_level)
        ),
        "--json".to_owned(),
    ]);
    container.ports = Some(vec![
        pod::port("https", GATEWAY_PORT),
        pod::port("metrics", METRICS_PORT),
    ]);
    container.readiness_probe = Some(pod::probe("/ready", METRICS_PORT, 5, 1));
    container.liveness_probe = Some(pod::probe("/health", METRICS_PORT, 10, 6));
    let mut mounts = vec![
        pod::mount("config", config::CONFIG_PATH, true),
        pod::mount("tmp", "/tmp", false),
        pod::mount("salt", SALT_PATH, true),
    ];
    if spec.auth.mode == AuthMode::APIKey {
        mounts.push(pod::mount("keys", KEYS_PATH, true));
    }
    mounts.extend(
        named(service)
            .iter()
            .map(|(volume, path)| pod::mount(&volume.name, path, true)),
    );
    if service.spec.tls.mode != TlsMode::Off {
        mounts.push(pod::mount("tls", engine_pod::TLS_PATH, true));
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
        pod::secret("salt", &service.names.gateway_secret()),
    ];
    if spec.auth.mode == AuthMode::APIKey {
        volumes.push(keys(service));
    }
    volumes.extend(named(service).into_iter().map(|(volume, _)| volume));
    if service.spec.tls.mode != TlsMode::Off {
        volumes.push(pod::secret("tls", &service.names.gateway_certificate()));
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

/// Single keys of objects that the spec names, and where they appear.
fn named(service: &Validated) -> Vec<(Volume, &'static str)> {
    let item = |key: &str, path: &str| {
        vec![KeyToPath {
            key: key.to_owned(),
            path: path.to_owned(),
            ..KeyToPath::default()
        }]
    };
    let spec = &service.spec.gateway;
    let password = spec.limits.store.password_secret_ref.as_ref();
    let password = password.filter(|_| spec.limits.store.r#type == LimitsStoreType::Redis);
    let authorities = spec.auth.jwt.as_ref().and_then(|jwt| jwt.ca_bundle_ref.as_ref());
    let authorities = authorities.filter(|_| spec.auth.mode == AuthMode::JWT);
    let password = password.map(|reference| Volume {
        name: "redis".to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(reference.name.clone()),
            default_mode: Some(0o440),
            items: Some(item(&reference.key, "password")),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    });
    let authorities = authorities.map(|reference| Volume {
        name: "jwks".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: reference.name.clone(),
            items: Some(item(&reference.key, identity::TRUST_KEY)),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    });
    let password = password.map(|volume| (volume, REDIS_PATH));
    password
        .into_iter()
        .chain(authorities.map(|volume| (volume, JWKS_PATH)))
        .collect()
}

/// The keys of all Secrets in one folder. Without a Secret it is there and empty: then no key is valid.
fn keys(service: &Validated) -> Volume {
    let secrets = &service.spec.gateway.auth.api_key_secrets;
    if secrets.is_empty() {
        return pod::scratch("keys");
    }
    let source = |secret: &NameRef| VolumeProjection {
        secret: Some(SecretProjection {
            name: secret.name.clone(),
            ..SecretProjection::default()
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: "keys".to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(secrets.iter().map(source).collect()),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// A short-lived token, for the one mode that asks the API server about clients, and the authority to know that server by.
fn token() -> Volume {
    Volume {
        name: "token".to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(vec![
                VolumeProjection {
                    service_account_token: Some(ServiceAccountTokenProjection {
                        path: "token".to_owned(),
                        expiration_seconds: Some(3600),
                        ..ServiceAccountTokenProjection::default()
                    }),
                    ..VolumeProjection::default()
                },
                // Kubernetes puts it into every namespace.
                VolumeProjection {
                    config_map: Some(ConfigMapProjection {
                        name: "kube-root-ca.crt".to_owned(),
                        items: Some(vec![KeyToPath {
                            key: "ca.crt".to_owned(),
                            path: "ca.crt".to_owned(),
                            ..KeyToPath::default()
                        }]),
                        optional: None,
                    }),
                    ..VolumeProjection::default()
                },
            ]),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}
