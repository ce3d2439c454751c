//! Who may connect to what, and with which certificates.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{IpBlock, LabelSelector};
use crate::rules;

/// Network policies: everything is closed but what is needed and what is listed here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSpec {
    /// Strict closes every pod; Open makes no policies.
    ///
    /// Strict makes policies for every pod; Open makes none (NetworkSecured=False/Open).
    pub mode: NetworkMode,
    /// Clients; by default this namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub allowed_clients: Vec<Peer>,
    /// Who reads metrics. Nobody if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<PodPeer>,
    /// Where name resolution happens.
    pub dns: DnsSpec,
    /// What pods reach while they load a model.
    ///
    /// Addresses that pods reach while they load a model from the network, and at no other time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub model_egress: Vec<EgressRule>,
    /// What the gateway reaches: JWKS, Redis, API server.
    ///
    /// Addresses that the gateway reaches: JWKS, Redis, OTLP, and the API server in mode TokenReview.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub gateway_egress: Vec<EgressRule>,
}

/// Whether policies are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkMode {
    /// Policies for every pod.
    #[default]
    Strict,
    /// No policies.
    Open,
}

/// Pods, by the labels of namespace and pod together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodPeer {
    /// Namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
}

/// Pods or addresses: selectors or ipBlock, never both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::PEER.json()))]
pub struct Peer {
    /// Namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// Addresses, as of a load balancer.
    ///
    /// Addresses outside the cluster, for example of a load balancer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_block: Option<IpBlock>,
}

/// Where name resolution happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DnsSpec {
    /// Namespace of the DNS pods.
    pub namespace_selector: LabelSelector,
    /// The DNS pods.
    pub pod_selector: LabelSelector,
    /// The pods' ports. Policies see the pod's port, not the Service's.
    #[schemars(
        length(min = 1, max = 8),
        inner(range(min = 1, max = 65535)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub ports: Vec<i32>,
    /// The node's DNS cache; empty for none.
    ///
    /// Address of a DNS cache on the node, which no pod selector matches; empty for none.
    #[schemars(length(max = 39))]
    pub node_local_address: String,
}

impl Default for DnsSpec {
    fn default() -> Self {
        let label = |key: &str, value: &str| LabelSelector {
            match_labels: [(key.to_owned(), value.to_owned())].into(),
        };
        Self {
            namespace_selector: label("kubernetes.io/metadata.name", "kube-system"),
            pod_selector: label("k8s-app", "kube-dns"),
            ports: vec![53],
            // The address that NodeLocal DNSCache uses unless told otherwise.
            node_local_address: "169.254.20.10".to_owned(),
        }
    }
}

/// Addresses and ports that may be reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct EgressRule {
    /// Addresses in CIDR form.
    #[schemars(length(min = 3, max = 43), extend("x-kubernetes-validations" = rules::CIDR.json()))]
    pub cidr: String,
    /// Ranges left out of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 3, max = 43)), extend("x-kubernetes-list-type" = "set"))]
    pub except: Vec<String>,
    /// TCP ports.
    #[serde(default = "https")]
    #[schemars(
        length(min = 1, max = 16),
        inner(range(min = 1, max = 65535)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub ports: Vec<i32>,
}

fn https() -> Vec<i32> {
    vec![443]
}

/// Certificates between client, gateway, engines and operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::TLS.json()))]
pub struct TlsSpec {
    /// Who issues; Off is refused.
    ///
    /// Internal (the operator's own authority), CertManager, Provided or Off.
    pub mode: TlsMode,
    /// Issuer, for mode CertManager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer_ref: Option<IssuerRef>,
    /// Secret with tls.crt, tls.key and ca.crt, for mode Provided.
    ///
    /// Secret with tls.crt, tls.key and ca.crt for all pods of the service, for mode Provided.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: Option<String>,
    /// The operator's own such Secret, for mode Provided.
    ///
    /// Secret with what the operator presents itself with to engines, for mode Provided. Without it engines can't be asked for their
    /// load, and draining groups end by time alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub operator_secret_name: Option<String>,
    /// Validity; renewal is at half.
    ///
    /// How long a certificate is valid; it is renewed when half of that is over.
    #[schemars(range(min = 1, max = 8760))]
    pub validity_hours: i32,
}

impl Default for TlsSpec {
    fn default() -> Self {
        Self {
            mode: TlsMode::Internal,
            issuer_ref: None,
            secret_name: None,
            operator_secret_name: None,
            validity_hours: 24,
        }
    }
}

/// Who issues certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TlsMode {
    /// The operator, with an authority of its own.
    #[default]
    Internal,
    /// cert-manager.
    CertManager,
    /// Whoever wrote the Secret.
    Provided,
    /// Nobody: traffic is readable on the wire.
    Off,
}

/// An issuer of cert-manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRef {
    /// Name of the issuer.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Issuer or ClusterIssuer.
    #[serde(default = "issuer")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// API group of the kind.
    #[serde(default = "cert_manager")]
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
}

fn issuer() -> String {
    "Issuer".to_owned()
}

fn cert_manager() -> String {
    "cert-manager.io".to_owned()
}
