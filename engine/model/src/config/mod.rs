//! What a model is: a small description, built from `config.json` or GGUF metadata and checked before it is used.

mod fields;
mod gguf;
mod hf;
#[cfg(test)]
mod properties;
mod rope;
#[cfg(test)]
mod tests;

use kvasir_backend::{Activation, DType, KvDType};
use kvasir_weights::Checkpoint;

use crate::error::ModelError;
use crate::rope::RopeConfig;

/// Upper bounds, each several times what the largest dense model of these families has (Llama 3.1 405B: 126 layers,
/// hidden size 16,384, feed-forward 53,248, 128 heads of 128, vocabulary 128,256). They keep the products of sizes in
/// 64 bits and refuse a damaged file before it asks for memory.
pub(crate) mod limits {
    pub(crate) const LAYERS: usize = 1 << 10;
    pub(crate) const HIDDEN_SIZE: usize = 1 << 17;
    pub(crate) const INTERMEDIATE_SIZE: usize = 1 << 19;
    pub(crate) const HEADS: usize = 1 << 10;
    pub(crate) const HEAD_DIM: usize = 1 << 10;
    pub(crate) const VOCAB_SIZE: usize = 1 << 22;
    pub(crate) const POSITIONS: usize = 1 << 24;
}

/// The family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Architecture {
    /// `LlamaForCausalLM`: also SmolLM2, Yi, and what GGUF calls `llama`.
    Llama,
    /// `MistralForCausalLM`: llama with an optional sliding window.
    Mistral,
}

/// Where the description comes from; decides the names of the tensors.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// `config.json` and safetensors.
    HuggingFace,
    /// GGUF metadata and tensors.
    Gguf,
}

/// Which matrices have biases.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Biases {
    /// Q, K and V.
    pub qkv: bool,
    /// The attention's output.
    pub output: bool,
    /// The three matrices of the MLP.
    pub mlp: bool,
}

/// A model's description. Sizes are in values, lengths in tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Where it comes from.
    pub format: Format,
    /// Transformer layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Values per head; even.
    pub head_dim: usize,
    /// Rows of the embedding; token ids are below it.
    pub vocab_size: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// Position encoding.
    pub rope: RopeConfig,
    /// Whether the head is the embedding.
    pub tied_embeddings: bool,
    /// Which matrices have biases.
    pub biases: Biases,
    /// Only the last this many positions are seen, the current one included.
    pub sliding_window: Option<usize>,
    /// The gate's activation.
    pub activation: Activation,
    /// Longest sequence that the position encoding was made for.
    pub max_positions: usize,
    /// Begin of sequence.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a sequence, from all files that name some.
    pub eos_token_ids: Vec<u32>,
    /// The KV type that keeps the weights' precision: f32 for f32 weights, bf16 for bf16 ones, else f16.
    pub kv_dtype: KvDType,
}

impl ModelConfig {
    /// Reads and checks the description: `config.json` (and `generation_config.json`, for more end-of-sequence tokens)
    /// beside safetensors, or the metadata of a GGUF file.
    ///
    /// # Errors
    /// If a file can't be read, the family or a value isn't supported, a key is unknown, missing, of the wrong type or
    /// out of range, or keys contradict each other.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        match checkpoint {
            Checkpoint::Gguf(file) => gguf::from_file(file, checkpoint),
            Checkpoint::Safetensors(files) => hf::from_directory(files.dir(), checkpoint),
        }
    }

    /// Width of a row of `[q heads | k heads | v heads]`.
    pub fn qkv_width(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    /// Width of the attention's output before its projection.
    pub fn attention_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Checks what no single key can: how the sizes fit together.
    fn checked(self) -> Result<Self, ModelError> {
        let contradiction = |reason: String| Err(ModelError::Contradiction { reason });
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            return contradiction(format!(
                "{} attention heads can't share {} key-value heads evenly",
                self.num_heads, self.num_kv_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return contradiction(format!(
                "the head dimension {} is odd, but rotary positions turn pairs of values",
                self.head_dim
            ));
        }
        let rotary_dim = self.rope.rotary_dim;
        if rotary_dim < 2 || rotary_dim > self.head_dim || !rotary_dim.is_multiple_of(2) {
            return contradiction(format!(
                "{rotary_dim} of a head's {} values rotate; it must be an even number from 2 to that",
                self.head_dim
            ));
        }
        Ok(self)
    }
}

/// The head dimension if no key gives it.
fn derived_head_dim(hidden_size: usize, num_heads: usize) -> Result<usize, ModelError> {
    if hidden_size.is_multiple_of(num_heads) {
        return Ok(hidden_size / num_heads);
    }
    Err(ModelError::Contradiction {
        reason: format!(
            "the hidden size {hidden_size} is no multiple of the {num_heads} attention heads, and there is \
                         no key for the head dimension"
        ),
    })
}

/// See [`ModelConfig::kv_dtype`]; `weights` is the type that most weights have.
fn kv_dtype_for(weights: DType) -> KvDType {
    match weights {
        DType::F32 => KvDType::F32,
        DType::BF16 => KvDType::Bf16,
        _ => KvDType::F16,
    }
}
