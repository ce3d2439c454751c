//! `tokenizer_config.json` and `generation_config.json`: special tokens, chat templates, default sampling parameters.
//!
//! Both files are full of keys that don't concern us, so unknown keys are ignored here; known keys with a wrong type
//! are errors.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::assets::{CHAT_TEMPLATE_JINJA, GENERATION_CONFIG_JSON, TOKENIZER_CONFIG_JSON, TextAssets};
use crate::error::TextError;

/// Default sampling parameters that a model's author recommends; `None` where they say nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// 0 means greedy.
    pub temperature: Option<f32>,
    /// In (0, 1].
    pub top_p: Option<f32>,
    /// 0 means all tokens.
    pub top_k: Option<u32>,
    /// In [0, 1].
    pub min_p: Option<f32>,
    /// 1 means none.
    pub repetition_penalty: Option<f32>,
    /// Longest answer in tokens.
    pub max_new_tokens: Option<u32>,
}

/// What the two configuration files say.
#[derive(Debug, Default)]
pub(crate) struct TextConfig {
    /// Texts of special tokens by the name that chat templates use, for example `bos_token`.
    pub(crate) special_tokens: BTreeMap<String, String>,
    /// Chat templates by name; the usual one is `default`.
    pub(crate) templates: BTreeMap<String, String>,
    /// End-of-sequence ids of `generation_config.json`, in its order.
    pub(crate) eos_token_ids: Vec<u32>,
    pub(crate) bos_token_id: Option<u32>,
    pub(crate) defaults: GenerationDefaults,
}

/// The special tokens that transformers passes to a chat template.
const SPECIAL_TOKEN_NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TemplateField {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize, Default)]
struct GenerationFile {
    eos_token_id: Option<OneOrMany>,
    bos_token_id: Option<OneOrMany>,
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    max_new_tokens: Option<u32>,
}

impl TextConfig {
    pub(crate) fn load(assets: &TextAssets) -> Result<Self, TextError> {
        let mut config = Self::default();
        config.read_tokenizer_config(assets)?;
        config.read_generation_config(assets)?;
        if let Some(bytes) = assets.get(CHAT_TEMPLATE_JINJA) {
            let source =
                String::from_utf8(bytes.to_vec()).map_err(|error| invalid(CHAT_TEMPLATE_JINJA, &error))?;
            // The file replaces every template of the configuration, the one for tools too.
            config.templates = BTreeMap::from([("default".to_owned(), source)]);
        }
        Ok(config)
    }

    fn read_tokenizer_config(&mut self, assets: &TextAssets) -> Result<(), TextError> {
        let Some(bytes) = assets.get(TOKENIZER_CONFIG_JSON) else {
            return Ok(());
        };
        let file: Value =
            serde_json::from_slice(bytes).map_err(|error| invalid(TOKENIZER_CONFIG_JSON, &error))?;
        for name in SPECIAL_TOKEN_NAMES {
            if let Some(token) = file.get(name).and_then(token_text) {
                self.special_tokens.insert(name.to_owned(), token.to_owned());
            }
        }
        let Some(template) = file.get("chat_template").filter(|value| !value.is_null()) else {
            return Ok(());
        };
        let template = TemplateField::deserialize(template).map_err(|_| {
            invalid(
                TOKENIZER_CONFIG_JSON,
                &"`chat_template` is neither a string nor a list of named templates",
            )
        })?;
        match template {
            TemplateField::One(source) => {
                self.templates.insert("default".to_owned(), source);
            }
            TemplateField::Named(named) => {
                self.templates
                    .extend(named.into_iter().map(|entry| (entry.name, entry.template)));
            }
        }
        Ok(())
    }

    fn read_generation_config(&mut self, assets: &TextAssets) -> Result<(), TextError> {
        let Some(bytes) = assets.get(GENERATION_CONFIG_JSON) else {
            return Ok(());
        };
        let file: GenerationFile =
            serde_json::from_slice(bytes).map_err(|error| invalid(GENERATION_CONFIG_JSON, &error))?;
        self.eos_token_ids = match file.eos_token_id {
            Some(OneOrMany::One(id)) => vec![id],
            Some(OneOrMany::Many(ids)) => ids,
            None => Vec::new(),
        };
        self.bos_token_id = match file.bos_token_id {
            Some(OneOrMany::One(id)) => Some(id),
            Some(OneOrMany::Many(ids)) => ids.first().copied(),
            None => None,
        };
        self.defaults = GenerationDefaults {
            // `do_sample: false` without a temperature is transformers' way to recommend greedy decoding.
            temperature: file
                .temperature
                .or((file.do_sample == Some(false)).then_some(0.0)),
            top_p: file.top_p,
            top_k: file.top_k,
            min_p: file.min_p,
            repetition_penalty: file.repetition_penalty,
            max_new_tokens: file.max_new_tokens,
        };
        Ok(())
    }
}

/// A token is written as a string or as an object with its `content`.
fn token_text(value: &Value) -> Option<&str> {
    value
        .as_str()
        .or_else(|| value.get("content").and_then(Value::as_str))
}

fn invalid(name: &str, error: &dyn std::fmt::Display) -> TextError {
    TextError::InvalidAsset {
        name: name.to_owned(),
        reason: error.to_string(),
    }
}
