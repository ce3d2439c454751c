//! Python's methods on strings, dictionaries and lists.
//!
//! minijinja-contrib brings most of them. Those here either are missing there, or look at the ends of a string and so
//! must look through the marks of [`crate::protect`]: `'text\n' + mark` still ends with white space for a template.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::protect::is_mark;

/// Calls a method that minijinja itself doesn't know.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let known = match value.as_str() {
        Some(text) => string_method(text, method, args)?,
        None if value.kind() == ValueKind::Seq => sequence_method(value, method, args)?,
        None => None,
    };
    match known {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, method, args),
    }
}

/// The `trim` filter, which Jinja2 defines as `str.strip`.
pub(super) fn trim(value: &Value, characters: Option<&str>) -> Result<Value, Error> {
    let text = super::python::text(value)?;
    Ok(Value::from(strip(&text, characters, true, true)))
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let strip_with = |start: bool, end: bool| -> Result<Option<Value>, Error> {
        let (characters,): (Option<&str>,) = from_args(args)?;
        Ok(Some(Value::from(strip(text, characters, start, end))))
    };
    match method {
        "strip" => strip_with(true, true),
        "lstrip" => strip_with(true, false),
        "rstrip" => strip_with(false, true),
        "startswith" => affix(args, |affix| text.trim_start_matches(is_mark).starts_with(affix)),
        "endswith" => affix(args, |affix| text.trim_end_matches(is_mark).ends_with(affix)),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Some(Value::from(text.strip_prefix(prefix).unwrap_or(text))))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Some(Value::from(text.strip_suffix(suffix).unwrap_or(text))))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, middle, after) = match text.split_once(separator) {
                Some((before, after)) => (before, separator, after),
                None => (text, "", ""),
            };
            Ok(Some(
                [before, middle, after].into_iter().map(Value::from).collect(),
            ))
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            Ok(Some(
                super::python::lines(text, keep_ends.unwrap_or(false))
                    .map(Value::from)
                    .collect(),
            ))
        }
        "rsplit" => rsplit(text, args).map(Some),
        _ => Ok(None),
    }
}

fn sequence_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if method != "index" {
        return Ok(None);
    }
    let (wanted,): (&Value,) = from_args(args)?;
    for (position, item) in value.try_iter()?.checked().enumerate() {
        if item? == *wanted {
            return Ok(Some(Value::from(position)));
        }
    }
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{wanted} is not in the list"),
    ))
}

fn affix(args: &[Value], test: impl Fn(&str) -> bool) -> Result<Option<Value>, Error> {
    let (affix,): (&Value,) = from_args(args)?;
    if let Some(text) = affix.as_str() {
        return Ok(Some(Value::from(test(text))));
    }
    for option in affix.try_iter()?.checked() {
        if option?.as_str().is_some_and(&test) {
            return Ok(Some(Value::from(true)));
        }
    }
    Ok(Some(Value::from(false)))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
    let splits = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) => text.rsplitn(splits, separator).collect(),
        None => text
            .trim()
            .rsplitn(splits, char::is_whitespace)
            .filter(|part| !part.is_empty())
            .collect(),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// `str.strip` that looks through marks and keeps them.
fn strip(text: &str, characters: Option<&str>, start: bool, end: bool) -> String {
    let strips = |character: char| match characters {
        Some(characters) => characters.contains(character),
        None => is_python_space(character),
    };
    let either = |character: char| is_mark(character) || strips(character);
    let after_start = if start {
        text.trim_start_matches(either)
    } else {
        text
    };
    let core = if end {
        after_start.trim_end_matches(either)
    } else {
        after_start
    };
    if !text.contains(is_mark) {
        return core.to_owned();
    }
    let head = &text[..text.len() - after_start.len()];
    let tail = &after_start[core.len()..];
    let marks = |border: &str| {
        border
            .chars()
            .filter(|character| is_mark(*character))
            .collect::<String>()
    };
    marks(head) + core + &marks(tail)
}

/// `str.isspace`: Unicode white space and the four information separators.
fn is_python_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&character)
}
