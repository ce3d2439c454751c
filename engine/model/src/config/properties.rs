//! Random configurations: refused, or good for everything that is computed from them.

use proptest::prelude::*;
use serde_json::Value;

use super::tests::{facts, parse, parse_gguf};
use super::{ModelConfig, limits};

const HF_KEYS: [&str; 16] = [
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "eos_token_id",
    "tie_word_embeddings",
    "layer_types",
];

const ROPE_KEYS: [&str; 12] = [
    "type",
    "rope_type",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "low_freq_factor",
    "high_freq_factor",
    "rope_theta",
    "mscale",
    "truncate",
];

const GGUF_KEYS: [&str; 14] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.sliding_window",
    "vocab_size",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
];

const WORDS: [&str; 8] = [
    "silu", "linear", "yarn", "llama3", "dynamic", "longrope", "none", "default",
];

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        4 => (0..300_i64).prop_map(Value::from),
        4 => (-2.0..40.0_f64).prop_map(Value::from),
        2 => prop::sample::select(WORDS.to_vec()).prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            object(&ROPE_KEYS, inner, 6),
        ]
    })
}

fn object(
    keys: &[&'static str],
    values: impl Strategy<Value = Value>,
    max_len: usize,
) -> impl Strategy<Value = Value> {
    let key = prop::sample::select(keys.to_vec()).prop_map(str::to_owned);
    prop::collection::vec((key, values), 0..max_len)
        .prop_map(|pairs| Value::Object(pairs.into_iter().collect()))
}

/// A scaling that is mostly well-formed, so that the arithmetic behind it is reached.
fn scaling() -> impl Strategy<Value = Value> {
    let number = prop_oneof![1e-30..1e30_f64, 0.5..100.0_f64];
    let numbers = ROPE_KEYS[2..9]
        .iter()
        .map(|key| (Just((*key).to_owned()), number.clone().prop_map(Value::from)));
    let kind = prop::sample::select(WORDS[1..6].to_vec());
    (kind, numbers.collect::<Vec<_>>(), 1..100_000_u32).prop_map(|(kind, pairs, original)| {
        let mut map: serde_json::Map<String, Value> = pairs.into_iter().collect();
        map.insert("rope_type".to_owned(), kind.into());
        map.insert("original_max_position_embeddings".to_owned(), original.into());
        let keep: &[&str] = match kind {
            "linear" | "dynamic" => &["factor"],
            "llama3" => &["factor", "low_freq_factor", "high_freq_factor"],
            _ => &["factor", "attention_factor", "beta_fast", "beta_slow"],
        };
        map.retain(|key, value| !value.is_f64() || keep.contains(&key.as_str()));
        Value::Object(map)
    })
}

/// What every accepted configuration promises to the code that uses it.
fn check_promises(config: &ModelConfig) {
    assert!(config.num_heads.is_multiple_of(config.num_kv_heads));
    assert!(config.head_dim >= 2 && config.head_dim.is_multiple_of(2));
    assert!(config.rope.rotary_dim <= config.head_dim && config.rope.rotary_dim.is_multiple_of(2));
    assert!(config.num_layers * config.qkv_width() * config.hidden_size < usize::MAX / 8);
    assert!(config.rms_norm_eps > 0.0);
    assert!((1..=limits::POSITIONS).contains(&config.max_positions));
    let table = config.rope.table(16, config.num_heads).unwrap();
    assert_eq!(table.cos.len(), 16 * config.rope.rotary_dim / 2);
    assert!(
        table.cos.iter().chain(&table.sin).all(|value| value.is_finite()),
        "{:?}",
        config.rope
    );
}

proptest! {
    #[test]
    fn any_config_is_refused_or_keeps_its_promises(changes in object(&HF_KEYS, any_value(), 4)) {
        if let Ok(config) = parse(&changes) {
            check_promises(&config);
        }
    }

    #[test]
    fn any_rope_scaling_is_refused_or_gives_finite_tables(scaling in scaling()) {
        if let Ok(config) = parse(&serde_json::json!({ "rope_scaling": scaling })) {
            check_promises(&config);
        }
    }

    #[test]
    fn any_gguf_metadata_is_refused_or_keeps_its_promises(changes in object(&GGUF_KEYS, any_value(), 4)) {
        if let Ok(config) = parse_gguf(&changes, &facts()) {
            check_promises(&config);
        }
    }
}
