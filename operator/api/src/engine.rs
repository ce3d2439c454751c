//! How the engine of each group runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{NameRef, Quantity, Resources};
use crate::pod::{EnvFrom, EnvVar, PullPolicy};
use crate::rules;

/// The engine container. Every change here replaces all groups under spec.rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EngineSpec {
    /// Engine image. The operator's own default if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// When the image is pulled.
    pub image_pull_policy: PullPolicy,
    /// Secrets for the registry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<NameRef>,
    /// Longest prompt plus output in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_model_len: Option<i32>,
    /// Most sequences in one step.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_536))]
    pub max_sequences: Option<i32>,
    /// Token budget of one step.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_batch_tokens: Option<i32>,
    /// Type that weights are computed in.
    pub dtype: Dtype,
    /// What weights must be, as Q4_K_M.
    ///
    /// Quantization that the weights must have; of a repository with several GGUF files it chooses one. Nothing is quantized while
    /// loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]{1,32}$"))]
    pub quantization: Option<String>,
    /// Shares blocks of equal beginnings.
    pub prefix_caching: bool,
    /// Memory for keys and values.
    pub kv: KvSpec,
    /// Further arguments of kvasir engine. What the operator sets itself is refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 1024)),
        extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::EXTRA_ARGS.json())
    )]
    pub extra_args: Vec<String>,
    /// Further variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend(
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"],
            "x-kubernetes-validations" = rules::ENV.json()
        )
    )]
    pub env: Vec<EnvVar>,
    /// Variables from whole objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub env_from: Vec<EnvFrom>,
    /// CPU and memory of each pod. Devices are asked for in spec.accelerator.
    pub resources: Resources,
    /// Ports of the engine pods. The network policies are made from them.
    pub ports: EnginePorts,
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self {
            image: None,
            image_pull_policy: PullPolicy::default(),
            image_pull_secrets: Vec::new(),
            max_model_len: None,
            max_sequences: None,
            max_batch_tokens: None,
            dtype: Dtype::default(),
            quantization: None,
            prefix_caching: true,
            kv: KvSpec::default(),
            extra_args: Vec::new(),
            env: Vec::new(),
            env_from: Vec::new(),
            resources: Resources::default(),
            ports: EnginePorts::default(),
        }
    }
}

/// Type that weights are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Dtype {
    /// The file's own.
    #[default]
    Auto,
    /// 16-bit IEEE floats.
    Float16,
    /// 16-bit brain floats.
    BFloat16,
    /// 32-bit IEEE floats.
    Float32,
}

/// Memory for keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KvSpec {
    /// Tokens in one block.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub block_size: Option<i32>,
    /// Memory for blocks; by default found out.
    ///
    /// Memory for the block pool, for example 2Gi; found from the pod's memory limit if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// Percent for weights and blocks.
    ///
    /// Percent of the pod's memory limit that weights and blocks may take together, instead of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub memory_fraction_percent: Option<i32>,
    /// Host memory for cold blocks (not built).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_offload: Option<Quantity>,
}

/// Ports of the engine pods, all different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::PORTS.json()))]
pub struct EnginePorts {
    /// Requests of the gateway.
    #[schemars(range(min = 1024, max = 65535))]
    pub grpc: i32,
    /// Where ranks find rank 0.
    #[schemars(range(min = 1024, max = 65535))]
    pub rendezvous: i32,
    /// Exchange between ranks.
    #[schemars(range(min = 1024, max = 65535))]
    pub collective: i32,
    /// Metrics, for network.monitoring.
    #[schemars(range(min = 1024, max = 65535))]
    pub metrics: i32,
    /// Probes of the kubelet.
    #[schemars(range(min = 1024, max = 65535))]
    pub health: i32,
    /// Drain and load, for the operator.
    #[schemars(range(min = 1024, max = 65535))]
    pub admin: i32,
}

impl Default for EnginePorts {
    fn default() -> Self {
        Self {
            grpc: 50051,
            rendezvous: 29500,
            collective: 29501,
            metrics: 9090,
            health: 8081,
            admin: 8082,
        }
    }
}
