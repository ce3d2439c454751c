//! Names and entrances.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kvasir_operator_api::{ServiceType, TlsMode, labels};

use super::gateway::{GATEWAY_PORT, METRICS_PORT};
use super::meta;
use crate::child::{Child, Kind};
use crate::validate::Validated;

/// Through which ranks find each other: names also of pods that aren't ready. Requests never go here.
pub fn ranks(service: &Validated) -> Child {
    let name = service.names.ranks_service();
    let ports = &service.spec.engine.ports;
    let spec = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        publish_not_ready_addresses: Some(true),
        selector: Some(labels::of_component(service.names.service(), labels::ENGINE)),
        ports: Some(vec![
            port("rendezvous", ports.rendezvous),
            port("collective", ports.collective),
        ]),
        ..ServiceSpec::default()
    };
    child(service, &name, spec)
}

/// The leading pods that are ready: where the gateway finds engines.
pub fn engines(service: &Validated) -> Child {
    let name = service.names.engine_service();
    let mut selector = labels::of_component(service.names.service(), labels::ENGINE);
    selector.insert(labels::POD_INDEX.to_owned(), "0".to_owned());
    let spec = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        selector: Some(selector),
        ports: Some(vec![port("grpc", service.spec.engine.ports.grpc)]),
        ..ServiceSpec::default()
    };
    child(service, &name, spec)
}

/// Name of the port for Prometheus in every pod of a service, and of the Service with only that port.
pub const METRICS: &str = "metrics";

/// All pods, those that aren't ready too: why they aren't is what somebody wants to see. The port goes by its name, because engines and
/// gateway may have different numbers.
pub fn metrics(service: &Validated) -> Child {
    let name = service.names.metrics_service();
    let mut metadata = meta::of_service(service, &name);
    metadata
        .labels
        .get_or_insert_default()
        .extend(labels::of_component(service.names.service(), METRICS));
    let object = Service {
        metadata,
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some([(labels::SERVICE.to_owned(), service.names.service().to_owned())].into()),
            ports: Some(vec![ServicePort {
                name: Some(METRICS.to_owned()),
                port: METRICS_PORT,
                target_port: Some(IntOrString::String(METRICS.to_owned())),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    };
    Child::new(Kind::Service, &name, &object)
}

/// Where clients come in.
pub fn gateway(service: &Validated) -> Child {
    let name = service.names.gateway();
    let spec = &service.spec.gateway.service;
    let object = ServiceSpec {
        type_: Some(type_name(spec.r#type).to_owned()),
        selector: Some(labels::of_component(service.names.service(), labels::GATEWAY)),
        ports: Some(vec![ServicePort {
            name: Some(
                if service.spec.tls.mode == TlsMode::Off {
                    "http"
                } else {
                    "https"
                }
                .to_owned(),
            ),
            port: gateway_port(service),
            target_port: Some(IntOrString::Int(GATEWAY_PORT)),
            protocol: Some("TCP".to_owned()),
            ..ServicePort::default()
        }]),
        ..ServiceSpec::default()
    };
    let mut metadata = meta::of_service(service, &name);
    if !spec.annotations.is_empty() {
        metadata.annotations = Some(spec.annotations.clone());
    }
    let object = Service {
        metadata,
        spec: Some(object),
        status: None,
    };
    Child::new(Kind::Service, &name, &object)
}

/// Port of the gateway's Service.
pub fn gateway_port(service: &Validated) -> i32 {
    let default = if service.spec.tls.mode == TlsMode::Off {
        80
    } else {
        443
    };
    service.spec.gateway.service.port.unwrap_or(default)
}

fn type_name(kind: ServiceType) -> &'static str {
    match kind {
        ServiceType::ClusterIP => "ClusterIP",
        ServiceType::NodePort => "NodePort",
        ServiceType::LoadBalancer => "LoadBalancer",
    }
}

fn port(name: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number,
        // Numbers, never names: a pod that lacks a named port would silently match nothing.
        target_port: Some(IntOrString::Int(number)),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}

fn child(service: &Validated, name: &str, spec: ServiceSpec) -> Child {
    let object = Service {
        metadata: meta::of_service(service, name),
        spec: Some(spec),
        status: None,
    };
    Child::new(Kind::Service, name, &object)
}
