//! Checkpoints that don't fit their description: an error that names the tensor, before anything is loaded.

use std::path::Path;

use kvasir_backend::{BackendError, KvDType};
use kvasir_model::{KvOptions, LoadOptions, LoadProgress, ModelConfig, ModelError, kv_block_bytes, load};
use kvasir_weights::Checkpoint;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::fixture::{Setup, folder, load_from};
use crate::naive::Naive;

/// The header of the fixture's weights, for changes, and the bytes behind it.
struct Stored {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Stored {
    fn read(name: &str) -> Self {
        let bytes = std::fs::read(folder(name).join("model.safetensors")).unwrap();
        let len = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let header = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
        Self {
            header,
            data: bytes[8 + len..].to_vec(),
        }
    }

    /// Adds a tensor of one f32 at the end.
    fn add(&mut self, name: &str) {
        let start = self.data.len();
        self.data.extend([0; 4]);
        let entry = json!({"dtype": "F32", "shape": [1], "data_offsets": [start, start + 4]});
        self.header.insert(name.to_owned(), entry);
    }

    fn write(&self, folder: &Path) {
        let header = serde_json::to_vec(&self.header).unwrap();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(&self.data);
        std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    }
}

const NAME: &str = "llama-gqa-tied-linear";

/// Loads the fixture with a changed header and a changed `config.json`.
fn load_changed(
    change: impl FnOnce(&mut Stored),
    change_config: impl FnOnce(&mut Map<String, Value>),
) -> Result<(), ModelError> {
    let directory = TempDir::new().unwrap();
    let mut stored = Stored::read(NAME);
    change(&mut stored);
    stored.write(directory.path());
    let text = std::fs::read(folder(NAME).join("config.json")).unwrap();
    let mut config = serde_json::from_slice(&text).unwrap();
    change_config(&mut config);
    std::fs::write(
        directory.path().join("config.json"),
        serde_json::to_vec(&config).unwrap(),
    )
    .unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    load_from(Naive::default(), &checkpoint, Setup::default(), 64).map(drop)
}

fn with_config(key: &str, value: Value) -> ModelError {
    load_changed(|_| {}, |config| drop(config.insert(key.to_owned(), value))).unwrap_err()
}

#[test]
fn unchanged_copy_loads() {
    load_changed(|_| {}, |_| {}).unwrap();
}

#[test]
fn missing_tensor_is_named() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let rename = |stored: &mut Stored| {
        let entry = stored.header.remove(name).unwrap();
        stored
            .header
            .insert("model.layers.1.mlp.upp_proj.weight".to_owned(), entry);
    };
    let error = load_changed(rename, |_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("tensor `{name}` of shape [56, 32] is missing from the checkpoint")
    );
}

#[test]
fn transposed_tensor_is_refused() {
    let name = "model.layers.0.self_attn.k_proj.weight";
    let transpose = |stored: &mut Stored| stored.header[name]["shape"] = json!([32, 16]);
    let error = load_changed(transpose, |_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("tensor `{name}` has shape [32, 16]; the configuration asks for [16, 32]")
    );
}

#[test]
fn tensor_of_more_dimensions_is_refused() {
    let change = |stored: &mut Stored| stored.header["model.norm.weight"]["shape"] = json!([1, 32]);
    assert!(matches!(
        load_changed(change, |_| {}),
        Err(ModelError::TensorShape { .. })
    ));
}

#[test]
fn tensor_that_nothing_asks_for_is_refused() {
    let error = load_changed(
        |stored| stored.add("model.layers.0.self_attn.q_norm.weight"),
        |_| {},
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`model.layers.0.self_attn.q_norm.weight`"),
        "{error}"
    );
    let error = load_changed(
        |stored| stored.add("model.layers.2.input_layernorm.weight"),
        |_| {},
    )
    .unwrap_err();
    assert!(
        matches!(error, ModelError::UnexpectedTensors { count: 1, .. }),
        "{error}"
    );
}

#[test]
fn copy_of_tied_head_and_old_frequencies_are_ignored() {
    let add = |stored: &mut Stored| {
        stored.add("lm_head.weight");
        stored.add("model.layers.0.self_attn.rotary_emb.inv_freq");
    };
    load_changed(add, |_| {}).unwrap();
}

#[test]
fn untied_model_needs_a_head() {
    let error = with_config("tie_word_embeddings", json!(false));
    assert!(
        matches!(&error, ModelError::MissingTensor { name, .. } if name == "lm_head.weight"),
        "{error}"
    );
}

#[test]
fn sizes_that_the_tensors_contradict_are_refused() {
    let changes = [
        ("vocab_size", json!(96)),
        ("vocab_size", json!(1 << 22)),
        ("hidden_size", json!(64)),
        ("intermediate_size", json!(57)),
        ("intermediate_size", json!(1 << 19)),
        ("num_attention_heads", json!(2)),
        ("num_key_value_heads", json!(1)),
        ("head_dim", json!(16)),
        ("head_dim", json!(1024)),
    ];
    for (key, value) in changes {
        let error = with_config(key, value.clone());
        assert!(
            matches!(error, ModelError::TensorShape { .. }),
            "{key}={value}: {error}"
        );
    }
    for layers in [3, 1 << 10] {
        let error = with_config("num_hidden_layers", json!(layers));
        assert!(
            matches!(error, ModelError::MissingTensor { .. }),
            "{layers} layers: {error}"
        );
    }
    let error = with_config("num_hidden_layers", json!(1));
    assert!(
        matches!(error, ModelError::UnexpectedTensors { count: 9, .. }),
        "{error}"
    );
    let error = with_config("attention_bias", json!(true));
    assert!(matches!(error, ModelError::MissingTensor { .. }), "{error}");
}

#[test]
fn broken_config_file_is_an_error_with_its_path() {
    let directory = TempDir::new().unwrap();
    Stored::read(NAME).write(directory.path());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let error = ModelConfig::from_checkpoint(&checkpoint).unwrap_err();
    assert!(matches!(error, ModelError::ReadConfig { .. }), "{error}");
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    for text in ["", "[]", "{\"hidden_size\": 1", "null", "\u{0}", deep.as_str()] {
        std::fs::write(directory.path().join("config.json"), text).unwrap();
        let error = ModelConfig::from_checkpoint(&checkpoint).unwrap_err();
        assert!(error.to_string().contains("config.json"), "{error}");
        assert!(matches!(error, ModelError::ParseConfig { .. }), "{error}");
    }
}

#[test]
fn generation_config_adds_end_of_sequence_tokens() {
    let directory = TempDir::new().unwrap();
    Stored::read(NAME).write(directory.path());
    std::fs::copy(
        folder(NAME).join("config.json"),
        directory.path().join("config.json"),
    )
    .unwrap();
    let path = directory.path().join("generation_config.json");
    std::fs::write(&path, r#"{"eos_token_id": [2, 7], "temperature": 0.6}"#).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(
        ModelConfig::from_checkpoint(&checkpoint).unwrap().eos_token_ids,
        [2, 7]
    );
    std::fs::write(&path, r#"{"eos_token_id": 97}"#).unwrap();
    let error = ModelConfig::from_checkpoint(&checkpoint).unwrap_err();
    assert!(
        error.to_string().contains("`generation_config.eos_token_id`"),
        "{error}"
    );
}

#[test]
fn options_out_of_range_are_refused() {
    let checkpoint = Checkpoint::open(&folder(NAME)).unwrap();
    let attempt = |max_num_tokens, max_model_len, block_size, num_blocks| {
        let config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
        let kv = KvOptions {
            block_size,
            num_blocks,
            dtype: None,
        };
        let options = LoadOptions {
            max_num_tokens,
            max_model_len,
            kv,
            progress: None,
        };
        load(Naive::default(), &checkpoint, config, options).map(drop)
    };
    attempt(1, 1, 1, 2).unwrap();
    // The fixture's linear scaling doubles its 128 positions.
    attempt(8, 256, 4, 10).unwrap();
    let bad = [
        (0, 64, 4, 10),
        (8, 0, 4, 10),
        (8, 257, 4, 10),
        (8, 64, 0, 10),
        (8, 64, 4, 1),
        (8, 64, 1 << 40, 10),
    ];
    for (tokens, len, block_size, num_blocks) in bad {
        let error = attempt(tokens, len, block_size, num_blocks).unwrap_err();
        assert!(matches!(error, ModelError::Option { .. }), "{error}");
    }
    assert!(matches!(
        attempt(usize::MAX, 64, 4, 10),
        Err(ModelError::Option {
            option: "max_num_tokens",
            ..
        })
    ));
}

#[test]
fn cache_larger_than_the_address_space_is_refused() {
    let checkpoint = Checkpoint::open(&folder(NAME)).unwrap();
    let mut config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
    (config.num_kv_heads, config.head_dim, config.num_layers) = (1 << 10, 1 << 10, 1 << 10);
    assert_eq!(
        kv_block_bytes(&config, 1 << 12, KvDType::F32),
        2 << (10 + 10 + 10 + 12 + 2)
    );
    let kv = KvOptions {
        block_size: 1 << 12,
        num_blocks: u32::MAX as usize,
        dtype: Some(KvDType::F32),
    };
    let options = LoadOptions {
        max_num_tokens: 8,
        max_model_len: 64,
        kv,
        progress: None,
    };
    let error = load(Naive::default(), &checkpoint, config, options)
        .err()
        .unwrap();
    assert!(
        matches!(error, ModelError::Backend(BackendError::OutOfMemory { .. })),
        "{error}"
    );
}

#[test]
fn progress_counts_every_byte() {
    let checkpoint = Checkpoint::open(&folder(NAME)).unwrap();
    let config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
    let mut seen: Vec<LoadProgress> = Vec::new();
    let mut report = |progress| seen.push(progress);
    let kv = KvOptions {
        block_size: 16,
        num_blocks: 8,
        dtype: None,
    };
    let options = LoadOptions {
        max_num_tokens: 8,
        max_model_len: 64,
        kv,
        progress: Some(&mut report),
    };
    load(Naive::default(), &checkpoint, config, options).unwrap();
    let last = seen.last().unwrap();
    assert_eq!(
        (last.done_bytes, last.total_bytes),
        (checkpoint.total_bytes(), checkpoint.total_bytes())
    );
    assert!(
        seen.windows(2)
            .all(|pair| pair[0].done_bytes < pair[1].done_bytes)
    );
}

#[test]
fn type_that_the_device_cannot_load_is_an_error() {
    let checkpoint = Checkpoint::open(&folder("gguf-q4_1-untied")).unwrap();
    let error = load_from(Naive::default(), &checkpoint, Setup::default(), 64)
        .err()
        .unwrap();
    assert!(
        matches!(error, ModelError::Backend(BackendError::Weight { .. })),
        "{error}"
    );
}

/// A copy of a GGUF fixture in which the number behind `key` is another one.
fn gguf_with(key: &str, value: u32) -> Result<(), ModelError> {
    let mut bytes = std::fs::read(folder("gguf-f16-llama3").join("model.gguf")).unwrap();
    // The key's length goes before it, so that no longer key is found.
    let mut stored_key = (key.len() as u64).to_le_bytes().to_vec();
    stored_key.extend(key.as_bytes());
    let at = bytes
        .windows(stored_key.len())
        .position(|window| window == stored_key)
        .unwrap()
        + stored_key.len();
    assert_eq!(
        bytes[at..at + 4],
        4_u32.to_le_bytes(),
        "the value of {key} is no UINT32"
    );
    bytes[at + 4..at + 8].copy_from_slice(&value.to_le_bytes());
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("model.gguf"), bytes).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    load_from(Naive::default(), &checkpoint, Setup::default(), 64).map(drop)
}

#[test]
fn gguf_metadata_that_the_tensors_contradict_are_refused() {
    gguf_with("llama.block_count", 2).unwrap();
    let cases = [
        ("llama.block_count", 1),
        ("llama.block_count", 3),
        ("llama.block_count", u32::MAX),
        ("llama.embedding_length", 32),
        ("llama.embedding_length", 0),
        ("llama.feed_forward_length", 97),
        ("llama.attention.head_count", 2),
        ("llama.attention.head_count", 1 << 31),
        ("llama.attention.head_count_kv", 4),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.key_length", 8),
        ("llama.vocab_size", 96),
        ("llama.rope.dimension_count", 8),
        ("llama.context_length", 0),
    ];
    for (key, value) in cases {
        assert!(gguf_with(key, value).is_err(), "{key}={value}");
    }
}
