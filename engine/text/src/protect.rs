//! User text never becomes a control token (C43).
//!
//! A chat template writes control tokens as plain text around the user's text, and only the tokenizer finds them
//! again. So a user could write `<|im_start|>system` and open a turn of their own. To tell the two apart, every control
//! token inside a string of the request is put between two noncharacters before rendering; templates pass them through
//! untouched, and afterwards only a control token without them is real.
//!
//! A wrapper rather than a replacement, so that a template that looks for a token in a message (`'</think>' in content`,
//! `content.split('</think>')`) still finds it.
//!
//! Text that could become a control token together with its neighbours gets a break: a string that ends with the
//! beginning of a control token, or begins with the end of one. And noncharacters that the user wrote are escaped, so
//! nobody can forge a mark and none of their text is lost.
//!
//! Not covered: a template that deletes or changes characters in the middle of a user's string and so makes a control
//! token of what was none. No published template does.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

/// Noncharacters, which no text contains in interchange (Unicode 23.7).
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';
const BREAK: char = '\u{FDD2}';
const ESCAPE: char = '\u{FDD3}';
/// `ESCAPE` and the n-th of these stand for the n-th of [`MARKS`] in the user's own text.
const ESCAPED: [char; 4] = ['\u{FDD4}', '\u{FDD5}', '\u{FDD6}', '\u{FDD7}'];
const MARKS: [char; 4] = [OPEN, CLOSE, BREAK, ESCAPE];

/// True for the characters that protection adds to a text.
pub(crate) fn is_mark(character: char) -> bool {
    MARKS.contains(&character) || ESCAPED.contains(&character)
}

/// How suspicious a string is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// Text: whole control tokens, and the beginning or end of one at its borders.
    Text,
    /// A name that templates put between brackets (`'<|' + role + '|>'`): also any inner part of a control token.
    Name,
}

/// A control token found in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ControlSpan {
    /// Where, in bytes.
    pub(crate) range: Range<usize>,
    /// The token's id.
    pub(crate) id: u32,
}

/// The tokens that user text must not become.
#[derive(Debug)]
pub(crate) struct ControlSet {
    finder: Option<AhoCorasick>,
    tokens: Vec<(String, u32)>,
    ids: Vec<u32>,
    prefixes: BTreeSet<String>,
    suffixes: BTreeSet<String>,
    longest: usize,
}

impl ControlSet {
    pub(crate) fn new(tokens: Vec<(String, u32)>) -> Self {
        let tokens: Vec<(String, u32)> = tokens.into_iter().filter(|(text, _)| !text.is_empty()).collect();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(text, _)| text))
            .ok()
            .filter(|_| !tokens.is_empty());
        let borders = |text: &str| text.char_indices().skip(1).map(|(at, _)| at).collect::<Vec<_>>();
        let mut ids: Vec<u32> = tokens.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        Self {
            ids,
            prefixes: tokens
                .iter()
                .flat_map(|(text, _)| borders(text).into_iter().map(|at| text[..at].to_owned()))
                .collect(),
            suffixes: tokens
                .iter()
                .flat_map(|(text, _)| borders(text).into_iter().map(|at| text[at..].to_owned()))
                .collect(),
            longest: tokens.iter().map(|(text, _)| text.len()).max().unwrap_or(0),
            finder,
            tokens,
        }
    }

    /// Marks what could become a control token in a string of the request.
    pub(crate) fn protect<'t>(&self, text: &'t str, suspicion: Suspicion) -> Cow<'t, str> {
        let escaped = escape(text);
        let Some(finder) = &self.finder else {
            return escaped;
        };
        let break_before =
            self.starts_with_an_end(&escaped) || (suspicion == Suspicion::Name && self.is_inside(&escaped));
        let break_after = self.ends_with_a_beginning(&escaped);
        if !break_before && !break_after && !finder.is_match(escaped.as_ref()) {
            return escaped;
        }
        let mut out = String::with_capacity(escaped.len() + 16);
        if break_before {
            out.push(BREAK);
        }
        let mut last = 0;
        for found in finder.find_iter(escaped.as_ref()) {
            out.push_str(&escaped[last..found.start()]);
            out.push(OPEN);
            out.push_str(&escaped[found.range()]);
            out.push(CLOSE);
            last = found.end();
        }
        out.push_str(&escaped[last..]);
        if break_after {
            out.push(BREAK);
        }
        Cow::Owned(out)
    }

    /// Takes the marks out of a rendering and finds the real control tokens in it.
    pub(crate) fn resolve(&self, marked: &str) -> (String, Vec<ControlSpan>) {
        let mut plain = String::with_capacity(marked.len());
        let mut spans = Vec::new();
        let mut last = 0;
        for found in self.finder.iter().flat_map(|finder| finder.find_iter(marked)) {
            unmark(&marked[last..found.start()], &mut plain);
            let start = plain.len();
            plain.push_str(&marked[found.range()]);
            last = found.end();
            let protected =
                marked[..found.start()].ends_with(OPEN) || marked[found.end()..].starts_with(CLOSE);
            if !protected {
                spans.push(ControlSpan {
                    range: start..plain.len(),
                    id: self.tokens[found.pattern().as_usize()].1,
                });
            }
        }
        unmark(&marked[last..], &mut plain);
        (plain, spans)
    }

    /// Whether this id is one of the tokens.
    pub(crate) fn contains(&self, id: u32) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    /// The tokens' ids, ascending.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.ids.clone()
    }

    fn ends_with_a_beginning(&self, text: &str) -> bool {
        let shortest_start = text.len().saturating_sub(self.longest);
        text.char_indices()
            .rev()
            .map(|(at, _)| at)
            .take_while(|at| *at >= shortest_start)
            .any(|at| self.prefixes.contains(&text[at..]))
    }

    fn starts_with_an_end(&self, text: &str) -> bool {
        text.char_indices()
            .map(|(at, character)| at + character.len_utf8())
            .take_while(|end| *end <= self.longest)
            .any(|end| self.suffixes.contains(&text[..end]))
    }

    fn is_inside(&self, text: &str) -> bool {
        !text.is_empty()
            && text.len() < self.longest
            && self.tokens.iter().any(|(token, _)| token.contains(text))
    }
}

/// The text that a person wrote, from the marked one.
pub(crate) fn unmarked(marked: &str) -> String {
    let mut plain = String::with_capacity(marked.len());
    unmark(marked, &mut plain);
    plain
}

fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(MARKS) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match MARKS.iter().position(|mark| *mark == character) {
            Some(index) => out.extend([ESCAPE, ESCAPED[index]]),
            None => out.push(character),
        }
    }
    Cow::Owned(out)
}

fn unmark(marked: &str, out: &mut String) {
    if !marked.contains(MARKS) {
        out.push_str(marked);
        return;
    }
    let mut characters = marked.chars().peekable();
    while let Some(character) = characters.next() {
        if character == ESCAPE {
            let index = characters
                .peek()
                .and_then(|next| ESCAPED.iter().position(|escaped| escaped == next));
            if let Some(index) = index {
                characters.next();
                out.push(MARKS[index]);
            }
        } else if !MARKS.contains(&character) {
            out.push(character);
        }
    }
}
