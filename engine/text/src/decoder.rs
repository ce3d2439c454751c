//! The decoder of a `tokenizer.json`, reduced to what it does to one token.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::error::TextError;
use crate::table::FirstRule;

/// A decoder, step by step.
pub(crate) struct Steps {
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
    /// The steps of a tokenizer's decoder.
    ///
    /// # Errors
    /// If it has a step that doesn't work token by token.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let decoder = match tokenizer.get_decoder() {
            None => Value::Null,
            Some(decoder) => serde_json::to_value(decoder).map_err(|error| TextError::InvalidAsset {
                name: crate::assets::TOKENIZER_JSON.to_owned(),
                reason: error.to_string(),
            })?,
        };
        let mut steps = Self {
            steps: Vec::new(),
            first: FirstRule::Keep,
        };
        steps.add(&decoder, &mut false)?;
        Ok(steps)
    }

    /// What the first token of a text loses.
    pub(crate) fn first_rule(&self) -> FirstRule {
        self.first
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

    /// The bytes of a token with this spelling, in the middle of a text.
    pub(crate) fn apply(&self, token: &str) -> Vec<u8> {
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
fn byte_level_alphabet() -> HashMap<char, u8> {
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
