//! The files an edge needs for text.
//!
//! An engine hands them to edges by digest, so a gateway needs no model files. Nothing is read or written here: the
//! caller brings the contents.

use std::collections::BTreeMap;

use crate::error::TextError;
use crate::gguf::{self, GgufVocab};

/// The tokenizer, always present.
pub const TOKENIZER_JSON: &str = "tokenizer.json";
/// Special tokens and, in older models, the chat template.
pub const TOKENIZER_CONFIG_JSON: &str = "tokenizer_config.json";
/// The chat template of newer models; wins over the one in the tokenizer configuration.
pub const CHAT_TEMPLATE_JINJA: &str = "chat_template.jinja";
/// End-of-sequence ids and default sampling parameters.
pub const GENERATION_CONFIG_JSON: &str = "generation_config.json";

/// Every name that [`TextAssets`] keeps; a loader reads these from a model folder where they exist.
pub const ASSET_NAMES: [&str; 4] = [
    TOKENIZER_JSON,
    TOKENIZER_CONFIG_JSON,
    CHAT_TEMPLATE_JINJA,
    GENERATION_CONFIG_JSON,
];

/// The files an edge needs for text: name to content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextAssets {
    files: BTreeMap<String, Vec<u8>>,
}

impl TextAssets {
    /// Takes the files as they are; names are those of [`ASSET_NAMES`], others are kept too.
    #[must_use]
    pub fn from_files(files: BTreeMap<String, Vec<u8>>) -> Self {
        Self { files }
    }

    /// Builds the files from the tokenizer metadata of a GGUF.
    ///
    /// # Errors
    /// If the tokenizer's kind isn't known, or the vocabulary contradicts itself.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the vocabulary is large and of no use afterwards"
    )]
    pub fn from_gguf(vocab: GgufVocab) -> Result<Self, TextError> {
        gguf::to_files(&vocab).map(Self::from_files)
    }

    /// The files.
    pub fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }

    /// The files, without a copy.
    #[must_use]
    pub fn into_files(self) -> BTreeMap<String, Vec<u8>> {
        self.files
    }

    /// One file's content.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }
}
