//! Compares the description with every tensor before anything is allocated.

use std::collections::BTreeSet;

use kvasir_backend::WeightView;
use kvasir_weights::{Checkpoint, WeightsError};

use crate::config::{Format, ModelConfig};
use crate::error::ModelError;

/// Checks that the checkpoint has exactly the tensors that the description asks for, in the right shapes.
///
/// # Errors
/// The first tensor that is missing, has another shape or too few bytes, or that nothing asks for.
pub(crate) fn check_tensors(config: &ModelConfig, checkpoint: &Checkpoint) -> Result<(), ModelError> {
    let mut expected = BTreeSet::new();
    for tensor in Tensor::all(config) {
        view(config, checkpoint, tensor, &mut String::new())?;
        expected.insert(tensor.name(config.format));
    }
    let mut extra = checkpoint
        .names()
        .filter(|name| !expected.contains(*name) && !is_harmless(config, name));
    if let Some(example) = extra.next() {
        let count = 1 + extra.count();
        return Err(ModelError::UnexpectedTensors {
            count,
            example: example.to_owned(),
        });
    }
    Ok(())
}

/// The tensor as it lies in the file, with the shape that the description asks for. `name` becomes its name.
pub(crate) fn view<'a>(
    config: &ModelConfig,
    checkpoint: &'a Checkpoint,
    tensor: Tensor,
    name: &'a mut String,
) -> Result<WeightView<'a>, ModelError> {
    *name = tensor.name(config.format);
    let (rows, cols) = tensor.size(config);
    let expected = if tensor.is_vector() {
        vec![cols]
    } else {
        vec![rows, cols]
    };
    let found = match checkpoint.tensor(name) {
        Ok(found) => found,
        Err(WeightsError::MissingTensor { .. }) => {
            return Err(ModelError::MissingTensor {
                name: name.clone(),
                shape: expected,
            });
        }
        Err(error) => return Err(ModelError::Weights(Box::new(error))),
    };
    if found.shape != expected {
        return Err(ModelError::TensorShape {
            name: name.clone(),
            found: found.shape.to_vec(),
            expected,
        });
    }
    let bytes = found.dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows));
    if bytes != Some(found.data.len()) {
        return Err(ModelError::TensorBytes {
            name: name.clone(),
            shape: expected,
            dtype: found.dtype.name(),
            bytes: found.data.len(),
        });
    }
    Ok(WeightView {
        name,
        dtype: found.dtype,
        rows,
        cols,
        data: found.data,
    })
}

/// A tensor of the model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Tensor {
    /// The embedding, and the head too if they are tied.
    Embedding,
    /// The norm before the head.
    FinalNorm,
    /// The head, if it isn't tied.
    Head,
    /// A tensor of a layer.
    Layer(usize, Part),
}

/// A tensor of a layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    AttentionNorm,
    Query,
    Key,
    Value,
    AttentionOutput,
    MlpNorm,
    Gate,
    Up,
    Down,
    QueryBias,
    KeyBias,
    ValueBias,
    AttentionOutputBias,
    GateBias,
    UpBias,
    DownBias,
}

impl Part {
    const WEIGHTS: [Self; 9] = [
        Self::AttentionNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttentionOutput,
        Self::MlpNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];
    const QKV_BIASES: [Self; 3] = [Self::QueryBias, Self::KeyBias, Self::ValueBias];
    const MLP_BIASES: [Self; 3] = [Self::GateBias, Self::UpBias, Self::DownBias];
}

impl Tensor {
    /// Every tensor that the description asks for.
    fn all(config: &ModelConfig) -> impl Iterator<Item = Self> + '_ {
        let parts = Part::WEIGHTS
            .into_iter()
            .chain(Part::QKV_BIASES.into_iter().filter(|_| config.biases.qkv))
            .chain(
                [Part::AttentionOutputBias]
                    .into_iter()
                    .filter(|_| config.biases.output),
            )
            .chain(Part::MLP_BIASES.into_iter().filter(|_| config.biases.mlp));
        let layers = (0..config.num_layers)
            .flat_map(move |layer| parts.clone().map(move |part| Self::Layer(layer, part)));
        [Self::Embedding, Self::FinalNorm]
            .into_iter()
            .chain([Self::Head].into_iter().filter(|_| !config.tied_embeddings))
            .chain(layers)
    }

    fn is_vector(self) -> bool {
        match self {
            Self::Embedding | Self::Head => false,
            Self::FinalNorm => true,
            Self::Layer(_, part) => !matches!(
                part,
                Part::Query
                    | Part::Key
                    | Part::Value
                    | Part::AttentionOutput
                    | Part::Gate
                    | Part::Up
                    | Part::Down
            ),
        }
    }

    /// Rows (outputs) and columns (inputs); one row for vectors.
    fn size(self, config: &ModelConfig) -> (usize, usize) {
        let hidden = config.hidden_size;
        let kv = config.num_kv_heads * config.head_dim;
        match self {
            Self::Embedding | Self::Head => (config.vocab_size, hidden),
            Self::FinalNorm => (1, hidden),
            Self::Layer(_, part) => match part {
                Part::AttentionNorm | Part::MlpNorm | Part::AttentionOutputBias | Part::DownBias => {
                    (1, hidden)
                }
                Part::Query => (config.attention_width(), hidden),
                Part::Key | Part::Value => (kv, hidden),
                Part::AttentionOutput => (hidden, config.attention_width()),
                Part::Gate | Part::Up => (config.intermediate_size, hidden),
                Part::Down => (hidden, config.intermediate_size),
                Part::QueryBias => (1, config.attention_width()),
                Part::KeyBias | Part::ValueBias => (1, kv),
                Part::GateBias | Part::UpBias => (1, config.intermediate_size),
            },
        }
    }

    fn name(self, format: Format) -> String {
        match (self, format) {
            (Self::Embedding, Format::HuggingFace) => "model.embed_tokens.weight".to_owned(),
            (Self::Embedding, Format::Gguf) => "token_embd.weight".to_owned(),
            (Self::FinalNorm, Format::HuggingFace) => "model.norm.weight".to_owned(),
            (Self::FinalNorm, Format::Gguf) => "output_norm.weight".to_owned(),
            (Self::Head, Format::HuggingFace) => "lm_head.weight".to_owned(),
            (Self::Head, Format::Gguf) => "output.weight".to_owned(),
            (Self::Layer(layer, part), Format::HuggingFace) => {
                format!("model.layers.{layer}.{}", hugging_face_name(part))
            }
            (Self::Layer(layer, part), Format::Gguf) => format!("blk.{layer}.{}", gguf_name(part)),
        }
    }
}

const fn hugging_face_name(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "input_layernorm.weight",
        Part::Query => "self_attn.q_proj.weight",
        Part::Key => "self_attn.k_proj.weight",
        Part::Value => "self_attn.v_proj.weight",
        Part::AttentionOutput => "self_attn.o_proj.weight",
        Part::MlpNorm => "post_attention_layernorm.weight",
        Part::Gate => "mlp.gate_proj.weight",
        Part::Up => "mlp.up_proj.weight",
        Part::Down => "mlp.down_proj.weight",
        Part::QueryBias => "self_attn.q_proj.bias",
        Part::KeyBias => "self_attn.k_proj.bias",
        Part::ValueBias => "self_attn.v_proj.bias",
        Part::AttentionOutputBias => "self_attn.o_proj.bias",
        Part::GateBias => "mlp.gate_proj.bias",
        Part::UpBias => "mlp.up_proj.bias",
        Part::DownBias => "mlp.down_proj.bias",
    }
}

const fn gguf_name(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "attn_norm.weight",
        Part::Query => "attn_q.weight",
        Part::Key => "attn_k.weight",
        Part::Value => "attn_v.weight",
        Part::AttentionOutput => "attn_output.weight",
        Part::MlpNorm => "ffn_norm.weight",
        Part::Gate => "ffn_gate.weight",
        Part::Up => "ffn_up.weight",
        Part::Down => "ffn_down.weight",
        Part::QueryBias => "attn_q.bias",
        Part::KeyBias => "attn_k.bias",
        Part::ValueBias => "attn_v.bias",
        Part::AttentionOutputBias => "attn_output.bias",
        Part::GateBias => "ffn_gate.bias",
        Part::UpBias => "ffn_up.bias",
        Part::DownBias => "ffn_down.bias",
    }
}

/// Tensors that no forward pass reads: a stored copy of the tied head, and frequencies, which follow from the
/// description (old checkpoints carry them as buffers; a GGUF file's were read with its metadata).
fn is_harmless(config: &ModelConfig, name: &str) -> bool {
    match config.format {
        Format::HuggingFace => {
            name.ends_with(".rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight")
        }
        Format::Gguf => name == "rope_freqs.weight",
    }
}
