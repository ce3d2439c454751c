//! `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`, and nothing escaped for HTML.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::MAX_PRINTED_BYTES;
use crate::protect::is_mark;

/// Values nest at most this deep, and an indentation is at most this wide; more could only come from a template that
/// means no good.
const MAX_DEPTH: usize = 128;

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "minijinja calls filters with owned arguments"
)]
pub(super) fn tojson(value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut arguments = positional.0.into_iter();
    let mut argument = |name: &str| -> Result<Option<Value>, Error> {
        let given = match arguments.next() {
            Some(value) => Some(value),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument("ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = argument("indent")?.map(|value| indentation(&value)).transpose()?;
    let separators = argument("separators")?.map(|value| pair(&value)).transpose()?;
    let sort_keys = argument("sort_keys")?.is_some_and(|value| value.is_true());
    super::no_more(&kwargs)?;
    let default_item = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = separators.unwrap_or((default_item.to_owned(), ": ".to_owned()));
    let mut writer = Writer {
        out: String::new(),
        ensure_ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys,
    };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer {
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refuse(format!("value nests deeper than {MAX_DEPTH} levels")));
        }
        if self.out.len() > MAX_PRINTED_BYTES {
            return Err(refuse(format!("JSON is longer than {MAX_PRINTED_BYTES} bytes")));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            other => return Err(refuse(format!("value of type {other} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut count = 0;
        for item in value.try_iter()?.checked() {
            self.between(count, depth + 1);
            self.value(&item?, depth + 1)?;
            count += 1;
        }
        self.end(count, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        for (count, key) in keys.iter().enumerate() {
            self.between(count, depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.out.push_str("\"null\""),
                ValueKind::Bool => self
                    .out
                    .push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
                _ => self.string(&number(key)),
            }
            self.out.push_str(&self.key_separator);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.end(keys.len(), depth, '}');
        Ok(())
    }

    /// What stands before the item with this number.
    fn between(&mut self, number: usize, depth: usize) {
        if number > 0 {
            self.out.push_str(&self.item_separator);
        }
        self.new_line(depth);
    }

    fn end(&mut self, count: usize, depth: usize, bracket: char) {
        if count > 0 {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{08}' => self.out.push_str("\\b"),
                '\u{0C}' => self.out.push_str("\\f"),
                character
                    if character < ' ' || (self.ensure_ascii && character > '~' && !is_mark(character)) =>
                {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}").expect("a string takes any text");
                    }
                }
                character => self.out.push(character),
            }
        }
        self.out.push('"');
    }
}

/// A number as Python's `json` writes it.
pub(super) fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(number) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 {
            "Infinity".to_owned()
        } else {
            "-Infinity".to_owned()
        }
    } else {
        super::python::float(number)
    }
}

fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return if text.len() <= MAX_DEPTH {
            Ok(text.to_owned())
        } else {
            Err(refuse(format!(
                "indent is {} bytes, the limit is {MAX_DEPTH}",
                text.len()
            )))
        };
    }
    let width = value
        .as_usize()
        .ok_or_else(|| refuse("indent must be a number or a string".to_owned()))?;
    Ok(" ".repeat(width.min(MAX_DEPTH)))
}

fn pair(value: &Value) -> Result<(String, String), Error> {
    let parts = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
    match parts.as_slice() {
        [item, key] => Ok((item.to_string(), key.to_string())),
        _ => Err(refuse(format!(
            "separators must be a pair, not {} values",
            parts.len()
        ))),
    }
}

fn refuse(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
