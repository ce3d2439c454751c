//! The bytes of every token, computed once from the tokenizer's decoder.
//!
//! The decoders that language models use turn each token into bytes independently of its neighbours, except for the
//! first one. So a table of bytes and one rule for the first token replace the decoder, and decoding can be cut
//! anywhere.

use tokenizers::Tokenizer;

use crate::decoder::Steps;
use crate::error::TextError;

/// Ids must be below this, so that a hostile `tokenizer.json` can't make the table huge. Real vocabularies end near
/// 300,000.
const MAX_VOCAB_SIZE: usize = 1 << 24;

/// What happens to the bytes of the first token of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstRule {
    /// Nothing.
    Keep,
    /// At most `max` leading bytes equal to `byte` are dropped.
    StripPrefix {
        /// The byte to drop.
        byte: u8,
        /// How many at most.
        max: usize,
    },
    /// Every space is dropped, as the Metaspace decoder of `tokenizers` does.
    DropSpaces,
}

/// Bytes and flags of every token id.
#[derive(Debug)]
pub(crate) struct TokenTable {
    /// All tokens' bytes, one after the other.
    bytes: Vec<u8>,
    /// `ends[id]`: where the token's bytes end; they start where the one before ends.
    ends: Vec<u32>,
    special: Vec<bool>,
    first: FirstRule,
}

impl TokenTable {
    /// Builds the table for a tokenizer.
    ///
    /// # Errors
    /// If the decoder isn't one that works token by token, or an id is absurdly large.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let steps = Steps::of(tokenizer)?;
        let mut tokens: Vec<(u32, String)> = tokenizer
            .get_vocab(true)
            .into_iter()
            .map(|(token, id)| (id, token))
            .collect();
        tokens.sort_unstable();
        let size = tokens.last().map_or(0, |(id, _)| *id as usize + 1);
        if size > MAX_VOCAB_SIZE {
            return Err(TextError::InvalidAsset {
                name: crate::assets::TOKENIZER_JSON.to_owned(),
                reason: format!("token id {} is above the limit of {MAX_VOCAB_SIZE}", size - 1),
            });
        }
        let added = tokenizer.get_added_tokens_decoder();
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(size),
            special: vec![false; size],
            first: steps.first_rule(),
        };
        for (id, token) in tokens {
            let id = id as usize;
            if id < table.ends.len() {
                // Two spellings share one id; `tokenizers` decodes to the added one, which sorts nowhere special.
                continue;
            }
            table.ends.resize(id, table.bytes.len() as u32);
            let token = added
                .get(&(id as u32))
                .map_or(token, |added| added.content.clone());
            table.bytes.extend_from_slice(&steps.apply(&token));
            table.ends.push(table.bytes.len() as u32);
            table.special[id] = added.get(&(id as u32)).is_some_and(|added| added.special);
        }
        Ok(table)
    }

    /// One more than the largest id.
    pub(crate) fn vocab_size(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token in the middle of a text; empty for an id without a token.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..*end as usize]
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    pub(crate) fn first_rule(&self) -> FirstRule {
        self.first
    }
}
