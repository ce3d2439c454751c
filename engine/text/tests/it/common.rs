//! What the tests of this crate share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvasir_text::{GgufVocab, TextAssets};
use kvasir_weights::Gguf;

/// The environment variable that names the folder with other people's templates and vocabularies.
pub(crate) const ASSETS_VARIABLE: &str = "KVASIR_TEST_ASSETS";

/// The `models` folder of llama.cpp, as the source distribution of llama-cpp-python 0.3.36 contains it.
///
/// Panics with the command that fetches it if it is absent: a test that silently skips tests nothing.
pub(crate) fn assets() -> PathBuf {
    let folder = std::env::var_os(ASSETS_VARIABLE).map_or_else(
        || {
            let home = std::env::var_os("HOME").expect("HOME is set");
            Path::new(&home).join(".cache/kvasir/test-assets/llama-cpp-python-0.3.36/models")
        },
        PathBuf::from,
    );
    assert!(
        folder.join("templates").is_dir(),
        "no test assets in {}; `e2e/test` fetches them, or by hand:\n  \
         pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36\n  \
         and copy vendor/llama.cpp/models of it there, or set {ASSETS_VARIABLE} to that folder",
        folder.display()
    );
    folder
}

/// Our own files beside the scripts that make them.
pub(crate) fn golden(name: &str) -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../e2e/golden")
        .join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap()
}

/// The tokenizer of a GGUF file.
pub(crate) fn vocab(path: &Path) -> GgufVocab {
    let gguf = Gguf::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let strings = |name: &str| {
        gguf.get_str_array(&key(name))
            .ok()
            .map(|strings| strings.iter().map(str::to_owned).collect::<Vec<_>>())
    };
    let id = |name: &str| gguf.get_u32(&key(name)).ok();
    let flag = |name: &str| gguf.get_bool(&key(name)).ok();
    GgufVocab {
        model: gguf.get_str(&key("model")).unwrap().to_owned(),
        pre: gguf.get_str(&key("pre")).ok().map(str::to_owned),
        tokens: strings("tokens").unwrap(),
        scores: gguf.get_f32_array(&key("scores")).ok().map(<[f32]>::to_vec),
        token_types: gguf.get_i32_array(&key("token_type")).ok(),
        merges: strings("merges"),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        unk: id("unknown_token_id"),
        pad: id("padding_token_id"),
        eot: id("eot_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
        chat_template: gguf.get_str("tokenizer.chat_template").ok().map(str::to_owned),
        named_chat_templates: BTreeMap::new(),
    }
}

/// A model's text assets with this chat template and a tokenizer of single bytes, which is all that rendering needs.
pub(crate) fn assets_with_template(template: &str, special: &[(&str, &str)]) -> TextAssets {
    let mut vocab: serde_json::Map<String, serde_json::Value> = serde_json::Map::new();
    let alphabet = (0..=0x17F_u32).filter_map(char::from_u32).map(String::from);
    for spelling in alphabet.chain(special.iter().map(|(_, token)| (*token).to_owned())) {
        let id = vocab.len();
        vocab.entry(spelling).or_insert(id.into());
    }
    let added: Vec<serde_json::Value> = special
        .iter()
        .map(|(_, token)| {
            serde_json::json!({
                "id": vocab[*token], "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let config: serde_json::Map<String, serde_json::Value> = special
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, token)| ((*name).to_owned(), (*token).into()))
        .collect();
    let file = |name: &str, value: String| (name.to_owned(), value.into_bytes());
    TextAssets::from_files(BTreeMap::from([
        file(kvasir_text::TOKENIZER_JSON, tokenizer.to_string()),
        file(
            kvasir_text::TOKENIZER_CONFIG_JSON,
            serde_json::Value::Object(config).to_string(),
        ),
        file(kvasir_text::CHAT_TEMPLATE_JINJA, template.to_owned()),
    ]))
}

/// SHA-256 in lower-case hex.
pub(crate) fn sha256(text: &str) -> String {
    use sha2::{Digest, Sha256};
    use std::fmt::Write as _;
    Sha256::digest(text.as_bytes())
        .iter()
        .fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        })
}
