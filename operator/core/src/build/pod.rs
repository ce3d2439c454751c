//! What every pod of a service has in common: no privileges, no writable root, no token.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, HTTPGetAction, LocalObjectReference,
    PodSecurityContext, PodSpec, Probe, ResourceRequirements, SeccompProfile, SecretVolumeSource,
    SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kvasir_operator_api::{NameRef, Resources};

/// The user and group that containers run as: the one that the image is built for.
pub const USER: i64 = 65532;

/// A pod without privileges and without a token.
pub fn unprivileged() -> PodSpec {
    PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            // Changing the owner of every file of a model takes minutes and is needed once.
            fs_group_change_policy: Some("OnRootMismatch".to_owned()),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        ..PodSpec::default()
    }
}

/// A container without privileges whose root can't be written.
pub fn container(name: &str, image: &str, resources: &Resources) -> Container {
    Container {
        name: name.to_owned(),
        image: Some(image.to_owned()),
        resources: Some(requirements(resources)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            privileged: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            ..SecurityContext::default()
        }),
        // The last lines of the log become the reason in the status when the process says nothing itself.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

fn requirements(resources: &Resources) -> ResourceRequirements {
    let amounts = |map: &BTreeMap<String, kvasir_operator_api::Quantity>| {
        let converted: BTreeMap<_, _> = map
            .iter()
            .map(|(k, v)| (k.clone(), Quantity(v.0.clone())))
            .collect();
        (!converted.is_empty()).then_some(converted)
    };
    ResourceRequirements {
        requests: amounts(&resources.requests),
        limits: amounts(&resources.limits),
        claims: None,
    }
}

/// Secrets for registries, each once and in order.
pub fn pull_secrets<'a>(names: impl Iterator<Item = &'a NameRef>) -> Option<Vec<LocalObjectReference>> {
    let mut names: Vec<&NameRef> = names.collect();
    names.sort();
    names.dedup();
    let all = names.into_iter().map(|secret| LocalObjectReference {
        name: secret.name.clone(),
    });
    let all: Vec<_> = all.collect();
    (!all.is_empty()).then_some(all)
}

/// A port of a container.
pub fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

/// A probe over HTTP that has failed after `failures` attempts, `period` seconds apart.
pub fn probe(path: &str, port: i32, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(port),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// A folder that lives as long as the pod.
pub fn scratch(name: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    }
}

/// A Secret as a folder.
pub fn secret(name: &str, secret: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            default_mode: Some(0o440),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// Where a volume appears.
pub fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    }
}
