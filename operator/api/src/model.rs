//! Which model is served, and where its files come from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{NameRef, SecretKeyRef, Unbuilt};
use crate::pod::PullPolicy;
use crate::rules;

/// The model that the service serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::MODEL.json()))]
pub struct ModelSpec {
    /// Model id, default the service's name; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Further model ids.
    ///
    /// Further ids under which the gateway serves the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub aliases: Vec<String>,
    /// Where the files are: exactly one. A change replaces all groups under spec.rollout.
    pub source: ModelSource,
    /// SHA-256 that `kvasir models digest` prints.
    ///
    /// Engines compare it before they read the model. An http source needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// Form that the files must have.
    ///
    /// Of a repository with both forms it chooses one.
    #[serde(default)]
    pub format: ModelFormat,
    /// Allows images without digest.
    ///
    /// Allows an image tag without digest, which may change between two restarts.
    #[serde(default)]
    pub allow_mutable_reference: bool,
    /// LoRA adapters (not built).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub adapters: Vec<Unbuilt>,
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
    /// A claim, mounted read-only. Needs no network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcSource>,
    /// An OCI image, from which files are copied. Needs no network of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// A Hugging Face repository; needs network.modelEgress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HuggingFaceSource>,
    /// An S3 bucket (not built).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<Unbuilt>,
    /// One GGUF file over HTTP; needs sha256 and network.modelEgress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// A folder on the node; needs --allow-local-sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalSource>,
}

impl ModelSource {
    /// Pods fetch the model over the network while they load it.
    pub fn is_fetched(&self) -> bool {
        self.hugging_face.is_some() || self.http.is_some()
    }
}

/// Model files on a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PvcSource {
    /// Name of the claim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Path within it; default its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), extend("x-kubernetes-validations" = rules::RELATIVE_PATH.json()))]
    pub path: Option<String>,
}

/// Model files in an OCI image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// Reference with a digest.
    ///
    /// Image reference with a digest: registry/name@sha256:...
    #[schemars(length(min = 1, max = 512))]
    pub reference: String,
    /// When the image is pulled.
    #[serde(default)]
    pub pull_policy: PullPolicy,
    /// Secrets for the registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pull_secrets: Vec<NameRef>,
    /// File or folder in it; default models.
    ///
    /// File or folder in it, readable for user 65532; default models, as in images of KServe.
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
    /// Branch, tag or commit; default main. A commit makes every group load the same files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"))]
    pub revision: Option<String>,
    /// One file, or a quantization such as Q4_K_M.
    ///
    /// One file of the repository, for example model.Q4_K_M.gguf, or a quantization such as Q4_K_M.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"))]
    pub file: Option<String>,
    /// Base URL of a mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s]+$"))]
    pub endpoint: Option<String>,
    /// Access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
}

/// One GGUF file over HTTP. No credential is sent: a signed address carries its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HttpSource {
    /// Address of the file.
    #[schemars(length(min = 8, max = 2048), regex(pattern = r"^https?://[^\s#]+$"))]
    pub url: String,
}

/// A folder on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalSource {
    /// Absolute path on the node.
    #[schemars(length(min = 1, max = 1024), extend("x-kubernetes-validations" = rules::ABSOLUTE_PATH.json()))]
    pub path: String,
}
