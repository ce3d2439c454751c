//! Hostile and ordinary configurations, one change away from a good one.

use kvasir_backend::{DType, KvDType, RopeStyle};
use serde_json::{Map, Value, json};

use super::gguf::TensorFacts;
use super::{Architecture, Biases, ModelConfig, gguf, hf};
use crate::error::ModelError;
use crate::rope::RopeScaling;

pub(super) fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 97,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "torch_dtype": "bfloat16",
    })
}

pub(super) fn gguf_llama() -> Value {
    json!({
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 32,
        "feed_forward_length": 56,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": 97,
    })
}

/// The object with `changes` put over it; a change to `"absent"` removes the key.
pub(super) fn with(mut base: Value, changes: &Value) -> Map<String, Value> {
    let map = base.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        if value == "absent" {
            map.remove(key);
        } else {
            map.insert(key.clone(), value.clone());
        }
    }
    map.clone()
}

pub(super) fn parse(changes: &Value) -> Result<ModelConfig, ModelError> {
    hf::parse(&with(llama(), changes), DType::BF16)
}

pub(super) fn facts() -> TensorFacts {
    TensorFacts {
        has_output: true,
        biases: Biases::default(),
        rope_divisors: None,
        weights: DType::Q4_1,
    }
}

pub(super) fn parse_gguf(changes: &Value, facts: &TensorFacts) -> Result<ModelConfig, ModelError> {
    let tokens = with(
        json!({"tokenizer.ggml.eos_token_id": 2, "num_tokens": 97}),
        &json!({}),
    );
    gguf::parse(&with(gguf_llama(), changes), &tokens, facts)
}

#[test]
fn ordinary_config_is_read() {
    let config = parse(&json!({})).unwrap();
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!(
        (config.num_heads, config.num_kv_heads, config.head_dim),
        (4, 2, 8)
    );
    assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(1), vec![2, 3]));
    assert_eq!(config.rope.scaling, RopeScaling::Default);
    assert_eq!(config.kv_dtype, KvDType::Bf16);
}

#[test]
fn ordinary_gguf_is_read() {
    let config = parse_gguf(&json!({}), &facts()).unwrap();
    assert_eq!(
        (config.num_heads, config.num_kv_heads, config.head_dim),
        (4, 2, 8)
    );
    assert_eq!(config.rope.style, RopeStyle::Pairs);
    assert_eq!(config.kv_dtype, KvDType::F16);
    assert_eq!(config.eos_token_ids, [2]);
    assert!(!config.tied_embeddings);
}

#[test]
fn every_number_is_range_checked() {
    let keys = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
    ];
    for key in keys {
        for bad in [
            json!(0),
            json!(-1),
            json!(1_u64 << 62),
            json!(u64::MAX),
            json!(i64::MIN),
        ] {
            let error = parse(&json!({ key: bad })).expect_err(key);
            assert!(
                matches!(&error, ModelError::OutOfRange { key: k, .. } if k == key),
                "{key}={bad}: {error}"
            );
        }
        for bad in [json!("32"), json!(32.5), json!([32]), json!({}), json!(true)] {
            let error = parse(&json!({ key: bad })).expect_err(key);
            assert!(
                matches!(&error, ModelError::WrongType { key: k, .. } if k == key),
                "{key}={bad}: {error}"
            );
        }
    }
}

#[test]
fn every_gguf_number_is_range_checked() {
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
    ] {
        for bad in [
            json!(0),
            json!(-1),
            json!(u64::MAX),
            json!("x"),
            json!(1.5),
            json!(true),
        ] {
            let error = parse_gguf(&json!({ key: bad }), &facts()).expect_err(key);
            let full = format!("llama.{key}");
            assert!(
                matches!(&error, ModelError::OutOfRange { key: k, .. } | ModelError::WrongType { key: k, .. } if *k == full),
                "{key}={bad}: {error}"
            );
        }
    }
}

#[test]
fn missing_keys_are_named() {
    let needed = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
    ];
    for key in needed {
        let error = parse(&json!({ key: "absent" })).expect_err(key);
        assert!(
            matches!(&error, ModelError::MissingKey { key: k } if k == key),
            "{error}"
        );
        let error = parse(&json!({ key: null })).expect_err(key);
        assert!(
            matches!(&error, ModelError::MissingKey { key: k } if k == key),
            "{error}"
        );
    }
}

#[test]
fn unknown_key_is_an_error_that_names_it() {
    let error = parse(&json!({"logits_scaling": 8.0})).unwrap_err();
    assert!(
        error.to_string().contains("`logits_scaling` (value 8.0)"),
        "{error}"
    );
    let error =
        parse(&json!({"rope_scaling": {"type": "linear", "factor": 2.0, "short_mscale": 1.1}})).unwrap_err();
    assert!(
        error.to_string().contains("`rope_scaling.short_mscale`"),
        "{error}"
    );
    let error = parse_gguf(&json!({"logit_softcap": 30.0}), &facts()).unwrap_err();
    assert!(error.to_string().contains("`llama.logit_softcap`"), "{error}");
}

#[test]
fn harmless_keys_are_accepted() {
    let harmless = json!({"transformers_version": "5.0", "use_cache": true, "_name_or_path": "x", "initializer_range": 0.02,
                          "pad_token_id": -1, "attention_dropout": 0.0, "some_future_note": null});
    assert!(parse(&harmless).is_ok());
}

#[test]
fn values_that_are_not_implemented_are_refused() {
    let cases = [
        json!({"hidden_act": "gelu"}),
        json!({"pretraining_tp": 2}),
        json!({"quantization_config": {"quant_method": "awq"}}),
        json!({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}),
        json!({"layer_types": ["full_attention", "sliding_attention"]}),
        json!({"sliding_window": 64}),
        json!({"rope_interleaved": true}),
        json!({"rope_scaling": {"type": "su", "factor": 2.0}}),
        json!({"is_encoder_decoder": true}),
    ];
    for case in cases {
        let error = parse(&case).expect_err("refused");
        assert!(
            matches!(error, ModelError::UnsupportedValue { .. }),
            "{case}: {error}"
        );
    }
}

#[test]
fn gguf_values_that_are_not_implemented_are_refused() {
    let cases = [
        json!({"expert_count": 8}),
        json!({"rope.scaling.type": "longrope"}),
        json!({"use_parallel_residual": true}),
        json!({"attention.value_length": 16}),
        json!({"attention.head_count": [4, 8]}),
        json!({"attention.causal": false}),
    ];
    for case in cases {
        let error = parse_gguf(&case, &facts()).expect_err("refused");
        assert!(
            matches!(error, ModelError::UnsupportedValue { .. }),
            "{case}: {error}"
        );
    }
}

#[test]
fn other_architectures_are_refused_with_the_supported_ones() {
    for architectures in [
        json!(["Qwen2ForCausalLM"]),
        json!([]),
        json!(["LlamaForCausalLM", "X"]),
        json!("x"),
        json!([1]),
    ] {
        let error = parse(&json!({ "architectures": architectures })).unwrap_err();
        assert!(matches!(error, ModelError::Architecture { .. }), "{error}");
        assert!(error.to_string().contains("MistralForCausalLM"), "{error}");
    }
    assert!(matches!(
        parse(&json!({"model_type": "gemma"})),
        Err(ModelError::Contradiction { .. })
    ));
    assert!(parse(&json!({"architectures": "absent"})).is_ok());
}

#[test]
fn head_layouts_that_do_not_fit_are_refused() {
    let cases = [
        json!({"num_attention_heads": 5}),
        json!({"num_attention_heads": 4, "num_key_value_heads": 3}),
        json!({"num_attention_heads": 4, "num_key_value_heads": 8}),
        json!({"head_dim": 7}),
        json!({"head_dim": 1}),
        json!({"partial_rotary_factor": 0.01}),
        json!({"partial_rotary_factor": 0.4}),
    ];
    for case in cases {
        let error = parse(&case).expect_err("refused");
        assert!(
            matches!(error, ModelError::Contradiction { .. }),
            "{case}: {error}"
        );
    }
    let error = parse_gguf(&json!({"rope.dimension_count": 12}), &facts()).unwrap_err();
    assert!(matches!(error, ModelError::Contradiction { .. }), "{error}");
}

#[test]
fn token_ids_outside_the_vocabulary_are_refused() {
    for bad in [json!(97), json!(-1), json!([2, 97]), json!("</s>"), json!(2.5)] {
        let error = parse(&json!({ "eos_token_id": bad })).unwrap_err();
        assert!(matches!(error, ModelError::OutOfRange { .. }), "{bad}: {error}");
    }
    assert_eq!(
        parse(&json!({"eos_token_id": null})).unwrap().eos_token_ids,
        Vec::<u32>::new()
    );
}

#[test]
fn numbers_of_rope_and_norm_are_range_checked() {
    let cases = [
        json!({"rms_norm_eps": 0.0}),
        json!({"rms_norm_eps": -1e-5}),
        json!({"rms_norm_eps": 1e-60}),
        json!({"rope_theta": 1.0}),
        json!({"rope_theta": -10000.0}),
        json!({"rope_theta": 1e300}),
        json!({"rope_scaling": {"type": "linear", "factor": 0.5}}),
        json!({"rope_scaling": {"type": "linear", "factor": -2}}),
        json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}}),
        json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 1.0, 1.0, 1.0]}}),
        json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 0.0}}),
    ];
    for case in cases {
        let error = parse(&case).expect_err("refused");
        assert!(matches!(error, ModelError::OutOfRange { .. }), "{case}: {error}");
    }
    for case in [
        json!({"rope_scaling": "linear"}),
        json!({"rope_theta": "x"}),
        json!({"rope_scaling": {"type": 3}}),
    ] {
        let error = parse(&case).expect_err("refused");
        assert!(matches!(error, ModelError::WrongType { .. }), "{case}: {error}");
    }
    let error = parse(&json!({"rope_scaling": {"type": "linear"}})).unwrap_err();
    assert_eq!(
        error.to_string(),
        "configuration key `rope_scaling.factor` is missing"
    );
}

#[test]
fn mistral_has_the_window_of_its_key() {
    let mistral = |changes: Value| {
        let base = json!({"architectures": ["MistralForCausalLM"], "model_type": "mistral"});
        let mut base = with(llama(), &base);
        base.extend(changes.as_object().unwrap().clone());
        hf::parse(&base, DType::F16).map(|config| config.sliding_window)
    };
    assert_eq!(mistral(json!({"sliding_window": 12})).unwrap(), Some(12));
    assert_eq!(mistral(json!({"sliding_window": null})).unwrap(), None);
    // transformers' default for a file without the key.
    assert_eq!(mistral(json!({})).unwrap(), Some(4096));
    assert!(mistral(json!({"sliding_window": 0})).is_err());
}

#[test]
fn scaled_models_reach_their_extended_length() {
    let scaled = |scaling: Value| parse(&json!({ "rope_scaling": scaling })).unwrap().max_positions;
    assert_eq!(scaled(json!({"type": "linear", "factor": 4.0})), 512);
    assert_eq!(scaled(json!({"type": "dynamic", "factor": 4.0})), 128);
    assert_eq!(
        scaled(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})),
        512
    );
    assert_eq!(
        scaled(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})),
        128
    );
    assert_eq!(
        parse_gguf(
            &json!({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}),
            &facts()
        )
        .unwrap()
        .max_positions,
        256
    );
}

#[test]
fn rope_divisors_must_fit_the_head() {
    let with_divisors = |divisors: Vec<f32>, changes: Value| {
        parse_gguf(
            &changes,
            &TensorFacts {
                rope_divisors: Some(divisors),
                ..facts()
            },
        )
        .map(|config| config.rope.scaling)
    };
    let good = vec![1.0, 1.0, 2.0, 8.0];
    assert_eq!(
        with_divisors(good.clone(), json!({})).unwrap(),
        RopeScaling::Divisors(good.clone())
    );
    assert!(with_divisors(vec![1.0; 3], json!({})).is_err());
    assert!(with_divisors(vec![1.0, 1.0, 0.0, 8.0], json!({})).is_err());
    assert!(with_divisors(vec![1.0, 1.0, f32::NAN, 8.0], json!({})).is_err());
    assert!(
        with_divisors(
            good,
            json!({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})
        )
        .is_err()
    );
}

#[test]
fn long_values_are_shortened_in_messages() {
    let error = parse(&json!({ "mystery": "é".repeat(10_000) })).unwrap_err();
    assert!(error.to_string().len() < 400);
}

#[test]
fn vocabulary_larger_than_the_embedding_is_refused() {
    let tokens = json!({"num_tokens": 98});
    let error = gguf::parse(
        &with(gguf_llama(), &json!({})),
        tokens.as_object().unwrap(),
        &facts(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the configuration contradicts itself: the vocabulary has 98 tokens, but the embedding only 97 rows"
    );
    let unstated = with(gguf_llama(), &json!({"vocab_size": "absent"}));
    assert_eq!(
        gguf::parse(&unstated, tokens.as_object().unwrap(), &facts())
            .unwrap()
            .vocab_size,
        98
    );
}

/// The keys and kinds of values that models of these families are published with.
#[test]
fn published_configs_are_accepted() {
    let smollm2 = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.04, "intermediate_size": 1536,
        "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2,
        "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100_000,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "vocab_size": 49_152
    });
    let llama3 = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128_000,
        "eos_token_id": [128_001, 128_008, 128_009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131_072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": true,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 128_256
    });
    let mistral = json!({
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14_336,
        "max_position_embeddings": 32_768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.0", "use_cache": true,
        "vocab_size": 32_768
    });
    for config in [smollm2, llama3, mistral] {
        hf::parse(config.as_object().unwrap(), DType::BF16).unwrap();
    }
}
