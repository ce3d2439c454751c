//! The bytes of every token, computed once from the tokenizer's decoder.
//!
//! The decoders that language models use turn each token into bytes independently of its neighbours, except for the
//! first one. So a table of bytes and one rule for the first token replace the decoder, and decoding can be cut
//! anywhere.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer;

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
        let steps = Steps::new(&decoder_json(tokenizer)?)?;
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
            first: steps.first,
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

/// A decoder, step by step.
struct Steps {
    steps: Vec<Step>,
    first: FirstRule,
}

enum Step {
    ByteLevel(HashMap<char, u8>),
    Replace {
        from: String,
        to: String,
    },
    ByteFallback,
    Strip {
        character: char,
        start: usize,
        stop: usize,
    },
    WordPiece {
        prefix: String,
    },
    Space,
}

impl Steps {
    fn new(decoder: &Value) -> Result<Self, TextError> {
        let mut steps = Self {
            steps: Vec::new(),
            first: FirstRule::Keep,
        };
        steps.add(decoder, &mut false)?;
        Ok(steps)
    }

    /// Adds one decoder. `fused`: the tokens before it are one string already.
    fn add(&mut self, decoder: &Value, fused: &mut bool) -> Result<(), TextError> {
        let kind = decoder.get("type").and_then(Value::as_str).unwrap_or_default();
        let text = |key: &str| {
            decoder
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let count = |key: &str| decoder.get(key).and_then(Value::as_u64).unwrap_or(0) as usize;
        match kind {
            "" if decoder.is_null() => {
                // Without a decoder `tokenizers` joins the tokens with spaces.
                self.steps.push(Step::Space);
                self.first = FirstRule::StripPrefix { byte: b' ', max: 1 };
            }
            "ByteLevel" => self.steps.push(Step::ByteLevel(byte_level_alphabet())),
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "Fuse" => *fused = true,
            "Metaspace" => {
                self.steps.push(Step::Replace {
                    from: text("replacement"),
                    to: " ".to_owned(),
                });
                if text("prepend_scheme") != "never" {
                    self.first = FirstRule::DropSpaces;
                }
            }
            "Replace" => {
                let from = decoder.pointer("/pattern/String").and_then(Value::as_str);
                let from = from.ok_or_else(|| TextError::UnsupportedDecoder {
                    kind: "Replace with Regex".into(),
                })?;
                self.steps.push(Step::Replace {
                    from: from.to_owned(),
                    to: text("content"),
                });
            }
            "Strip" => self.add_strip(&text("content"), count("start"), count("stop"), *fused)?,
            "WordPiece" => {
                self.steps.push(Step::WordPiece {
                    prefix: text("prefix"),
                });
                self.first = FirstRule::StripPrefix { byte: b' ', max: 1 };
            }
            "Sequence" => {
                for part in decoder
                    .get("decoders")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                {
                    self.add(part, fused)?;
                }
            }
            other => {
                return Err(TextError::UnsupportedDecoder {
                    kind: other.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn add_strip(&mut self, content: &str, start: usize, stop: usize, fused: bool) -> Result<(), TextError> {
        let unsupported = || TextError::UnsupportedDecoder {
            kind: format!("Strip of {content:?} at the end"),
        };
        let character = content.chars().next().ok_or_else(unsupported)?;
        if !fused {
            self.steps.push(Step::Strip {
                character,
                start,
                stop,
            });
        } else if stop == 0 && character.is_ascii() {
            self.first = FirstRule::StripPrefix {
                byte: character as u8,
                max: start,
            };
        } else {
            return Err(unsupported());
        }
        Ok(())
    }

    fn apply(&self, token: &str) -> Vec<u8> {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::ByteLevel(alphabet) => {
                    let bytes: Option<Vec<u8>> = text
                        .chars()
                        .map(|character| alphabet.get(&character).copied())
                        .collect();
                    return bytes.unwrap_or_else(|| text.into_bytes());
                }
                Step::Replace { from, to } => text = text.replace(from, to),
                Step::ByteFallback => {
                    if let Some(byte) = byte_token(&text) {
                        return vec![byte];
                    }
                }
                Step::Strip {
                    character,
                    start,
                    stop,
                } => text = strip(text, *character, *start, *stop),
                Step::WordPiece { prefix } => {
                    text = match text.strip_prefix(prefix.as_str()) {
                        Some(rest) if !prefix.is_empty() => rest.to_owned(),
                        _ => format!(" {text}"),
                    }
                }
                Step::Space => text.insert(0, ' '),
            }
        }
        text.into_bytes()
    }
}

fn decoder_json(tokenizer: &Tokenizer) -> Result<Value, TextError> {
    match tokenizer.get_decoder() {
        None => Ok(Value::Null),
        Some(decoder) => serde_json::to_value(decoder).map_err(|error| TextError::InvalidAsset {
            name: crate::assets::TOKENIZER_JSON.to_owned(),
            reason: error.to_string(),
        }),
    }
}

fn strip(text: String, character: char, start: usize, stop: usize) -> String {
    let mut rest = text.as_str();
    for _ in 0..start {
        rest = rest.strip_prefix(character).unwrap_or(rest);
    }
    for _ in 0..stop {
        rest = rest.strip_suffix(character).unwrap_or(rest);
    }
    if rest.len() == text.len() {
        text
    } else {
        rest.to_owned()
    }
}

/// The byte of a byte-fallback token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The character that stands for each byte in byte-level BPE: printable Latin-1 stands for itself, the other 68
/// bytes get the characters from U+0100 on, in order (GPT-2's encoder).
pub(crate) fn byte_level_alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    (0..=255_u8)
        .map(|byte| {
            let code = if printable(byte) {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), byte)
        })
        .collect()
}
