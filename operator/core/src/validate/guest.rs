//! What a service behind another one's gateway may say about a gateway: how its own engines are chosen and its requests wait.
//!
//! Everything else is the other service's to say, for all models behind its gateway. A field that says something here would be ignored, so it
//! is refused; one that says what it says by default can't be told from one that was left out.

use kvasir_operator_api::{GatewayLimits, GatewaySpec, InferenceService, Reason};

use crate::field_error::FieldError;
use crate::sharing;

/// Refuses fields that only a service with a gateway of its own may set.
pub(super) fn check(service: &InferenceService, errors: &mut Vec<FieldError>) {
    let spec = &service.spec;
    let Some(host) = sharing::reference(spec) else {
        return;
    };
    let mut refuse = |path: &str, message: String| {
        errors.push(FieldError::new(path, Reason::InvalidSpec, message));
    };
    if service.metadata.name.as_deref() == Some(host) {
        refuse(
            "spec.gateway.gatewayRef.name",
            "this is the service itself: leave gatewayRef out and set gateway.enabled to true for a gateway of its own"
                .to_owned(),
        );
    }
    // The API server's rule says so too.
    if spec.gateway.enabled {
        refuse(
            "spec.gateway.gatewayRef",
            "it uses another service's gateway: set gateway.enabled to false, or leave gatewayRef out"
                .to_owned(),
        );
    }
    let others = [
        (
            "spec.network.allowedClients",
            !spec.network.allowed_clients.is_empty(),
        ),
        (
            "spec.network.gatewayEgress",
            !spec.network.gateway_egress.is_empty(),
        ),
        ("spec.observability.tracing", spec.observability.tracing.is_some()),
    ];
    let fields = gateway(&spec.gateway).into_iter().chain(others);
    for (path, _) in fields.filter(|(_, is_set)| *is_set) {
        let message = format!(
            "requests come through the gateway of InferenceService {host}, whose spec says this: leave it out here"
        );
        refuse(path, message);
    }
}

/// Fields of a gateway of one's own, and whether they say something.
fn gateway(spec: &GatewaySpec) -> [(&'static str, bool); 12] {
    let (own, limits) = (GatewaySpec::default(), GatewayLimits::default());
    [
        ("spec.gateway.replicas", spec.replicas != own.replicas),
        ("spec.gateway.image", spec.image.is_some()),
        ("spec.gateway.resources", spec.resources != own.resources),
        ("spec.gateway.service", spec.service != own.service),
        ("spec.gateway.route", spec.route.is_some()),
        ("spec.gateway.ingress", spec.ingress.is_some()),
        ("spec.gateway.auth", spec.auth != own.auth),
        ("spec.gateway.tenants", !spec.tenants.is_empty()),
        (
            "spec.gateway.limits.maxBodyBytes",
            spec.limits.max_body_bytes != limits.max_body_bytes,
        ),
        (
            "spec.gateway.limits.requestTimeoutSeconds",
            spec.limits.request_timeout_seconds != limits.request_timeout_seconds,
        ),
        ("spec.gateway.limits.store", spec.limits.store != limits.store),
        ("spec.gateway.stateStore", spec.state_store.is_some()),
    ]
}
