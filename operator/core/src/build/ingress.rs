//! An entrance from outside the cluster.

use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule, IngressServiceBackend,
    IngressSpec, IngressTLS, ServiceBackendPort,
};

use super::{meta, services};
use crate::child::{Child, Kind};
use crate::validate::Validated;

/// The Ingress, where one is wanted.
pub fn ingress(service: &Validated) -> Option<Child> {
    let spec = service.spec.gateway.ingress.as_ref()?;
    let name = service.names.gateway();
    let backend = IngressBackend {
        service: Some(IngressServiceBackend {
            name: name.clone(),
            port: Some(ServiceBackendPort {
                number: Some(services::gateway_port(service)),
                name: None,
            }),
        }),
        resource: None,
    };
    let object = Ingress {
        metadata: meta::of_service(service, &name),
        spec: Some(IngressSpec {
            ingress_class_name: spec.class_name.clone(),
            rules: Some(vec![IngressRule {
                host: Some(spec.host.clone()),
                http: Some(HTTPIngressRuleValue {
                    paths: vec![HTTPIngressPath {
                        path: Some("/".to_owned()),
                        path_type: "Prefix".to_owned(),
                        backend,
                    }],
                }),
            }]),
            tls: spec.tls_secret_name.as_ref().map(|secret| {
                vec![IngressTLS {
                    hosts: Some(vec![spec.host.clone()]),
                    secret_name: Some(secret.clone()),
                }]
            }),
            ..IngressSpec::default()
        }),
        status: None,
    };
    Some(Child::new(Kind::Ingress, &name, &object))
}
