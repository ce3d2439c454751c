//! Turns tokens into text, one token at a time, and never emits half a character.
//!
//! An automaton over bytes: each token has fixed bytes ([`TokenTable`]), the bytes run through an incremental UTF-8
//! decoder, and an incomplete character at the end is held back until it is complete or certainly broken. Broken
//! bytes become U+FFFD by the rule of the Unicode standard (one per maximal subpart), exactly as
//! [`String::from_utf8_lossy`] does for the whole.
//!
//! Invariant: the concatenation of all [`Detokenizer::push`] and the final [`Detokenizer::finish`] equals
//! [`crate::Text::decode`] of the same tokens, because that is the same automaton.
//! (`tokenizers` writes one U+FFFD per *byte* for broken runs of byte tokens; we can't, since it would have to hold back
//! a run of byte tokens until it ends. For well-formed text the two agree.)

use std::sync::Arc;

use crate::table::{FirstRule, TokenTable};

/// How tokens become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetokenizerOptions {
    /// Special tokens give no text.
    pub skip_special_tokens: bool,
}

impl Default for DetokenizerOptions {
    fn default() -> Self {
        Self {
            skip_special_tokens: true,
        }
    }
}

/// Turns one sequence's tokens into text.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    table: Arc<TokenTable>,
    options: DetokenizerOptions,
    /// Whether a token has given bytes: the first one may lose the space that its tokenizer puts before a text.
    started: bool,
    /// The bytes of an incomplete character; at most three.
    pending: Vec<u8>,
    /// How many of the pending bytes belong to the prompt.
    prompt_pending: usize,
    out: String,
}

impl Detokenizer {
    /// Starts behind `prompt_tail`: the whole prompt, or its last tokens (four are enough to complete a character).
    ///
    /// Text of the prompt is never emitted (C33). A character that the prompt began and the first tokens complete is.
    pub(crate) fn new(table: Arc<TokenTable>, options: DetokenizerOptions, prompt_tail: &[u32]) -> Self {
        let mut detokenizer = Self {
            table,
            options,
            started: false,
            pending: Vec::new(),
            prompt_pending: 0,
            out: String::new(),
        };
        for token in prompt_tail {
            detokenizer.push(*token);
        }
        detokenizer.prompt_pending = detokenizer.pending.len();
        detokenizer.out.clear();
        detokenizer
    }

    /// Takes the next token and returns the text that it completed, often empty.
    ///
    /// An id outside the vocabulary gives no text: a model's head may have more rows than its tokenizer has tokens.
    pub fn push(&mut self, token: u32) -> &str {
        self.out.clear();
        let table = Arc::clone(&self.table);
        if !(self.options.skip_special_tokens && table.is_special(token)) {
            let bytes = table.bytes(token);
            if self.started || bytes.is_empty() {
                self.pending.extend_from_slice(bytes);
            } else {
                self.started = true;
                self.push_first(bytes, table.first_rule());
            }
            self.drain();
        }
        &self.out
    }

    /// The rest, once no more tokens will come: U+FFFD if they ended in the middle of a character.
    pub fn finish(&mut self) -> String {
        let incomplete = self.pending.len() > self.prompt_pending;
        self.pending.clear();
        self.prompt_pending = 0;
        if incomplete {
            char::REPLACEMENT_CHARACTER.to_string()
        } else {
            String::new()
        }
    }

    fn push_first(&mut self, bytes: &[u8], rule: FirstRule) {
        match rule {
            FirstRule::Keep => self.pending.extend_from_slice(bytes),
            FirstRule::StripPrefix { byte, max } => {
                let strip = bytes.iter().take(max).take_while(|other| **other == byte).count();
                self.pending.extend_from_slice(&bytes[strip..]);
            }
            FirstRule::DropSpaces => self.pending.extend(bytes.iter().filter(|byte| **byte != b' ')),
        }
    }

    /// Moves every complete character from `pending` to `out`.
    fn drain(&mut self) {
        let mut at = 0;
        loop {
            let rest = &self.pending[at..];
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.out.push_str(text);
                    at = self.pending.len();
                    break;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    self.out
                        .push_str(std::str::from_utf8(&rest[..valid]).unwrap_or_default());
                    at += valid;
                    let Some(broken) = error.error_len() else { break };
                    at += broken;
                    // A character that the prompt left broken is the prompt's text.
                    if at > self.prompt_pending {
                        self.out.push(char::REPLACEMENT_CHARACTER);
                    }
                }
            }
        }
        self.pending.drain(..at);
        self.prompt_pending = self.prompt_pending.saturating_sub(at);
    }
}
