//! Objects that the operator makes: their kinds, their identity, and how a change is noticed.
//!
//! A child is written when it doesn't exist, when what is wanted differs from what was wanted at its last write (a hash in an
//! annotation), or when somebody else changed it since (the digest of what the API server stored differs from the digest
//! right after our last write). Wanted objects are never compared with stored ones: the API server fills in defaults and
//! rewrites amounts, and such a comparison would write for ever.

use std::fmt;

use k8s_openapi::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kvasir_operator_api::{labels, names};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Where a StatefulSet has its claims. They are immutable.
pub(crate) const CLAIMS: &str = "volumeClaimTemplates";
/// Where it has what becomes of them.
pub(crate) const CLAIM_RETENTION: &str = "persistentVolumeClaimRetentionPolicy";

/// A kind of child. The order is the order in which kinds are written; deletion goes the other way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Identities without rights, or with rights by name.
    ServiceAccount,
    /// Rights by name.
    Role,
    /// Who has them.
    RoleBinding,
    /// Configuration.
    ConfigMap,
    /// Certificates and keys.
    Secret,
    /// A certificate that cert-manager makes.
    Certificate,
    /// Entrances and names.
    Service,
    /// Who may connect to what. Before pods, so that none runs unprotected.
    NetworkPolicy,
    /// How many pods a drain may take.
    PodDisruptionBudget,
    /// Kept revisions of the spec.
    ControllerRevision,
    /// A group.
    StatefulSet,
    /// The gateway.
    Deployment,
    /// An entrance from outside.
    Ingress,
    /// How a Gateway knows the service's gateway by its certificate.
    BackendTLSPolicy,
    /// An entrance from outside, through a Gateway.
    HTTPRoute,
    /// What Prometheus scrapes, by pod.
    PodMonitor,
    /// What Prometheus scrapes, by Service.
    ServiceMonitor,
    /// Alerts.
    PrometheusRule,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 18] = [
        Self::ServiceAccount,
        Self::Role,
        Self::RoleBinding,
        Self::ConfigMap,
        Self::Secret,
        Self::Certificate,
        Self::Service,
        Self::NetworkPolicy,
        Self::PodDisruptionBudget,
        Self::ControllerRevision,
        Self::StatefulSet,
        Self::Deployment,
        Self::Ingress,
        Self::BackendTLSPolicy,
        Self::HTTPRoute,
        Self::PodMonitor,
        Self::ServiceMonitor,
        Self::PrometheusRule,
    ];

    /// Its `apiVersion`.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::ConfigMap | Self::Secret | Self::Service => "v1",
            Self::Role | Self::RoleBinding => "rbac.authorization.k8s.io/v1",
            Self::Certificate => "cert-manager.io/v1",
            Self::NetworkPolicy | Self::Ingress => "networking.k8s.io/v1",
            Self::PodDisruptionBudget => "policy/v1",
            Self::ControllerRevision | Self::StatefulSet | Self::Deployment => "apps/v1",
            Self::BackendTLSPolicy | Self::HTTPRoute => "gateway.networking.k8s.io/v1",
            Self::PodMonitor | Self::ServiceMonitor | Self::PrometheusRule => "monitoring.coreos.com/v1",
        }
    }

    /// Whether nothing else of a service rests on it: it leads to the service or watches it.
    pub const fn is_outermost(self) -> bool {
        matches!(
            self,
            Self::Ingress
                | Self::BackendTLSPolicy
                | Self::HTTPRoute
                | Self::PodMonitor
                | Self::ServiceMonitor
                | Self::PrometheusRule
        )
    }

    /// Whether every cluster knows it.
    pub const fn is_native(self) -> bool {
        !matches!(
            self,
            Self::Certificate
                | Self::BackendTLSPolicy
                | Self::HTTPRoute
                | Self::PodMonitor
                | Self::ServiceMonitor
                | Self::PrometheusRule
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Kind and name of a child within the service's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// An object as the operator wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Kind and name.
    pub reference: ObjectRef,
    /// The object, complete, for server-side apply.
    pub object: Value,
    /// Hash of what is wanted.
    pub hash: String,
}

impl Child {
    /// A child from a typed object that has a name. The hash is that of the object.
    #[expect(
        clippy::missing_panics_doc,
        reason = "Kubernetes objects are plain data and always serialize"
    )]
    pub fn new<T: Resource + Serialize>(kind: Kind, name: &str, object: &T) -> Self {
        let mut value = serde_json::to_value(object).expect("Kubernetes objects are plain data");
        value["apiVersion"] = kind.api_version().into();
        value["kind"] = kind.to_string().into();
        Self::from_value(kind, name, value, None)
    }

    /// A child of a kind that others define: there is no type for its spec.
    pub fn of_spec(kind: Kind, metadata: &ObjectMeta, spec: &Value) -> Self {
        let object = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.to_string(),
            "metadata": metadata,
            "spec": spec,
        });
        let name = metadata.name.as_deref().unwrap_or_default();
        Self::from_value(kind, name, object, None)
    }

    /// A child from JSON. `hash` stands for the object where its later forms must not be written over it.
    pub fn from_value(kind: Kind, name: &str, mut object: Value, hash: Option<String>) -> Self {
        let hash = hash.unwrap_or_else(|| names::short_hash(object.to_string().as_bytes()));
        object["metadata"]["annotations"][labels::DESIRED_HASH] = hash.clone().into();
        Self {
            reference: ObjectRef {
                kind,
                name: name.to_owned(),
            },
            object,
            hash,
        }
    }

    /// The same child with another hash.
    #[must_use]
    pub fn with_hash(self, hash: String) -> Self {
        Self::from_value(self.reference.kind, &self.reference.name, self.object, Some(hash))
    }
}

/// An object as it was observed.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Kind and name.
    pub reference: ObjectRef,
    /// Its uid: an object of the same name and another uid is another object.
    pub uid: String,
    /// The object, or what [`slim`](Self::slim) left of it.
    pub object: Value,
    /// Digest of the whole object.
    digest: String,
}

impl Live {
    /// An observed object; nothing where it has no name or uid.
    pub fn new(kind: Kind, object: Value) -> Option<Self> {
        let text = |key: &str| object["metadata"][key].as_str().map(str::to_owned);
        Some(Self {
            reference: ObjectRef {
                kind,
                name: text("name")?,
            },
            uid: text("uid")?,
            digest: digest(&object),
            object,
        })
    }

    /// The same without everything that no decision reads, for caches that hold thousands. The digest stays that of the whole.
    #[must_use]
    pub fn slim(mut self) -> Self {
        let metadata = &self.object["metadata"];
        let ours = |map: &Value| -> Map<String, Value> {
            let entries = map.as_object().into_iter().flatten();
            entries
                .filter(|(key, _)| key.starts_with(labels::PREFIX))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let owners: Vec<Value> = owners
            .filter(|owner| owner["controller"] == true)
            .map(|owner| json!({ "uid": owner["uid"], "controller": true }))
            .collect();
        let mut kept = json!({
            "labels": ours(&metadata["labels"]),
            "annotations": ours(&metadata["annotations"]),
            "ownerReferences": owners,
        });
        if self.is_deleting() {
            kept["deletionTimestamp"] = metadata["deletionTimestamp"].clone();
        }
        let mut slim = json!({ "metadata": kept });
        match self.reference.kind {
            Kind::StatefulSet => {
                slim["spec"] = json!({ "replicas": self.object["spec"]["replicas"] });
                if self.has_claims() {
                    // A later write must repeat them, because they can't be changed.
                    for key in [CLAIMS, CLAIM_RETENTION] {
                        slim["spec"][key] = self.object["spec"][key].take();
                    }
                }
            }
            Kind::ControllerRevision => {
                slim["data"] = self.object["data"].take();
                slim["revision"] = self.object["revision"].take();
            }
            // Whether it was issued or taken, and why not.
            Kind::Certificate | Kind::BackendTLSPolicy | Kind::HTTPRoute => {
                slim["status"] = self.object["status"].take();
            }
            _ => {}
        }
        self.object = slim;
        self
    }

    /// Whether it is a StatefulSet whose pods get claims.
    pub fn has_claims(&self) -> bool {
        let claims = self.object["spec"][CLAIMS].as_array();
        claims.is_some_and(|claims| !claims.is_empty())
    }

    /// Whether the service with this uid is its controller.
    pub fn is_owned_by(&self, uid: &str) -> bool {
        self.object["metadata"]["ownerReferences"]
            .as_array()
            .is_some_and(|owners| owners.iter().any(|o| o["uid"] == uid && o["controller"] == true))
    }

    /// Whether its deletion has begun.
    pub fn is_deleting(&self) -> bool {
        self.object["metadata"]["deletionTimestamp"].is_string()
    }

    /// One of its labels.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.object["metadata"]["labels"][key].as_str()
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.object["metadata"]["annotations"][key].as_str()
    }

    /// Hash of what was wanted when it was last written.
    pub fn desired_hash(&self) -> Option<&str> {
        self.annotation(labels::DESIRED_HASH)
    }

    /// Digest of everything that only an edit changes.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// Digest of everything in a stored object that only an edit changes: not its status, and of its metadata only what the
/// operator sets (controllers of the cluster add annotations and finalizers of their own).
pub fn digest(object: &Value) -> String {
    let mut kept = Map::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "status" | "metadata" | "apiVersion" | "kind") {
            kept.insert(key.clone(), sorted(value));
        }
    }
    // The token controller adds these to service accounts.
    if object["kind"] == "ServiceAccount" {
        kept.remove("secrets");
        kept.remove("imagePullSecrets");
    }
    let own = |map: &Value| -> Value {
        map.as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| key.starts_with(labels::PREFIX) || key.starts_with("app.kubernetes.io/"))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<std::collections::BTreeMap<_, _>>()
            .into_iter()
            .collect::<Map<_, _>>()
            .into()
    };
    let metadata = &object["metadata"];
    kept.insert(
        "metadata".to_owned(),
        json!([
            own(&metadata["labels"]),
            own(&metadata["annotations"]),
            sorted(&metadata["ownerReferences"])
        ]),
    );
    names::short_hash(sorted(&Value::Object(kept)).to_string().as_bytes())
}

/// The value with all keys in order, whatever order they arrived in.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.iter().collect();
            keys.sort_by_key(|(key, _)| key.as_str());
            keys.into_iter()
                .map(|(key, inner)| (key.clone(), sorted(inner)))
                .collect::<Map<_, _>>()
                .into()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}
