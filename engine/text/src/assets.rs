//! The files an edge needs for text, and their digest.
//!
//! An engine hands them to edges by digest, so a gateway needs no model files. Nothing is read or written here: the
//! caller brings the contents.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

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

/// First bytes of what is hashed, so that the digest of assets never equals one of something else.
const DIGEST_TAG: &[u8] = b"kvasir-text-assets-v1";

/// The files an edge needs for text: name to content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextAssets {
    files: BTreeMap<String, Vec<u8>>,
}

impl TextAssets {
    /// Takes the files as they are; names are those of [`ASSET_NAMES`], others are kept and digested too.
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

    /// One file's content.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }

    /// SHA-256 over tagged, length-prefixed names and contents in name order, as 64 lower-case hex digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let mut field = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        field(DIGEST_TAG);
        for (name, content) in &self.files {
            field(name.as_bytes());
            field(content);
        }
        hash.finalize()
            .iter()
            .fold(String::with_capacity(64), |mut hex, byte| {
                write!(hex, "{byte:02x}").expect("a string takes any text");
                hex
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assets(files: &[(&str, &str)]) -> TextAssets {
        TextAssets::from_files(
            files
                .iter()
                .map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec()))
                .collect(),
        )
    }

    #[test]
    fn digest_depends_on_names_and_contents_and_where_one_ends() {
        let digests = [
            assets(&[]),
            assets(&[("a", "bc")]),
            assets(&[("ab", "c")]),
            assets(&[("a", "b"), ("c", "")]),
            assets(&[("a", ""), ("b", "c")]),
        ]
        .map(|assets| assets.digest());
        for (i, digest) in digests.iter().enumerate() {
            assert_eq!(digest.len(), 64);
            assert!(!digests[..i].contains(digest), "digest {i} repeats");
        }
    }

    #[test]
    fn digest_does_not_depend_on_the_order_of_insertion() {
        assert_eq!(
            assets(&[("a", "1"), ("b", "2")]).digest(),
            assets(&[("b", "2"), ("a", "1")]).digest()
        );
    }
}
