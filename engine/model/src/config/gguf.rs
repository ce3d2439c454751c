//! GGUF metadata of the `llama` architecture, which stands for llama and mistral.
//!
//! Only keys under `llama.` can change what the model computes; that is what the prefix is for. `general.`, `tokenizer.`
//! and the prefixes of quantization tools describe the file, its text side, or how it was made.

use kvasir_backend::{Activation, RopeStyle};
use kvasir_weights::gguf::Array;
use kvasir_weights::{Checkpoint, DType, Gguf, Value as Metadata};
use serde_json::{Map, Value};

use super::fields::Fields;
use super::hf::add_missing;
use super::{Architecture, Biases, Format, ModelConfig, derived_head_dim, kv_dtype_for, limits, rope};
use crate::error::ModelError;
use crate::rope::{RopeConfig, RopeScaling};

const PREFIX: &str = "llama.";

/// Tokens that end a sequence: of the text, of a turn, of a message that calls a tool.
const EOS_KEYS: [&str; 3] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
];
const BOS_KEY: &str = "tokenizer.ggml.bos_token_id";

/// What the tensors tell that the metadata don't.
#[derive(Clone, Debug)]
pub(super) struct TensorFacts {
    pub(super) has_output: bool,
    pub(super) biases: Biases,
    pub(super) rope_divisors: Option<Vec<f32>>,
    pub(super) weights: DType,
}

/// Reads the metadata of a GGUF file.
pub(super) fn from_file(file: &Gguf, checkpoint: &Checkpoint) -> Result<ModelConfig, ModelError> {
    let architecture = file.get_str("general.architecture").map_err(Box::new)?;
    if architecture != "llama" {
        return Err(ModelError::Architecture {
            found: architecture.to_owned(),
            supported: "llama (which also stands for mistral)",
        });
    }
    let mut map = Map::new();
    for (key, value) in file.metadata() {
        if let Some(short) = key.strip_prefix(PREFIX) {
            map.insert(short.to_owned(), to_json(value));
        }
    }
    let mut tokens = Map::new();
    for key in EOS_KEYS.iter().chain([&BOS_KEY]) {
        if let Some(value) = file.get(key) {
            tokens.insert((*key).to_owned(), to_json(value));
        }
    }
    if let Some(Metadata::Array(list)) = file.get("tokenizer.ggml.tokens") {
        tokens.insert("num_tokens".to_owned(), Value::from(list.len()));
    }
    parse(&map, &tokens, &tensor_facts(checkpoint)?)
}

fn tensor_facts(checkpoint: &Checkpoint) -> Result<TensorFacts, ModelError> {
    let has = |name: &str| checkpoint.contains(name);
    let rope_divisors = match checkpoint.tensor("rope_freqs.weight") {
        Ok(tensor) if tensor.dtype == DType::F32 => {
            let bytes = tensor.data.as_chunks::<4>().0;
            Some(bytes.iter().map(|value| f32::from_le_bytes(*value)).collect())
        }
        Ok(tensor) => {
            return Err(ModelError::TensorBytes {
                name: tensor.name.to_owned(),
                shape: tensor.shape.to_vec(),
                dtype: tensor.dtype.name(),
                bytes: tensor.data.len(),
            });
        }
        Err(_) => None,
    };
    Ok(TensorFacts {
        has_output: has("output.weight"),
        biases: Biases {
            qkv: has("blk.0.attn_q.bias"),
            output: has("blk.0.attn_output.bias"),
            mlp: has("blk.0.ffn_gate.bias"),
        },
        rope_divisors,
        weights: checkpoint.main_dtype(),
    })
}

/// The description in `metadata` (keys without their prefix) and `tokens` (full keys).
pub(super) fn parse(
    metadata: &Map<String, Value>,
    tokens: &Map<String, Value>,
    facts: &TensorFacts,
) -> Result<ModelConfig, ModelError> {
    let mut fields = Fields::new(metadata, PREFIX);
    refuse_other_mathematics(&mut fields)?;
    let hidden_size = fields.count("embedding_length", limits::HIDDEN_SIZE)?;
    let num_layers = fields.count("block_count", limits::LAYERS)?;
    let heads = read_heads(&mut fields, hidden_size, num_layers)?;
    let intermediate_size = per_layer_count(
        &mut fields,
        "feed_forward_length",
        num_layers,
        limits::INTERMEDIATE_SIZE,
    )?
    .map_or_else(
        || fields.count("feed_forward_length", limits::INTERMEDIATE_SIZE),
        Ok,
    )?;
    let mut token_fields = Fields::new(tokens, "");
    let num_tokens = token_fields.optional_count("num_tokens", limits::VOCAB_SIZE)?;
    let vocab_size = read_vocab_size(&mut fields, num_tokens)?;
    let context_length = fields.count("context_length", limits::POSITIONS)?;
    let (rope, max_positions) = read_rope(&mut fields, heads.dim, context_length, facts)?;
    let mut eos_token_ids = Vec::new();
    for key in EOS_KEYS {
        add_missing(&mut eos_token_ids, &token_fields.token_ids(key, vocab_size)?);
    }
    let config = ModelConfig {
        architecture: Architecture::Llama,
        format: Format::Gguf,
        num_layers,
        hidden_size,
        intermediate_size,
        num_heads: heads.num_query,
        num_kv_heads: heads.num_kv,
        head_dim: heads.dim,
        vocab_size,
        rms_norm_eps: fields.positive("attention.layer_norm_rms_epsilon")? as f32,
        rope,
        tied_embeddings: !facts.has_output,
        biases: facts.biases,
        sliding_window: fields.optional_count("attention.sliding_window", limits::POSITIONS)?,
        activation: Activation::Silu,
        max_positions,
        bos_token_id: token_fields.token_ids(BOS_KEY, vocab_size)?.first().copied(),
        eos_token_ids,
        kv_dtype: kv_dtype_for(facts.weights),
    };
    fields.finish(&["tensor_data_layout"])?;
    config.checked()
}

/// Keys that we know and that have exactly one value we implement.
fn refuse_other_mathematics(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    let is_zero = |value: &Value| value.as_f64() == Some(0.0);
    let is_false = |value: &Value| value == &Value::Bool(false);
    for key in ["expert_count", "expert_used_count", "expert_shared_count"] {
        fields.only(key, "0; mixtures of experts are not supported", is_zero)?;
    }
    for key in [
        "attention.max_alibi_bias",
        "attention.clamp_kqv",
        "attention.scale",
        "logit_scale",
    ] {
        fields.only(key, "0", is_zero)?;
    }
    fields.only("use_parallel_residual", "false", is_false)?;
    fields.only("attention.causal", "true", |value| value == &Value::Bool(true))?;
    fields.only("pooling_type", "0", is_zero)
}

/// Rows of the embedding; older files say only how many tokens there are.
fn read_vocab_size(fields: &mut Fields<'_>, num_tokens: Option<usize>) -> Result<usize, ModelError> {
    let stated = fields.optional_count("vocab_size", limits::VOCAB_SIZE)?;
    match (stated, num_tokens) {
        (Some(stated), Some(tokens)) if tokens > stated => Err(ModelError::Contradiction {
            reason: format!("the vocabulary has {tokens} tokens, but the embedding only {stated} rows"),
        }),
        (Some(number), _) | (None, Some(number)) => Ok(number),
        (None, None) => fields.count("vocab_size", limits::VOCAB_SIZE),
    }
}

struct Heads {
    num_query: usize,
    num_kv: usize,
    dim: usize,
}

fn read_heads(fields: &mut Fields<'_>, hidden_size: usize, num_layers: usize) -> Result<Heads, ModelError> {
    let num_query = per_layer_count(fields, "attention.head_count", num_layers, limits::HEADS)?
        .map_or_else(|| fields.count("attention.head_count", limits::HEADS), Ok)?;
    let num_kv =
        per_layer_count(fields, "attention.head_count_kv", num_layers, limits::HEADS)?.unwrap_or(num_query);
    let dim = match fields.optional_count("attention.key_length", limits::HEAD_DIM)? {
        Some(number) => number,
        None => derived_head_dim(hidden_size, num_query)?,
    };
    let wanted = Value::from(dim);
    fields.only(
        "attention.value_length",
        "the same as attention.key_length",
        |value| value == &wanted,
    )?;
    Ok(Heads {
        num_query,
        num_kv,
        dim,
    })
}

/// A number that some writers store once and others once per layer; layers that differ aren't supported.
fn per_layer_count(
    fields: &mut Fields<'_>,
    key: &str,
    num_layers: usize,
    max: usize,
) -> Result<Option<usize>, ModelError> {
    let Some(list) = fields.value(key).and_then(Value::as_array) else {
        return fields.optional_count(key, max);
    };
    let first = list
        .first()
        .and_then(Value::as_u64)
        .filter(|first| (1..=max as u64).contains(first));
    match first {
        Some(first) if list.len() == num_layers && list.iter().all(|item| item.as_u64() == Some(first)) => {
            Ok(Some(first as usize))
        }
        _ => {
            let value = Value::Array(list.clone());
            Err(fields.unsupported(key, &value, "the same number, in range, for every layer"))
        }
    }
}

fn read_rope(
    fields: &mut Fields<'_>,
    head_dim: usize,
    context_length: usize,
    facts: &TensorFacts,
) -> Result<(RopeConfig, usize), ModelError> {
    let is_one = |value: &Value| value.as_f64() == Some(1.0);
    let theta = fields.optional_number("rope.freq_base", "greater than 1", |theta| theta > 1.0)?;
    let rotary_dim = fields
        .optional_count("rope.dimension_count", limits::HEAD_DIM)?
        .unwrap_or(head_dim);
    // Whether a model was trained on after scaling is a note for people.
    fields.value("rope.scaling.finetuned");
    let old_factor = fields.optional_number("rope.scale_linear", "at least 1", |factor| factor >= 1.0)?;
    let factor = fields
        .optional_number("rope.scaling.factor", "at least 1", |factor| factor >= 1.0)?
        .or(old_factor);
    let kind = fields
        .optional_text("rope.scaling.type")?
        .unwrap_or(match old_factor {
            Some(factor) if factor > 1.0 => "linear",
            _ => "none",
        });
    let (scaling, max_positions) = match kind {
        "none" => (RopeScaling::Default, context_length),
        "linear" => {
            let factor = factor.unwrap_or(1.0);
            (
                RopeScaling::Linear { factor },
                rope::extended(context_length, factor),
            )
        }
        "yarn" => read_yarn(fields, factor, context_length)?,
        other => {
            return Err(fields.unsupported("rope.scaling.type", &Value::from(other), "none, linear, yarn"));
        }
    };
    fields.only("rope.scaling.yarn_ext_factor", "1", is_one)?;
    fields.only("rope.scaling.attn_factor", "1", is_one)?;
    // Files of models without scaling carry their own length here.
    fields.value("rope.scaling.original_context_length");
    let scaling = match &facts.rope_divisors {
        None => scaling,
        Some(divisors) if scaling == RopeScaling::Default => checked_divisors(divisors, rotary_dim)?,
        Some(_) => {
            let reason = format!("rope_freqs.weight together with rope scaling {kind}");
            return Err(ModelError::Contradiction { reason });
        }
    };
    let theta = theta.unwrap_or(rope::DEFAULT_THETA);
    // The converter permutes the rows of Q and K so that pairs lie side by side.
    Ok((
        RopeConfig {
            theta,
            rotary_dim,
            style: RopeStyle::Pairs,
            scaling,
        },
        max_positions,
    ))
}

fn read_yarn(
    fields: &mut Fields<'_>,
    factor: Option<f64>,
    context_length: usize,
) -> Result<(RopeScaling, usize), ModelError> {
    let original = fields
        .optional_count("rope.scaling.original_context_length", limits::POSITIONS)?
        .unwrap_or(context_length);
    let factor = factor.unwrap_or(context_length as f64 / original as f64);
    let scaling = RopeScaling::Yarn {
        factor,
        original_len: original as f64,
        // The converter stores transformers' `attention_factor` here.
        attention_factor: fields
            .optional_positive("rope.scaling.yarn_attn_factor")?
            .unwrap_or_else(|| rope::yarn_mscale(factor, 1.0)),
        beta_fast: fields
            .optional_positive("rope.scaling.yarn_beta_fast")?
            .unwrap_or(32.0),
        beta_slow: fields
            .optional_positive("rope.scaling.yarn_beta_slow")?
            .unwrap_or(1.0),
        truncate: true,
    };
    Ok((scaling, rope::extended(original, factor).max(context_length)))
}

fn checked_divisors(divisors: &[f32], rotary_dim: usize) -> Result<RopeScaling, ModelError> {
    let usable = |divisor: &f32| divisor.is_finite() && *divisor > 0.0;
    if divisors.len() == rotary_dim / 2 && divisors.iter().all(usable) {
        return Ok(RopeScaling::Divisors(divisors.to_vec()));
    }
    Err(ModelError::Contradiction {
        reason: format!(
            "rope_freqs.weight has {} values; {} finite numbers greater than 0 are needed",
            divisors.len(),
            rotary_dim / 2
        ),
    })
}

/// Numbers that JSON can't hold become strings, which no reader of numbers takes.
fn to_json(value: &Metadata) -> Value {
    match value {
        Metadata::F32(number) => float(f64::from(*number)),
        Metadata::F64(number) => float(*number),
        Metadata::Bool(flag) => Value::Bool(*flag),
        Metadata::Str(text) => Value::from(text.as_str()),
        Metadata::Array(Array::U32(list)) => Value::from(list.clone()),
        Metadata::Array(Array::I32(list)) => Value::from(list.clone()),
        Metadata::Array(list) => Value::from(format!("an array of {} {}", list.len(), list.element_name())),
        other => other.as_integer().map_or(Value::Null, integer),
    }
}

fn integer(number: i128) -> Value {
    u64::try_from(number)
        .map(Value::from)
        .or_else(|_| i64::try_from(number).map(Value::from))
        .unwrap_or_else(|_| Value::from(number.to_string()))
}

fn float(number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or_else(|| Value::from(number.to_string()), Value::Number)
}
