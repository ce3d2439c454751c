//! `config.json`, as transformers writes it for llama and mistral.

use std::path::Path;

use kvasir_backend::{Activation, DType};
use kvasir_files::Limit;
use kvasir_weights::Checkpoint;
use serde_json::{Map, Value};

use super::fields::Fields;
use super::{Architecture, Biases, Format, ModelConfig, derived_head_dim, kv_dtype_for, limits, rope};
use crate::error::ModelError;

const SUPPORTED: &str = "LlamaForCausalLM, MistralForCausalLM";

/// The value that transformers gives to a mistral model without the key.
const MISTRAL_DEFAULT_WINDOW: usize = 4096;

/// Keys that can't change the logits of a decoder in inference: notes about the file, training settings, defaults of
/// generation (which the edge reads from `generation_config.json`) and settings of outputs that we don't make.
const HARMLESS: &[&str] = &[
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "_sliding_window_pattern",
    "attention_dropout",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Reads the files beside a safetensors checkpoint.
pub(super) fn from_directory(directory: &Path, checkpoint: &Checkpoint) -> Result<ModelConfig, ModelError> {
    let object = read_object(&directory.join("config.json"))?;
    let mut config = parse(&object, checkpoint.main_dtype())?;
    let generation = directory.join("generation_config.json");
    if generation.is_file() {
        let object = read_object(&generation)?;
        let ids = Fields::new(&object, "generation_config.").token_ids("eos_token_id", config.vocab_size)?;
        add_missing(&mut config.eos_token_ids, &ids);
    }
    Ok(config)
}

/// Adds those of `ids` that aren't there yet.
pub(super) fn add_missing(to: &mut Vec<u32>, ids: &[u32]) {
    for id in ids {
        if !to.contains(id) {
            to.push(*id);
        }
    }
}

/// The description in `config.json`, of a checkpoint most of whose weights are of type `weights`.
pub(super) fn parse(object: &Map<String, Value>, weights: DType) -> Result<ModelConfig, ModelError> {
    let mut fields = Fields::new(object, "");
    let architecture = read_architecture(&mut fields)?;
    refuse_other_mathematics(&mut fields)?;
    let hidden_size = fields.count("hidden_size", limits::HIDDEN_SIZE)?;
    let num_heads = fields.count("num_attention_heads", limits::HEADS)?;
    let num_kv_heads = match (
        fields.optional_count("num_key_value_heads", limits::HEADS)?,
        architecture,
    ) {
        (Some(number), _) => number,
        (None, Architecture::Llama) => num_heads,
        (None, Architecture::Mistral) => fields.count("num_key_value_heads", limits::HEADS)?,
    };
    let head_dim = match fields.optional_count("head_dim", limits::HEAD_DIM)? {
        Some(number) => number,
        None => derived_head_dim(hidden_size, num_heads)?,
    };
    let num_layers = fields.count("num_hidden_layers", limits::LAYERS)?;
    let vocab_size = fields.count("vocab_size", limits::VOCAB_SIZE)?;
    let sliding_window = read_sliding_window(&mut fields, architecture)?;
    check_layer_types(&mut fields, num_layers, sliding_window.is_some())?;
    let max_position_embeddings = fields.count("max_position_embeddings", limits::POSITIONS)?;
    let (rope, max_positions) = rope::read(&mut fields, head_dim, max_position_embeddings)?;
    let attention_bias = fields.flag("attention_bias", false)?;
    let config = ModelConfig {
        architecture,
        format: Format::HuggingFace,
        num_layers,
        hidden_size,
        intermediate_size: fields.count("intermediate_size", limits::INTERMEDIATE_SIZE)?,
        num_heads,
        num_kv_heads,
        head_dim,
        vocab_size,
        rms_norm_eps: fields.positive("rms_norm_eps")? as f32,
        rope,
        tied_embeddings: fields.flag("tie_word_embeddings", false)?,
        biases: Biases {
            qkv: attention_bias,
            output: attention_bias,
            mlp: fields.flag("mlp_bias", false)?,
        },
        sliding_window,
        activation: Activation::Silu,
        max_positions,
        bos_token_id: fields.token_ids("bos_token_id", vocab_size)?.first().copied(),
        eos_token_ids: fields.token_ids("eos_token_id", vocab_size)?,
        kv_dtype: kv_dtype_for(weights),
    };
    fields.finish(HARMLESS)?;
    config.checked()
}

fn read_architecture(fields: &mut Fields<'_>) -> Result<Architecture, ModelError> {
    let model_type = fields.optional_text("model_type")?;
    let listed = fields.value("architectures");
    let unsupported = |found: String| ModelError::Architecture {
        found,
        supported: SUPPORTED,
    };
    let name = match listed.and_then(Value::as_array).map(Vec::as_slice) {
        Some([Value::String(name)]) => name.as_str(),
        None if listed.is_none() => match model_type {
            Some("llama") => "LlamaForCausalLM",
            Some("mistral") => "MistralForCausalLM",
            other => return Err(unsupported(format!("of model_type {other:?}"))),
        },
        _ => return Err(unsupported(format!("{listed:?}"))),
    };
    let (architecture, expected_type) = match name {
        "LlamaForCausalLM" | "LLaMAForCausalLM" => (Architecture::Llama, "llama"),
        "MistralForCausalLM" => (Architecture::Mistral, "mistral"),
        other => return Err(unsupported(other.to_owned())),
    };
    match model_type {
        Some(found) if found != expected_type => Err(ModelError::Contradiction {
            reason: format!("architecture {name} with model_type {found}"),
        }),
        _ => Ok(architecture),
    }
}

/// Keys that we know and that have exactly one value we implement.
fn refuse_other_mathematics(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    let is_false = |value: &Value| value == &Value::Bool(false);
    let is_zero = |value: &Value| value.as_f64() == Some(0.0);
    fields.only("hidden_act", "silu", |value| value == "silu")?;
    fields.only("pretraining_tp", "1", |value| value.as_u64() == Some(1))?;
    fields.only(
        "quantization_config",
        "none in safetensors; quantized models are read as GGUF",
        |_| false,
    )?;
    fields.only("auto_map", "models without code of their own", |_| false)?;
    fields.only("pruned_heads", "no pruned heads", |value| {
        value.as_object().is_some_and(Map::is_empty)
    })?;
    fields.only("chunk_size_feed_forward", "0", is_zero)?;
    fields.only("is_encoder_decoder", "false", is_false)?;
    fields.only("add_cross_attention", "false", is_false)?;
    fields.only("tie_encoder_decoder", "false", is_false)?;
    fields.only("cross_attention_hidden_size", "none", |_| false)?;
    fields.only("use_sliding_window", "true; absent to leave it off", |value| {
        value == &Value::Bool(true)
    })
}

fn read_sliding_window(
    fields: &mut Fields<'_>,
    architecture: Architecture,
) -> Result<Option<usize>, ModelError> {
    const KEY: &str = "sliding_window";
    match architecture {
        Architecture::Mistral if !fields.has(KEY) => Ok(Some(MISTRAL_DEFAULT_WINDOW)),
        Architecture::Mistral => fields.optional_count(KEY, limits::POSITIONS),
        Architecture::Llama => {
            fields.only(KEY, "none; only mistral models have a sliding window", |_| false)?;
            Ok(None)
        }
    }
}

/// All layers must attend alike.
fn check_layer_types(fields: &mut Fields<'_>, num_layers: usize, sliding: bool) -> Result<(), ModelError> {
    let kind = if sliding {
        "sliding_attention"
    } else {
        "full_attention"
    };
    fields.only(
        "layer_types",
        "the same attention in every layer, sliding if sliding_window is set",
        |value| {
            value
                .as_array()
                .is_some_and(|list| list.len() == num_layers && list.iter().all(|layer| layer == kind))
        },
    )
}

/// Descriptions take some kilobytes; lists of layers that aren't quantized may take a megabyte.
const LIMIT: Limit = Limit {
    max_bytes: 16 << 20,
    advice: "is it the model's config.json?",
};

fn read_object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let bytes = kvasir_files::read(path, LIMIT).map_err(|error| ModelError::ReadConfig {
        path: path.to_owned(),
        source: error.into_io(),
    })?;
    serde_json::from_slice(&bytes).map_err(|error| ModelError::ParseConfig {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}
