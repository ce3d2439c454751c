//! The gateway's configuration file, made of the types that `kvasir gateway run` reads it with.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use kvasir_config::gateway::{
    AnonymousConfig, ApiKeysConfig, AuthConfig, CacheSaltConfig, ClaimConfig, GatewayConfig,
    GatewayLimitsConfig, JwksConfig, JwtConfig, LimitStoreConfig, Names, ReviewRuleConfig, ScopeConfig,
    ServerTlsConfig, TenantConfig, TenantLimitsConfig, TokenReviewConfig, TracingConfig,
};
use kvasir_operator_api::names::Names as ChildNames;
use kvasir_operator_api::{AuthMode, JwtSpec, LimitsStoreType, Scope, TenantSpec};

use super::{config, engine_pod, gateway, gateway_model};
use crate::groups::Decisions;
use crate::identity;
use crate::settings::Settings;
use crate::validate::Validated;

/// The tenant of every credential where the spec lists none.
pub const DEFAULT_TENANT: &str = "default";
/// Tolerated difference between clocks, in seconds.
const SKEW_SECONDS: u32 = 30;

/// The file as a whole. Only `revisions` changes while a rollout goes on, and `models` as other services come and go; without decisions it is
/// the file as the gateway's process needs it at its start.
pub fn build(service: &Validated, decisions: Option<&Decisions>, settings: &Settings) -> GatewayConfig {
    let listen = |port: i32| SocketAddr::from((Ipv4Addr::UNSPECIFIED, u16::try_from(port).unwrap_or(0)));
    let limits = &service.spec.gateway.limits;
    let own = gateway_model::model(service, decisions, settings);
    // Others' models come and go while the gateway runs, so they are beside the settings that it was started with.
    let guests = service.sharing.guests.iter().filter(|_| decisions.is_some());
    let models = guests.map(|guest| gateway_model::model(&guest.service, Some(&guest.decisions), settings));
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
        served_model_names: own.served_model_names,
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
        engines: own.engines,
        revisions: own.revisions,
        routing: own.routing,
        tracing: service
            .spec
            .observability
            .tracing
            .as_ref()
            .map(|spec| TracingConfig {
                endpoint: spec.endpoint.clone(),
                sample_percent: u8::try_from(spec.sample_percent).unwrap_or(100),
            }),
        waiting: own.waiting,
        models: models.collect(),
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

/// A file beside the gateway's certificate.
pub(super) fn certificate(key: &str) -> PathBuf {
    format!("{}/{key}", engine_pod::TLS_PATH).into()
}

/// A number that the API server keeps above 0.
pub(super) fn at_least_one(number: i32) -> NonZeroU32 {
    NonZeroU32::new(u32::try_from(number).unwrap_or(0)).unwrap_or(NonZeroU32::MIN)
}
