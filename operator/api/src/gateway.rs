//! The service's entrance: who may ask, how much, and which group answers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{ConfigMapKeyRef, NameRef, Resources, SecretKeyRef};
use crate::rules;

/// The service's entrance, a Deployment of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::GATEWAY.json()))]
pub struct GatewaySpec {
    /// Whether there is one.
    ///
    /// False leaves the engines without an entrance of their own: behind another service's gateway, see `gatewayRef`, or without any.
    pub enabled: bool,
    /// Gateway pods.
    #[schemars(range(min = 0, max = 100))]
    pub replicas: i32,
    /// Gateway image. The operator's own default if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// CPU and memory of each pod.
    pub resources: Resources,
    /// The Service before the pods.
    pub service: GatewayService,
    /// An HTTPRoute of the Gateway API before the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteSpec>,
    /// An Ingress before the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressSpec>,
    /// Service whose gateway serves this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_ref: Option<NameRef>,
    /// How a group is chosen.
    pub routing: RoutingSpec,
    /// Who may ask.
    pub auth: AuthSpec,
    /// Bounds for all requests.
    pub limits: GatewayLimits,
    /// Tenants, which credentials name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub tenants: Vec<TenantSpec>,
    /// Where responses, files and batches live (not built). Without it these routes answer 501.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_store: Option<StateStoreSpec>,
}

impl Default for GatewaySpec {
    fn default() -> Self {
        Self {
            enabled: true,
            replicas: 2,
            image: None,
            resources: Resources::default(),
            service: GatewayService::default(),
            route: None,
            ingress: None,
            gateway_ref: None,
            routing: RoutingSpec::default(),
            auth: AuthSpec::default(),
            limits: GatewayLimits::default(),
            tenants: Vec::new(),
            state_store: None,
        }
    }
}

/// The Service in front of the gateway pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayService {
    /// Its type.
    ///
    /// ClusterIP, NodePort or LoadBalancer.
    pub r#type: ServiceType,
    /// Its port; default 443, or 80 without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// Its annotations.
    ///
    /// Annotations of the Service, for example for a cloud's load balancer.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
}

impl Default for GatewayService {
    fn default() -> Self {
        Self {
            r#type: ServiceType::ClusterIP,
            port: None,
            annotations: BTreeMap::new(),
        }
    }
}

/// Kind of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// Reachable within the cluster.
    #[default]
    ClusterIP,
    /// Reachable on a port of every node.
    NodePort,
    /// Reachable through the cloud's load balancer.
    LoadBalancer,
}

/// An Ingress in front of the Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressSpec {
    /// Its IngressClass.
    ///
    /// IngressClass; the cluster's default if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub class_name: Option<String>,
    /// Its host name.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// Secret with its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub tls_secret_name: Option<String>,
}

/// An HTTPRoute in front of the Service. `network.allowedClients` must admit the pods of the Gateways that it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteSpec {
    /// Gateways that serve it.
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub parent_refs: Vec<RouteParent>,
    /// Its host names; all of its Gateways if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(max = 253), regex(pattern = r"^(\*\.)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub hostnames: Vec<String>,
}

/// A Gateway, or one of its listeners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteParent {
    /// Name of the Gateway.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace; default the service's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Its listener; default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub section_name: Option<String>,
}

/// How a group is chosen for a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RoutingSpec {
    /// PrefixAware prefers cached blocks.
    ///
    /// PrefixAware (most cached blocks), LeastKV, LeastRequests, RoundRobin or Session.
    pub policy: RoutingPolicy,
    /// Header that names a session.
    #[schemars(regex(pattern = r"^[A-Za-z0-9-]{1,64}$"))]
    pub session_header: String,
    /// Prompt characters that count.
    ///
    /// Characters of the prompt that count for PrefixAware; all if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub prefix_chars: Option<i32>,
}

impl Default for RoutingSpec {
    fn default() -> Self {
        Self {
            policy: RoutingPolicy::PrefixAware,
            session_header: "x-session-id".to_owned(),
            prefix_chars: None,
        }
    }
}

/// How a group is chosen for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RoutingPolicy {
    /// The group that holds most of the prompt's blocks, unless it is overloaded.
    #[default]
    PrefixAware,
    /// The less full of two random groups.
    LeastKV,
    /// The less busy of two random groups.
    LeastRequests,
    /// One after the other.
    RoundRobin,
    /// The same group for a session.
    Session,
}

/// Who may ask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::AUTH.json()))]
pub struct AuthSpec {
    /// None needs annotation kvasir.dev/allow-anonymous: "true".
    pub mode: AuthMode,
    /// Secrets with API keys; with none, mode APIKey refuses all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub api_key_secrets: Vec<NameRef>,
    /// Tokens for mode JWT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtSpec>,
}

/// How a client shows who it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AuthMode {
    /// Not at all.
    None,
    /// With a key from one of apiKeySecrets.
    #[default]
    APIKey,
    /// With a token of an identity provider.
    JWT,
    /// With a token of a Kubernetes service account.
    TokenReview,
}

/// Tokens of an identity provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JwtSpec {
    /// Issuer that a token must name.
    #[schemars(length(min = 1, max = 1024))]
    pub issuer: String,
    /// Audiences; a token names one.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 1024)), extend("x-kubernetes-list-type" = "set"))]
    pub audiences: Vec<String>,
    /// Where the keys are. network.gatewayEgress must allow the address.
    #[serde(rename = "jwksURL")]
    #[schemars(length(min = 9, max = 2048), regex(pattern = r"^https://[^\s]+$"))]
    pub jwks_url: String,
    /// Claim that names the tenant.
    ///
    /// Claim of a token that names its tenant, where spec.gateway.tenants lists some.
    #[serde(default = "tenant_claim")]
    #[schemars(length(min = 1, max = 253))]
    pub tenant_claim: String,
    /// Authorities of jwksURL; default the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<ConfigMapKeyRef>,
}

/// Bounds for all requests together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayLimits {
    /// Largest request body.
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    pub max_body_bytes: i64,
    /// Waiting requests per pod.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_queue: i32,
    /// Longest wait of a request.
    #[schemars(range(min = 1, max = 3600))]
    pub queue_timeout_seconds: i32,
    /// Longest run of a request.
    #[schemars(range(min = 1, max = 86_400))]
    pub request_timeout_seconds: i32,
    /// Where pods share tenants' counters.
    pub store: LimitsStore,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            max_body_bytes: 32 * 1024 * 1024,
            max_queue: 1024,
            queue_timeout_seconds: 60,
            request_timeout_seconds: 3600,
            store: LimitsStore::default(),
        }
    }
}

/// Where gateway pods share the tenants' counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::LIMITS_STORE.json()))]
pub struct LimitsStore {
    /// Local gives each pod its share.
    pub r#type: LimitsStoreType,
    /// Address of the Redis server. network.gatewayEgress must allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 1024), regex(pattern = r"^rediss?://[^\s@]+$"))]
    pub url: Option<String>,
    /// Password of the Redis server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<SecretKeyRef>,
}

/// Where counters live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LimitsStoreType {
    /// In each gateway pod: it enforces the limit divided by the ready pods.
    #[default]
    Local,
    /// In a Redis server.
    Redis,
}

/// One tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantSpec {
    /// Name that credentials carry.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Model ids it may use; all if left out.
    ///
    /// Model ids that the tenant may use, of this service or of others behind its gateway; all if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub models: Vec<String>,
    /// What it may do.
    ///
    /// What the tenant may do: Inference, Operations, Admin.
    #[serde(default = "inference")]
    #[schemars(length(min = 1, max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub scopes: Vec<Scope>,
    /// Priority: smaller goes first.
    #[serde(default)]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i32,
    /// Share among equal priorities.
    ///
    /// Share in a fair division among tenants of one priority.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: i32,
    /// Its limits.
    ///
    /// Limits of the tenant; none if left out.
    #[serde(default)]
    pub limits: TenantLimits,
}

/// What a tenant may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Scope {
    /// Ask the model.
    Inference,
    /// Read metrics and state.
    Operations,
    /// Change state.
    Admin,
}

/// Limits of one tenant, over all gateway pods together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantLimits {
    /// Requests per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub requests_per_minute: Option<i64>,
    /// Tokens per minute, in and out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens_per_minute: Option<i64>,
    /// Requests at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub concurrency: Option<i32>,
}

/// Where stored responses, files and batches live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateStoreSpec {
    /// Claim of all gateway pods.
    ///
    /// A claim that all gateway pods mount (access mode ReadWriteMany with more than one pod).
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
}

fn tenant_claim() -> String {
    "tenant".to_owned()
}

fn inference() -> Vec<Scope> {
    vec![Scope::Inference]
}

fn one() -> i32 {
    1
}
