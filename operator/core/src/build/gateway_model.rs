//! A model in the gateway's file: the service's own, or that of a service behind the same gateway.

use std::num::{NonZeroU16, NonZeroU32};

use kvasir_config::gateway::{
    CertificateName, DnsConfig, EngineTlsConfig, EnginesConfig, ModelConfig, RevisionConfig, RoutingConfig,
    RoutingPolicyConfig, WaitingConfig,
};
use kvasir_operator_api::names::Names;
use kvasir_operator_api::{RoutingPolicy, RoutingSpec};

use super::gateway_config::{at_least_one, certificate};
use crate::groups::Decisions;
use crate::identity;
use crate::settings::Settings;
use crate::validate::Validated;

/// How often the engines' name is resolved, in seconds: a group that is ready serves within that time.
const RESOLVE_SECONDS: u32 = 2;

/// What the gateway must know of the service to serve its model. Without decisions, nothing that changes while the gateway runs.
pub(super) fn model(service: &Validated, decisions: Option<&Decisions>, settings: &Settings) -> ModelConfig {
    let gateway = &service.spec.gateway;
    let names = service.model_names().into_iter();
    ModelConfig {
        served_model_names: names.map(|(_, name)| name.to_owned()).collect(),
        engines: engines(service, settings),
        revisions: decisions
            .map(|decisions| revisions(service, decisions))
            .unwrap_or_default(),
        routing: RoutingConfig {
            policy: policy(gateway.routing.policy),
            session_header: session_header(&gateway.routing),
            prefix_chars: gateway
                .routing
                .prefix_chars
                .and_then(|number| NonZeroU32::new(u32::try_from(number).ok()?)),
            ..RoutingConfig::default()
        },
        waiting: WaitingConfig {
            capacity: at_least_one(gateway.limits.max_queue),
            max_wait_seconds: u32::try_from(gateway.limits.queue_timeout_seconds).unwrap_or(1),
            hold_seconds: 0,
        },
    }
}

/// Ready leaders, by the engines' Service.
fn engines(service: &Validated, settings: &Settings) -> EnginesConfig {
    let name = Names::dns(&service.names.engine_service(), &service.namespace);
    let port = u16::try_from(service.spec.engine.ports.grpc)
        .ok()
        .and_then(NonZeroU16::new);
    EnginesConfig {
        fixed: Vec::new(),
        dns: Some(DnsConfig {
            // Complete, with a dot: no search list is gone through at each look-up.
            name: format!("{name}.{}.", settings.cluster_domain.trim_matches('.')),
            port: port.unwrap_or(NonZeroU16::MIN),
            interval_seconds: RESOLVE_SECONDS,
        }),
        endpoint_slices: None,
        tls: Some(EngineTlsConfig {
            authorities: certificate(identity::TRUST_KEY),
            certificate: certificate(identity::CERTIFICATE_KEY),
            key: certificate(identity::PRIVATE_KEY_KEY),
            names: vec![CertificateName::Uri(identity::engine(service))],
        }),
    }
}

/// Weights exist while a canary is on trial, and in a service that tries canaries before that too: there the one revision has everything, so
/// that a gateway that hasn't read the canary's weight yet, because files reach pods late, gives it nothing. Otherwise each revision gets
/// its part by its engines, which gateways find out themselves.
fn revisions(service: &Validated, decisions: &Decisions) -> Vec<RevisionConfig> {
    let Some(weight) = decisions
        .canary_weight
        .and_then(|weight| u32::try_from(weight).ok())
    else {
        return the_only_one(service, decisions);
    };
    let weight = weight.min(100);
    let mut others = live(decisions);
    others.retain(|revision| *revision != decisions.target);
    // What the canary doesn't get is divided equally: mostly there is one other revision.
    let rest = u32::from(!others.is_empty()) * (100 - weight);
    let mut all = vec![RevisionConfig {
        name: decisions.target.clone(),
        weight: if others.is_empty() { 100 } else { weight },
    }];
    let share = rest
        .checked_div(u32::try_from(others.len()).unwrap_or(1))
        .unwrap_or(0);
    all.extend(others.into_iter().map(|name| RevisionConfig {
        name: name.to_owned(),
        weight: share,
    }));
    all
}

fn the_only_one(service: &Validated, decisions: &Decisions) -> Vec<RevisionConfig> {
    match live(decisions).as_slice() {
        [only] if service.spec.rollout.canary.is_some() => vec![RevisionConfig {
            name: (*only).to_owned(),
            weight: 100,
        }],
        _ => Vec::new(),
    }
}

/// The revisions that groups have.
fn live(decisions: &Decisions) -> Vec<&str> {
    let names = decisions.groups.iter().map(|group| group.revision.as_str());
    // A gateway refuses a file with a name that is none, and with it all other models in it.
    let mut all: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Nothing where it is the gateway's own.
fn session_header(routing: &RoutingSpec) -> Option<String> {
    let given = routing.session_header.to_ascii_lowercase();
    (given != RoutingSpec::default().session_header).then_some(given)
}

fn policy(policy: RoutingPolicy) -> RoutingPolicyConfig {
    match policy {
        RoutingPolicy::PrefixAware => RoutingPolicyConfig::PrefixAware,
        RoutingPolicy::LeastKV => RoutingPolicyConfig::LeastKV,
        RoutingPolicy::LeastRequests => RoutingPolicyConfig::LeastRequests,
        RoutingPolicy::RoundRobin => RoutingPolicyConfig::RoundRobin,
        RoutingPolicy::Session => RoutingPolicyConfig::Session,
    }
}
