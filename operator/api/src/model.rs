//! Which model is served, and where its files come from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{ConfigMapKeyRef, NameRef, SecretKeyRef};
use crate::pod::PullPolicy;
use crate::rules;

/// The model that the service serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::MODEL.json()))]
pub struct ModelSpec {
    /// Model id that clients ask for; the service's own name if left out. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Further ids under which the gateway serves the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub aliases: Vec<String>,
    /// Where the files come from: exactly one member. A change replaces all groups under spec.rollout.
    pub source: ModelSource,
    /// SHA-256 of the artefact's manifest in hex. Not built yet: refused with Accepted=False/Unsupported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// Format of the weights: Auto looks at the files. Others aren't built yet: refused with Accepted=False/Unsupported.
    #[serde(default)]
    pub format: ModelFormat,
    /// Allows an image tag without digest, which may change between two restarts.
    #[serde(default)]
    pub allow_mutable_reference: bool,
    /// LoRA adapters, loaded without a pod restart. Not built yet: refused with Accepted=False/Unsupported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub adapters: Vec<AdapterSpec>,
}

/// Format of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ModelFormat {
    /// Decided from the files.
    #[default]
    Auto,
    /// safetensors with a Hugging Face config.json.
    SafeTensors,
    /// One GGUF file.
    GGUF,
}

/// Where model files come from: exactly one member is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::SOURCE.json()))]
pub struct ModelSource {
    /// A PersistentVolumeClaim, mounted read-only. Needs no network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcSource>,
    /// An OCI image mounted as a volume (Kubernetes 1.33 or newer). Needs no network of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// A Hugging Face repository, fetched by each group. Needs network.modelEgress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HuggingFaceSource>,
    /// An S3 bucket. Not built yet: refused with Accepted=False/Unsupported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Source>,
    /// One file over HTTP. Not built yet: refused with Accepted=False/Unsupported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// A folder on the node, for development. Only where the operator runs with --allow-local-sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalSource>,
}

/// Model files on a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PvcSource {
    /// The claim, in the service's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// File or folder within the volume; its root if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), extend("x-kubernetes-validations" = rules::RELATIVE_PATH.json()))]
    pub path: Option<String>,
}

/// Model files in an OCI image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// Image reference with a digest: registry/name@sha256:...
    #[schemars(length(min = 1, max = 512))]
    pub reference: String,
    /// When the image is pulled: IfNotPresent, Always or Never.
    #[serde(default)]
    pub pull_policy: PullPolicy,
    /// Secrets with registry credentials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pull_secrets: Vec<NameRef>,
    /// File or folder within the image; its root if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), extend("x-kubernetes-validations" = rules::RELATIVE_PATH.json()))]
    pub path: Option<String>,
}

/// A Hugging Face repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HuggingFaceSource {
    /// Repository as org/name.
    #[schemars(
        length(min = 3, max = 193),
        regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")
    )]
    pub repo: String,
    /// Branch, tag or commit; main if left out. A commit makes every group load the same files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"))]
    pub revision: Option<String>,
    /// One file of the repository, for example model.Q4_K_M.gguf, or a quantization such as Q4_K_M.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"))]
    pub file: Option<String>,
    /// Base URL of a mirror, with its scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s]+$"))]
    pub endpoint: Option<String>,
    /// Access token for gated repositories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
}

/// Model files in an S3 bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Source {
    /// Bucket and prefix as s3://bucket/prefix.
    #[schemars(length(min = 6, max = 1024), regex(pattern = r"^s3://[^\s/]+(/[^\s]*)?$"))]
    pub uri: String,
    /// Endpoint of a store that isn't AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s]+$"))]
    pub endpoint: Option<String>,
    /// Region of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub region: Option<String>,
    /// Secret with accessKeyId and secretAccessKey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<NameRef>,
    /// Certificate authorities of the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<ConfigMapKeyRef>,
}

/// One file over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HttpSource {
    /// Address of the file.
    #[schemars(length(min = 8, max = 2048), regex(pattern = r"^https?://[^\s]+$"))]
    pub url: String,
}

/// A folder on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalSource {
    /// Absolute path on the node.
    #[schemars(length(min = 1, max = 1024), extend("x-kubernetes-validations" = rules::ABSOLUTE_PATH.json()))]
    pub path: String,
}

/// One LoRA adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdapterSpec {
    /// Model id under which clients use the adapter.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Claim and path that hold the adapter.
    pub source: PvcSource,
    /// SHA-256 of the artefact's manifest in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
}
