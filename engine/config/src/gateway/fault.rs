//! What is wrong with a file, in words for whoever wrote it.

use std::fmt;

use super::numbers;
use crate::is_unprintable;

/// Faults that are printed; who has more of them should mend these first.
const MAX_PRINTED: usize = 20;

/// Characters of a text that are repeated in a message.
const MAX_QUOTED_CHARS: usize = 64;

/// Characters of the messages of the parser, which repeat what the file says.
const MAX_MESSAGE_CHARS: usize = 400;

/// Everything that is wrong with a file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub struct GatewayFaults(pub Vec<Fault>);

/// One thing that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// The field, as in `tenants[2].limits.concurrency`; empty for the whole file.
    pub path: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl Fault {
    pub(super) fn new(path: &str, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            message: message.into(),
        }
    }

    /// A fault that the parser found. It names the path itself and calls things as Rust does.
    pub(super) fn of_parser(path: &str, message: &str) -> Self {
        let path = if path == "." { "" } else { path };
        let message = message
            .strip_prefix(path)
            .and_then(|rest| rest.strip_prefix(": "))
            .unwrap_or(message);
        let mut message = in_plain_words(message);
        if let Some(bounds) = numbers::bounds(path) {
            let kinds = ["a positive whole number", "a whole number"];
            if let Some(kind) = kinds.into_iter().find(|kind| message.contains(kind)) {
                message = message.replacen(kind, &numbers::words(bounds), 1);
            }
        }
        Self::new(path, shown(&message, MAX_MESSAGE_CHARS))
    }
}

/// A text of the file in quotes: its beginning, without line breaks and control characters.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", shown(&text.replace('"', "\\\""), MAX_QUOTED_CHARS))
}

/// Its beginning, with everything that one doesn't see written out.
fn shown(text: &str, max_chars: usize) -> String {
    let mut shown = String::new();
    for (place, c) in text.chars().enumerate() {
        if place == max_chars {
            shown.push_str("...");
            break;
        }
        if is_unprintable(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// What the parser expected follows its last "expected"; what stands before it may be a text of the file, which is left as it is.
fn in_plain_words(message: &str) -> String {
    if let Some(place) = message.strip_prefix("invalid socket address syntax") {
        return format!("expected an address with a port, such as 127.0.0.1:8443,{place}");
    }
    let Some((found, expected)) = message.rsplit_once("expected ") else {
        return message.to_owned();
    };
    let found = ["invalid type: ", "invalid value: "]
        .into_iter()
        .find_map(|prefix| found.strip_prefix(prefix))
        .map_or_else(
            || found.to_owned(),
            |found| format!("found {}", found.replacen("unit value", "nothing", 1)),
        );
    let mut words: Vec<&str> = Vec::new();
    let mut before = "";
    for word in expected.split(' ') {
        match (before, word) {
            (_, "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64")
                if before == "nonzero" =>
            {
                words.pop();
                words.extend(["positive", "whole", "number"]);
            }
            (_, "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64") => {
                words.extend(["a", "whole", "number"]);
            }
            (_, "f64") => words.extend(["a", "number"]),
            ("struct", _) => words.extend(["a", "mapping"]),
            ("enum", _) => words.extend(["one", "of", "its", "words"]),
            (_, "struct" | "enum") => {}
            ("a", "sequence") => words.push("list"),
            ("a", "map") => words.push("mapping"),
            ("a", "boolean") => {
                words.pop();
                words.extend(["true", "or", "false"]);
            }
            ("a", "string") => words.push("text"),
            (_, other) => words.push(other),
        }
        before = word;
    }
    format!("{found}expected {}", words.join(" "))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{}: {}", shown(path, MAX_MESSAGE_CHARS), self.message),
        }
    }
}

impl fmt::Display for GatewayFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, fault) in self.0.iter().take(MAX_PRINTED).enumerate() {
            let separator = if place == 0 { "" } else { "\n" };
            write!(f, "{separator}{fault}")?;
        }
        match self.0.len().checked_sub(MAX_PRINTED) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "\nand {more} more"),
        }
    }
}
