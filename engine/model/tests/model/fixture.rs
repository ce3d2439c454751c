//! The committed tiny models and what transformers computed with them; see `e2e/golden/make_model_goldens.py`.

use std::path::PathBuf;

use kvasir_backend::{Backend, KvDType};
use kvasir_model::{KvOptions, LoadOptions, Model, ModelConfig, ModelError, load};
use kvasir_weights::Checkpoint;
use serde_json::Value;

/// Models in files of plain types, of every rope kind and head layout.
pub(crate) const PLAIN: [&str; 12] = [
    "llama-mha-untied",
    "llama-gqa-tied-linear",
    "llama-mqa-llama3",
    "llama-bias-yarn",
    "llama-yarn-mscale",
    "llama-dynamic",
    "llama-longrope",
    "llama-partial",
    "mistral-window",
    "mistral-full",
    "gguf-f16-llama3",
    "gguf-bf16-linear",
];

/// Models in quantized files.
pub(crate) const QUANTIZED: [&str; 10] = [
    "gguf-q8_0-yarn",
    "gguf-q4_1-untied",
    "gguf-q4_0-tied",
    "gguf-q5_0-mqa",
    "gguf-q5_1-headdim",
    "gguf-q2_k",
    "gguf-q3_k",
    "gguf-q4_k",
    "gguf-q5_k",
    "gguf-q6_k",
];

/// Longest sequence of the tiny models.
pub(crate) const MAX_MODEL_LEN: usize = 128;

/// A model's golden results.
pub(crate) struct Golden {
    pub(crate) prompt: Vec<u32>,
    /// Of the rows of `logits`.
    pub(crate) positions: Vec<usize>,
    pub(crate) logits: Vec<Vec<f32>>,
    pub(crate) greedy: Vec<u32>,
    pub(crate) margins: Vec<f32>,
    pub(crate) deviation_f64: f32,
    pub(crate) deviation_kv_f16: f32,
    pub(crate) deviation_kv_bf16: f32,
}

impl Golden {
    pub(crate) fn of(name: &str) -> Self {
        let text = std::fs::read(folder(name).join("golden.json")).unwrap();
        let json: Value = serde_json::from_slice(&text).unwrap();
        let stored = Checkpoint::open(&folder(name).join("golden.safetensors")).unwrap();
        let tensor = stored.tensor("logits").unwrap();
        let values: Vec<f32> = tensor
            .data
            .as_chunks()
            .0
            .iter()
            .map(|v| f32::from_le_bytes(*v))
            .collect();
        let deviation = |name: &str| json["deviations"][name].as_f64().unwrap() as f32;
        Self {
            prompt: integers(&json["prompt"]),
            positions: integers(&json["positions"])
                .into_iter()
                .map(|p| p as usize)
                .collect(),
            logits: values
                .chunks_exact(tensor.shape[1])
                .map(<[f32]>::to_vec)
                .collect(),
            greedy: integers(&json["greedy"]),
            margins: numbers(&json["margins"]),
            deviation_f64: deviation("f64"),
            deviation_kv_f16: deviation("kv_f16"),
            deviation_kv_bf16: deviation("kv_bf16"),
        }
    }
}

pub(crate) fn integers(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_u64().unwrap() as u32)
        .collect()
}

pub(crate) fn numbers(value: &Value) -> Vec<f32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_f64().unwrap() as f32)
        .collect()
}

/// Where everything golden is.
pub(crate) fn golden_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../e2e/golden")
}

/// The folder of a tiny model.
pub(crate) fn folder(name: &str) -> PathBuf {
    golden_dir().join("models").join(name)
}

/// How a test wants its model.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) max_num_tokens: usize,
    pub(crate) block_size: usize,
    pub(crate) num_blocks: usize,
    pub(crate) kv: KvDType,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            max_num_tokens: 2048,
            block_size: 16,
            num_blocks: 600,
            kv: KvDType::F32,
        }
    }
}

/// Loads a tiny model.
pub(crate) fn load_tiny<B: Backend>(backend: B, name: &str, setup: Setup) -> Model {
    let checkpoint = Checkpoint::open(&folder(name)).unwrap();
    load_from(backend, &checkpoint, setup, MAX_MODEL_LEN).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Loads any model.
pub(crate) fn load_from<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    setup: Setup,
    max_model_len: usize,
) -> Result<Model, ModelError> {
    let config = ModelConfig::from_checkpoint(checkpoint)?;
    let kv = KvOptions {
        block_size: setup.block_size,
        num_blocks: setup.num_blocks,
        dtype: Some(setup.kv),
    };
    let options = LoadOptions {
        max_num_tokens: setup.max_num_tokens,
        max_model_len,
        kv,
        progress: None,
    };
    load(backend, checkpoint, config, options)
}
