//! Text to token ids, with and without control tokens.

use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::tokenizer::normalizer::Range as TokenizerRange;
use tokenizers::tokenizer::pre_tokenizer::Split;
use tokenizers::{
    AddedToken, Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Token,
    Tokenizer,
};

use crate::error::TextError;
use crate::protect::ControlSpan;

/// Text to token ids.
#[derive(Debug)]
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    /// Added tokens that are ordinary text (for example runs of spaces), searched before normalization.
    ordinary: TokenFinder,
    /// The same for those that the tokenizer searches in normalized text.
    ordinary_normalized: TokenFinder,
    /// Every added token by its id.
    added: BTreeMap<u32, AddedToken>,
}

/// Finds added tokens in text.
#[derive(Debug)]
struct TokenFinder {
    finder: Option<AhoCorasick>,
    tokens: Vec<(u32, AddedToken)>,
}

/// A part of a text: an added token with its id, or text between them.
type Piece = (Option<u32>, Range<usize>);

impl Encoder {
    pub(crate) fn new(tokenizer: Tokenizer) -> Result<Self, TextError> {
        let added: BTreeMap<u32, AddedToken> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        let (normalized, raw): (Vec<_>, Vec<_>) = added
            .iter()
            .filter(|(_, token)| !token.special)
            .map(|(id, token)| (*id, token.clone()))
            .partition(|(_, token)| token.normalized);
        let patterns: Vec<String> = raw.iter().map(|(_, token)| token.content.clone()).collect();
        let ordinary = TokenFinder::new(raw, &patterns);
        let mut patterns = Vec::with_capacity(normalized.len());
        for (_, token) in &normalized {
            let mut content = NormalizedString::from(token.content.as_str());
            if let Some(normalizer) = tokenizer.get_normalizer() {
                normalizer
                    .normalize(&mut content)
                    .map_err(|error| encode_error(&*error))?;
            }
            patterns.push(content.get().to_owned());
        }
        let ordinary_normalized = TokenFinder::new(normalized, &patterns);
        Ok(Self {
            tokenizer,
            ordinary,
            ordinary_normalized,
            added,
        })
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Encodes as `tokenizers` does: control tokens in the text become control tokens.
    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(|error| encode_error(&*error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Encodes `text` with control tokens at the `spans` and nowhere else. Added tokens that aren't special (for example
    /// runs of spaces) are found in the text, unless `is_control` says that they are controls too.
    ///
    /// Everything between two spans is one piece, encoded exactly as `tokenizers` does with a text that has no control
    /// tokens. The steps are those of its own `encode`: split off added tokens, normalize, pre-tokenize, run the model.
    pub(crate) fn encode_spans(
        &self,
        text: &str,
        spans: &[ControlSpan],
        is_control: impl Fn(u32) -> bool,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, TextError> {
        self.try_encode_spans(text, spans, is_control, add_special_tokens)
            .map_err(|error| encode_error(&*error))
    }

    fn try_encode_spans(
        &self,
        text: &str,
        spans: &[ControlSpan],
        is_control: impl Fn(u32) -> bool,
        add_special_tokens: bool,
    ) -> tokenizers::Result<Vec<u32>> {
        let mut pre_tokenized = PreTokenizedString::from(text);
        // The first split sees the whole text as one piece.
        let controls = between(
            text,
            spans
                .iter()
                .map(|span| (span.id, span.range.clone(), self.added.get(&span.id))),
        );
        pre_tokenized.split(|_, piece| Ok(splits(&piece, &controls)))?;
        pre_tokenized
            .split(|_, piece| Ok(splits(&piece, &self.ordinary.pieces(piece.get(), &is_control))))?;
        pre_tokenized.split(|_, mut piece| {
            if let Some(normalizer) = self.tokenizer.get_normalizer() {
                normalizer.normalize(&mut piece)?;
            }
            Ok(splits(
                &piece,
                &self.ordinary_normalized.pieces(piece.get(), &is_control),
            ))
        })?;
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pre_tokenized)?;
        }
        pre_tokenized.tokenize(|piece| self.tokenize(piece.get(), &is_control))?;
        let encoding = pre_tokenized.into_encoding(None, 0, OffsetType::None)?;
        let encoding = self.tokenizer.post_process(encoding, None, add_special_tokens)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Runs the model over a piece of text. A vocabulary may hold a control token that its model also makes of text; such
    /// a piece is halved until it doesn't.
    fn tokenize(&self, piece: &str, is_control: &impl Fn(u32) -> bool) -> tokenizers::Result<Vec<Token>> {
        let tokens = self.tokenizer.get_model().tokenize(piece)?;
        if !tokens.iter().any(|token| is_control(token.id)) {
            return Ok(tokens);
        }
        let middle = piece
            .char_indices()
            .map(|(at, _)| at)
            .nth(piece.chars().count() / 2)
            .unwrap_or(0);
        if middle == 0 {
            return Err(
                format!("{piece:?} is a control token of this model and has no other encoding").into(),
            );
        }
        let (left, right) = piece.split_at(middle);
        let mut tokens = self.tokenize(left, is_control)?;
        tokens.extend(self.tokenize(right, is_control)?);
        Ok(tokens)
    }
}

impl TokenFinder {
    fn new(tokens: Vec<(u32, AddedToken)>, patterns: &[String]) -> Self {
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns)
            .ok()
            .filter(|_| !tokens.is_empty());
        Self { finder, tokens }
    }

    fn pieces(&self, text: &str, is_control: impl Fn(u32) -> bool) -> Vec<Piece> {
        let found = self
            .finder
            .iter()
            .flat_map(|finder| finder.find_iter(text))
            .filter_map(|found| {
                let (id, token) = &self.tokens[found.pattern().as_usize()];
                (!is_control(*id)).then_some((*id, found.range(), Some(token)))
            });
        between(text, found)
    }
}

/// The found tokens, widened as their flags say, and the text between them.
fn between<'t>(
    text: &str,
    found: impl Iterator<Item = (u32, Range<usize>, Option<&'t AddedToken>)>,
) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut last = 0;
    for (id, range, token) in found {
        let (mut start, mut end) = (range.start, range.end);
        if let Some(token) = token {
            if token.single_word && !stands_alone(text, &range) {
                continue;
            }
            if token.lstrip {
                start = text[..start].trim_end().len();
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
        }
        start = start.max(last);
        if start > last {
            pieces.push((None, last..start));
        }
        pieces.push((Some(id), start..end));
        last = end;
    }
    if last < text.len() || pieces.is_empty() {
        pieces.push((None, last..text.len()));
    }
    pieces
}

fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    !text[..range.start].ends_with(is_word) && !text[range.end..].starts_with(is_word)
}

fn splits(piece: &NormalizedString, pieces: &[Piece]) -> Vec<Split> {
    pieces
        .iter()
        .filter_map(|(id, range)| {
            let slice = piece.slice(TokenizerRange::Normalized(range.clone()))?;
            Some(match id {
                None => Split::from(slice),
                Some(id) => {
                    let value = slice.get().to_owned();
                    let length = value.len();
                    Split::from((slice, Some(vec![Token::new(*id, value, (0, length))])))
                }
            })
        })
        .collect()
}

fn encode_error(error: &(dyn std::error::Error + Send + Sync)) -> TextError {
    TextError::Encode {
        reason: error.to_string(),
    }
}
