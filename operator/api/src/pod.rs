//! Parts of a pod that a user may set.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{ConfigMapKeyRef, NameRef, SecretKeyRef};
use crate::rules;

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// When the node lacks it.
    #[default]
    IfNotPresent,
    /// Before every start.
    Always,
    /// Never: the node must have it.
    Never,
}

/// One environment variable: exactly one of its sources is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::ENV_VAR.json()))]
pub struct EnvVar {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub value: Option<String>,
    /// Value from a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeyRef>,
    /// Value from a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<ConfigMapKeyRef>,
    /// Value from the pod, as status.hostIP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub field_path: Option<String>,
}

/// A Secret or ConfigMap whose keys become variables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::ENV_FROM.json()))]
pub struct EnvFrom {
    /// Put in front of each key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub prefix: Option<String>,
    /// A Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<NameRef>,
    /// A ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<NameRef>,
}
