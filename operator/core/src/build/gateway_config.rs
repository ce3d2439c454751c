//! The gateway's configuration file, made of the types that `kvasir gateway run` reads it with.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use kvasir_config::gateway::{
    AnonymousConfig, ApiKeysConfig, AuthConfig, CacheSaltConfig, CertificateName, ClaimConfig, DnsConfig,
    EngineTlsConfig, EnginesConfig, GatewayConfig, GatewayLimitsConfig, JwksConfig, JwtConfig,
    LimitStoreConfig, Names, ReviewRuleConfig, RevisionConfig, RoutingConfig, RoutingPolicyConfig,
    ScopeConfig, ServerTlsConfig, TenantConfig, TenantLimitsConfig, TokenReviewConfig, TracingConfig,
    WaitingConfig,
};
use kvasir_operator_api::names::Names as ChildNames;
use kvasir_operator_api::{
    AuthMode, JwtSpec, LimitsStoreType, RoutingPolicy, RoutingSpec, Scope, TenantSpec,
};

use super::{config, engine_pod, gateway};
use crate::groups::Decisions;
use crate::identity;
use crate::settings::Settings;
use crate::validate::Validated;

/// The tenant of every credential where the spec lists none.
pub const DEFAULT_TENANT: &str = "default";
/// How often the engines' name is resolved, in seconds: a group that is ready serves within that time.
const RESOLVE_SECONDS: u32 = 2;
/// Tolerated difference between clocks, in seconds.
const SKEW_SECONDS: u32 = 30;

/// The file as a whole. Only `revisions` changes while a rollout goes on.
pub fn build(service: &Validated, decisions: Option<&Decisions>, settings: &Settings) -> GatewayConfig {
    let listen = |port: i32| SocketAddr::from((Ipv4Addr::UNSPECIFIED, u16::try_from(port).unwrap_or(0)));
    let limits = &service.spec.gateway.limits;
    GatewayConfig {
        listen: listen(gateway::GATEWAY_PORT),
        operations_listen: listen(gateway::METRICS_PORT),
        tls: Some(ServerTlsConfig {
            certificate: certificate(identity::CERTIFICATE_KEY),
            key: certificate(identity::PRIVATE_KEY_KEY),
            client_authorities: None,
        }),
        auth: auth(service),
        tenants: tenants(service),
        served_model_names: std::iter::once(service.model_name().to_owned())
            .chain(service.spec.model.aliases.iter().cloned())
            .collect(),
        audit_file: None,
        max_body_bytes: u32::try_from(limits.max_body_bytes).unwrap_or(u32::MAX),
        request_timeout_seconds: Some(at_least_one(limits.request_timeout_seconds)),
        // The pod's grace period is longer.
        shutdown_timeout_seconds: u32::try_from(service.spec.disruption.drain_timeout_seconds).unwrap_or(0),
        leave_seconds: None,
        limits: GatewayLimitsConfig {
            replicas: at_least_one(service.spec.gateway.replicas),
            store: store(service),
        },
        cache_salt: CacheSaltConfig {
            secret_file: format!("{}/{}", gateway::SALT_PATH, identity::SALT_KEY).into(),
        },
        engines: engines(service, settings),
        revisions: decisions
            .map(|decisions| revisions(service, decisions))
            .unwrap_or_default(),
        routing: RoutingConfig {
            policy: policy(service.spec.gateway.routing.policy),
            session_header: session_header(&service.spec.gateway.routing),
            ..RoutingConfig::default()
        },
        tracing: service
            .spec
            .observability
            .tracing
            .as_ref()
            .map(|spec| TracingConfig {
                endpoint: spec.endpoint.clone(),
                sample_percent: u8::try_from(spec.sample_percent).unwrap_or(100),
            }),
        waiting: WaitingConfig {
            capacity: at_least_one(limits.max_queue),
            max_wait_seconds: u32::try_from(limits.queue_timeout_seconds).unwrap_or(1),
            hold_seconds: 0,
        },
        models: Vec::new(),
    }
}

fn auth(service: &Validated) -> AuthConfig {
    let spec = &service.spec.gateway.auth;
    let mut auth = AuthConfig::default();
    match spec.mode {
        // A folder with no key in it lets nobody in.
        AuthMode::APIKey => {
            auth.api_keys = ApiKeysConfig {
                files: vec![gateway::KEYS_PATH.into()],
                keys: Vec::new(),
            };
        }
        AuthMode::JWT => auth.jwt = spec.jwt.iter().map(|spec| jwt(service, spec)).collect(),
        AuthMode::TokenReview => auth.token_review = Some(review(service)),
        AuthMode::None => {
            auth.anonymous = Some(AnonymousConfig {
                serve_everybody_as: anonymous_tenant(service),
            });
        }
    }
    auth
}

/// The one tenant that there is, or the one that has the default's name; `validate` sees to it that there is one.
fn anonymous_tenant(service: &Validated) -> String {
    match service.spec.gateway.tenants.as_slice() {
        [only] => only.name.clone(),
        _ => DEFAULT_TENANT.to_owned(),
    }
}

/// Without tenants every token is the default one's; with tenants a claim names one of them.
fn jwt(service: &Validated, spec: &JwtSpec) -> JwtConfig {
    let tenants = &service.spec.gateway.tenants;
    let by_name = |tenant: &TenantSpec| (tenant.name.clone(), tenant.name.clone());
    let claim = (!tenants.is_empty()).then(|| ClaimConfig {
        name: spec.tenant_claim.clone(),
        tenants: tenants.iter().map(by_name).collect(),
    });
    JwtConfig {
        issuer: spec.issuer.clone(),
        audiences: spec.audiences.clone(),
        jwks: JwksConfig {
            authorities: spec
                .ca_bundle_ref
                .as_ref()
                .map(|_| format!("{}/{}", gateway::JWKS_PATH, identity::TRUST_KEY).into()),
            ..JwksConfig::at(spec.jwks_url.clone())
        },
        skew_seconds: SKEW_SECONDS,
        tenant: claim.is_none().then(|| DEFAULT_TENANT.to_owned()),
        claim,
    }
}

/// Service accounts of the namespace: each is the tenant of its own name, or the default one where none is listed.
fn review(service: &Validated) -> TokenReviewConfig {
    let rule = |account: Option<String>, tenant: &str| ReviewRuleConfig {
        namespace: Some(service.namespace.clone()),
        service_account: account,
        group: None,
        username: None,
        tenant: tenant.to_owned(),
    };
    let tenants = &service.spec.gateway.tenants;
    let mut rules: Vec<_> = tenants
        .iter()
        .map(|tenant| rule(Some(tenant.name.clone()), &tenant.name))
        .collect();
    if rules.is_empty() {
        rules.push(rule(None, DEFAULT_TENANT));
    }
    TokenReviewConfig {
        audience: ChildNames::dns(&service.names.gateway(), &service.namespace),
        rules,
        api_server: None,
    }
}

fn tenants(service: &Validated) -> Vec<TenantConfig> {
    let all: Vec<_> = service.spec.gateway.tenants.iter().map(tenant).collect();
    if !all.is_empty() {
        return all;
    }
    vec![TenantConfig {
        name: DEFAULT_TENANT.to_owned(),
        scopes: vec![ScopeConfig::Inference],
        models: Names::All,
        adapters: Names::All,
        priority: 0,
        weight: NonZeroU32::MIN,
        max_tokens: None,
        limits: TenantLimitsConfig::default(),
    }]
}

fn tenant(spec: &TenantSpec) -> TenantConfig {
    let scope = |scope: &Scope| match scope {
        Scope::Inference => ScopeConfig::Inference,
        Scope::Operations => ScopeConfig::Operations,
        Scope::Admin => ScopeConfig::Admin,
    };
    let per_minute = |limit: Option<i64>| limit.and_then(|n| NonZeroU64::new(u64::try_from(n).unwrap_or(0)));
    TenantConfig {
        name: spec.name.clone(),
        scopes: spec.scopes.iter().map(scope).collect(),
        models: if spec.models.is_empty() {
            Names::All
        } else {
            Names::Only(spec.models.iter().cloned().collect())
        },
        adapters: Names::All,
        priority: spec.priority,
        weight: at_least_one(spec.weight),
        max_tokens: None,
        limits: TenantLimitsConfig {
            requests_per_minute: per_minute(spec.limits.requests_per_minute),
            tokens_per_minute: per_minute(spec.limits.tokens_per_minute),
            concurrency: spec.limits.concurrency.map(at_least_one),
            ..TenantLimitsConfig::default()
        },
    }
}

fn store(service: &Validated) -> Option<LimitStoreConfig> {
    let store = &service.spec.gateway.limits.store;
    (store.r#type == LimitsStoreType::Redis).then(|| {
        let url_file = format!("{}/{}", config::CONFIG_PATH, gateway::REDIS_KEY);
        // Services may share a server.
        let prefix = format!("kvasir:{}:{}", service.namespace, service.name);
        let password = store.password_secret_ref.as_ref();
        LimitStoreConfig {
            password_file: password.map(|_| format!("{}/password", gateway::REDIS_PATH).into()),
            ..LimitStoreConfig::new(url_file.into(), prefix)
        }
    })
}

/// Ready leaders, by the engines' Service.
fn engines(service: &Validated, settings: &Settings) -> EnginesConfig {
    let name = ChildNames::dns(&service.names.engine_service(), &service.namespace);
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
    let mut all: Vec<&str> = decisions
        .groups
        .iter()
        .map(|group| group.revision.as_str())
        .collect();
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

fn certificate(key: &str) -> PathBuf {
    format!("{}/{key}", engine_pod::TLS_PATH).into()
}

fn at_least_one(number: i32) -> NonZeroU32 {
    NonZeroU32::new(u32::try_from(number).unwrap_or(0)).unwrap_or(NonZeroU32::MIN)
}
