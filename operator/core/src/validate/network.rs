//! Address ranges that the API server's rules can't compare.

use std::net::IpAddr;

use kvasir_operator_api::{
    AuthMode, InferenceServiceSpec, LimitsStoreType, NetworkMode, NetworkSpec, Reason,
};

use crate::cidr::Cidr;
use crate::field_error::FieldError;

/// Refuses ranges that aren't and exceptions that lie outside their range: the API server would refuse the whole policy.
pub(super) fn check(spec: &NetworkSpec, errors: &mut Vec<FieldError>) {
    for (i, rule) in spec.model_egress.iter().enumerate() {
        block(
            &format!("spec.network.modelEgress[{i}]"),
            &rule.cidr,
            &rule.except,
            errors,
        );
    }
    for (i, rule) in spec.gateway_egress.iter().enumerate() {
        block(
            &format!("spec.network.gatewayEgress[{i}]"),
            &rule.cidr,
            &rule.except,
            errors,
        );
    }
    for (i, peer) in spec.allowed_clients.iter().enumerate() {
        if let Some(range) = &peer.ip_block {
            block(
                &format!("spec.network.allowedClients[{i}].ipBlock"),
                &range.cidr,
                &range.except,
                errors,
            );
        }
    }
    let address = &spec.dns.node_local_address;
    if !address.is_empty() && address.parse::<IpAddr>().is_err() {
        errors.push(FieldError::new(
            "spec.network.dns.nodeLocalAddress",
            Reason::InvalidSpec,
            format!("{address:?} isn't an IP address: give the node's DNS cache, or an empty text for none"),
        ));
    }
}

/// Refuses what a closed gateway needs and can't reach: it would start and refuse everybody.
pub(super) fn reach(spec: &InferenceServiceSpec, errors: &mut Vec<FieldError>) {
    let closed = spec.network.mode == NetworkMode::Strict && spec.network.gateway_egress.is_empty();
    if !spec.gateway.enabled || !closed {
        return;
    }
    let needs = [
        (
            spec.gateway.auth.mode == AuthMode::JWT,
            "the signing keys at gateway.auth.jwt.jwksURL",
        ),
        (
            spec.gateway.limits.store.r#type == LimitsStoreType::Redis,
            "the Redis server at gateway.limits.store.url",
        ),
        (
            spec.observability.tracing.is_some(),
            "the collector at observability.tracing.endpoint",
        ),
    ];
    for (_, what) in needs.iter().filter(|(needed, _)| *needed) {
        let message =
            format!("the gateway needs {what}, but no address is open: list the server's addresses");
        errors.push(FieldError::new(
            "spec.network.gatewayEgress",
            Reason::InvalidSpec,
            message,
        ));
    }
}

fn block(path: &str, cidr: &str, except: &[String], errors: &mut Vec<FieldError>) {
    let outer = parse(&format!("{path}.cidr"), cidr, errors);
    for (i, text) in except.iter().enumerate() {
        let path = format!("{path}.except[{i}]");
        let inner = parse(&path, text, errors);
        if let (Some(outer), Some(inner)) = (outer, inner)
            && !outer.holds(&inner)
        {
            let message = format!("{text} isn't a part of {cidr}: an exception must lie inside its range");
            errors.push(FieldError::new(path, Reason::InvalidSpec, message));
        }
    }
}

fn parse(path: &str, text: &str, errors: &mut Vec<FieldError>) -> Option<Cidr> {
    let parsed = Cidr::parse(text);
    if parsed.is_none() {
        let message = format!("{text:?} isn't an address range such as 10.0.0.0/8");
        errors.push(FieldError::new(path, Reason::InvalidSpec, message));
    }
    parsed
}
