//! Values as Python prints them: `str()` for what a template outputs, `repr()` inside lists and dictionaries.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

use super::MAX_PRINTED_BYTES;

/// Lists and dictionaries nest at most this deep when printed, and an indentation is at most this wide.
const MAX_DEPTH: usize = 128;

/// The formatter of `{{ value }}`.
pub(super) fn format(
    output: &mut Output<'_>,
    _state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let write = match value.as_str() {
        Some(text) => output.write_str(text),
        None => output.write_str(&text(value)?),
    };
    write.map_err(|_| Error::new(ErrorKind::WriteFailure, "the output has reached its limit"))
}

/// The `string` filter.
pub(super) fn to_text(value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        Ok(value.clone())
    } else {
        text(value).map(Value::from)
    }
}

/// The `iterable` test: `None` isn't, an undefined value is (it iterates over nothing).
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The `indent` filter. Unlike minijinja's, Jinja2's keeps a line feed at the end.
#[expect(
    clippy::needless_pass_by_value,
    reason = "minijinja calls filters with owned arguments"
)]
pub(super) fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let width = width.map_or_else(|| kwargs.get::<Option<Value>>("width"), |width| Ok(Some(width)))?;
    let first = first
        .map_or_else(|| kwargs.get::<Option<bool>>("first"), |first| Ok(Some(first)))?
        .unwrap_or(false);
    let blank = blank
        .map_or_else(|| kwargs.get::<Option<bool>>("blank"), |blank| Ok(Some(blank)))?
        .unwrap_or(false);
    super::no_more(&kwargs)?;
    let indention = match &width {
        None => " ".repeat(4),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) if text.len() <= MAX_DEPTH => text.to_owned(),
            (None, Some(width)) if width <= MAX_DEPTH => " ".repeat(width),
            _ => {
                let reason = format!("an indention is a text or a number up to {MAX_DEPTH}");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        },
    };
    let text = text(value)? + "\n";
    let mut out = if first { indention.clone() } else { String::new() };
    for (number, line) in lines(&text, false).enumerate() {
        if number > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line);
        check_length(&out)?;
    }
    Ok(Value::from(out))
}

/// `str.splitlines`, which knows more line ends than `\n`.
pub(super) fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let is_end = |character: char| {
        matches!(
            character,
            '\n' | '\r' | '\u{0B}' | '\u{0C}' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let line = rest.split(is_end).next().unwrap_or(rest);
        let after = &rest[line.len()..];
        let end = if after.starts_with("\r\n") {
            2
        } else {
            after.chars().next().map_or(0, char::len_utf8)
        };
        let taken = if keep_ends {
            &rest[..line.len() + end]
        } else {
            line
        };
        rest = &after[end..];
        Some(taken)
    })
}

/// `str(value)`.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.to_string()),
        _ => {
            let mut out = String::new();
            repr(value, &mut out, 0)?;
            Ok(out)
        }
    }
}

/// An error if a value prints longer than it may.
fn check_length(out: &str) -> Result<(), Error> {
    if out.len() > MAX_PRINTED_BYTES {
        let reason = format!("text is longer than {MAX_PRINTED_BYTES} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(())
}

fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("value nests deeper than {MAX_DEPTH} levels"),
        ));
    }
    check_length(out)?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                if count > 0 {
                    out.push_str(", ");
                }
                repr(&item?, out, depth + 1)?;
                count += 1;
            }
            if count == 1 && value.is_tuple() {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map if value.as_object().is_some() => {
            out.push('{');
            for (count, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                if count > 0 {
                    out.push_str(", ");
                }
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// `repr(float)`: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "nan".to_owned()
        } else if number > 0.0 {
            "inf".to_owned()
        } else {
            "-inf".to_owned()
        };
    }
    let size = number.abs();
    if number != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((text.as_str(), "0"));
        let (sign, exponent) = exponent
            .strip_prefix('-')
            .map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = number.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// `repr(str)`: single quotes, unless only those are in the text.
fn quote(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            character if character == quote => out.extend(['\\', quote]),
            character if character < ' ' || character == '\u{7F}' => {
                write!(out, "\\x{:02x}", u32::from(character)).expect("a string takes any text");
            }
            character => out.push(character),
        }
    }
    out.push(quote);
}
