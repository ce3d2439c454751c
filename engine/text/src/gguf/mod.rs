//! Builds a `tokenizer.json` from the tokenizer metadata of a GGUF.

mod bpe;
mod pre;
mod spm;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::assets::{GENERATION_CONFIG_JSON, TOKENIZER_CONFIG_JSON, TOKENIZER_JSON};
use crate::error::TextError;

/// The tokenizer metadata of a GGUF (keys below `tokenizer.ggml.` unless stated).
#[derive(Debug, Clone, Default)]
pub struct GgufVocab {
    /// `model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `pre`: how text is split before BPE.
    pub pre: Option<String>,
    /// `tokens`: spelling of every id.
    pub tokens: Vec<String>,
    /// `scores`: SentencePiece scores; higher merges first.
    pub scores: Option<Vec<f32>>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i32>>,
    /// `merges`: two spellings with a space between, best first.
    pub merges: Option<Vec<String>>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `eot_token_id`: ends a turn.
    pub eot: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
    /// `tokenizer.chat_template.NAME` by name, for example `tool_use`.
    pub named_chat_templates: BTreeMap<String, String>,
}

/// Kinds of tokens in `token_type`.
mod token_type {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
}

/// Spellings that end a turn in some model family although the GGUF doesn't name them as `eot` (the list of llama.cpp,
/// as far as it concerns generation).
const END_OF_TURN: [&str; 8] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
];

/// The files of [`crate::TextAssets`] that this vocabulary amounts to.
pub(crate) fn to_files(vocab: &GgufVocab) -> Result<BTreeMap<String, Vec<u8>>, TextError> {
    check(vocab)?;
    let tokenizer = match vocab.model.as_str() {
        "gpt2" => bpe::tokenizer(vocab)?,
        "llama" => spm::tokenizer(vocab)?,
        model => {
            return Err(TextError::UnsupportedGgufModel {
                model: model.to_owned(),
            });
        }
    };
    let mut files = BTreeMap::new();
    let mut add = |name: &str, value: &Value| {
        files.insert(name.to_owned(), value.to_string().into_bytes());
    };
    add(TOKENIZER_JSON, &tokenizer);
    add(TOKENIZER_CONFIG_JSON, &tokenizer_config(vocab));
    add(GENERATION_CONFIG_JSON, &generation_config(vocab));
    Ok(files)
}

/// Lengths agree, ids exist, spellings are unique.
fn check(vocab: &GgufVocab) -> Result<(), TextError> {
    let size = vocab.tokens.len();
    let wrong = |reason: String| Err(TextError::InvalidGgufVocab { reason });
    if size == 0 {
        return wrong("it has no tokens".to_owned());
    }
    let lengths = [
        ("scores", vocab.scores.as_ref().map(Vec::len)),
        ("token_type", vocab.token_types.as_ref().map(Vec::len)),
    ];
    for (name, length) in lengths {
        if let Some(length) = length.filter(|length| *length != size) {
            return wrong(format!("`{name}` has {length} entries for {size} tokens"));
        }
    }
    let ids = [
        ("bos", vocab.bos),
        ("eos", vocab.eos),
        ("unknown", vocab.unk),
        ("padding", vocab.pad),
        ("eot", vocab.eot),
    ];
    for (name, id) in ids {
        if let Some(id) = id.filter(|id| *id as usize >= size) {
            return wrong(format!(
                "the {name} token id {id} is out of range; there are {size} tokens"
            ));
        }
    }
    Ok(())
}

fn tokenizer_config(vocab: &GgufVocab) -> Value {
    let mut config = Map::new();
    let names = [
        ("bos_token", vocab.bos),
        ("eos_token", vocab.eos),
        ("unk_token", vocab.unk),
        ("pad_token", vocab.pad),
    ];
    for (name, id) in names {
        if let Some(token) = id.and_then(|id| vocab.tokens.get(id as usize)) {
            config.insert(name.to_owned(), json!(token));
        }
    }
    let default = vocab.chat_template.as_ref().map(|template| ("default", template));
    let named = vocab
        .named_chat_templates
        .iter()
        .map(|(name, template)| (name.as_str(), template));
    let templates: Vec<Value> = default
        .into_iter()
        .chain(named)
        .map(|(name, template)| json!({"name": name, "template": template}))
        .collect();
    if !templates.is_empty() {
        config.insert("chat_template".to_owned(), Value::Array(templates));
    }
    Value::Object(config)
}

fn generation_config(vocab: &GgufVocab) -> Value {
    let mut eos: Vec<u32> = vocab.eos.into_iter().chain(vocab.eot).collect();
    for (id, token) in vocab.tokens.iter().enumerate() {
        if kind(vocab, id) == token_type::CONTROL && END_OF_TURN.contains(&token.as_str()) {
            eos.push(id as u32);
        }
    }
    eos.sort_unstable();
    eos.dedup();
    json!({"eos_token_id": eos})
}

fn kind(vocab: &GgufVocab, id: usize) -> i32 {
    vocab
        .token_types
        .as_ref()
        .and_then(|types| types.get(id).copied())
        .unwrap_or(token_type::NORMAL)
}

/// `added_tokens` of `tokenizer.json`: control tokens are special; user-defined ones are found in any text.
fn added_tokens(vocab: &GgufVocab) -> Vec<Value> {
    let mut added = Vec::new();
    for (id, content) in vocab.tokens.iter().enumerate() {
        let special = match kind(vocab, id) {
            token_type::CONTROL | token_type::UNKNOWN => true,
            token_type::USER_DEFINED => false,
            _ => continue,
        };
        if content.is_empty() {
            continue;
        }
        added.push(json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        }));
    }
    added
}

/// The post-processor that adds the beginning and end of a sequence.
fn post_processor(vocab: &GgufVocab, add_bos: bool, add_eos: bool) -> Value {
    let token = |wanted: bool, id: Option<u32>| {
        id.filter(|_| wanted).and_then(|id| {
            vocab
                .tokens
                .get(id as usize)
                .map(|content| (id, content.as_str()))
        })
    };
    let (bos, eos) = (token(add_bos, vocab.bos), token(add_eos, vocab.eos));
    let mut special_tokens = Map::new();
    for (id, content) in bos.into_iter().chain(eos) {
        special_tokens.insert(
            content.to_owned(),
            json!({"id": content, "ids": [id], "tokens": [content]}),
        );
    }
    let special = |token: Option<(u32, &str)>, part: u8| {
        token.map(|(_, content)| json!({"SpecialToken": {"id": content, "type_id": part}}))
    };
    let sequence = |name: &str, part: u8| {
        let text = json!({"Sequence": {"id": name, "type_id": part}});
        special(bos, part)
            .into_iter()
            .chain([text])
            .chain(special(eos, part))
            .collect::<Vec<Value>>()
    };
    let pair: Vec<Value> = sequence("A", 0).into_iter().chain(sequence("B", 1)).collect();
    json!({"type": "TemplateProcessing", "single": sequence("A", 0), "pair": pair, "special_tokens": special_tokens})
}
