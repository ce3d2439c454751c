//! Compact YAML: what fits a line takes one, so that a schema has about one line per field.

use serde_json::{Map, Number, Value};

/// Longest value that is written in one line though it has objects inside.
const LINE: usize = 700;

/// `value` as a YAML document.
pub(crate) fn to_string(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields) if nests(value) => block(fields, 0, &mut out),
        flat => {
            flow(flat, &mut out);
            out.push('\n');
        }
    }
    out
}

/// Whether anything in it is worth lines of its own.
fn is_deep(value: &Value) -> bool {
    nests(value) && flow_text(value).len() > LINE
}

fn nests(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().any(|inner| inner.is_object() || nests(inner)),
        Value::Array(items) => items.iter().any(Value::is_object),
        _ => false,
    }
}

fn flow_text(value: &Value) -> String {
    let mut text = String::new();
    flow(value, &mut text);
    text
}

fn block(fields: &Map<String, Value>, indent: usize, out: &mut String) {
    for (key, value) in fields {
        out.extend(std::iter::repeat_n(' ', indent));
        entry(key, value, indent, out);
    }
}

/// One key and its value; the indentation of its first line has been written.
fn entry(key: &str, value: &Value, indent: usize, out: &mut String) {
    scalar(key, out);
    out.push(':');
    match value {
        Value::Object(inner) if is_deep(value) => {
            out.push('\n');
            block(inner, indent + 1, out);
        }
        Value::Array(items) if is_deep(value) => {
            out.push('\n');
            list(items, indent, out);
        }
        flat => {
            out.push(' ');
            flow(flat, out);
            out.push('\n');
        }
    }
}

/// Items that are objects, each behind a dash at the indentation of its key.
fn list(items: &[Value], indent: usize, out: &mut String) {
    for item in items {
        out.extend(std::iter::repeat_n(' ', indent));
        out.push_str("- ");
        match item {
            Value::Object(fields) if is_deep(item) => {
                for (i, (key, value)) in fields.iter().enumerate() {
                    if i > 0 {
                        out.extend(std::iter::repeat_n(' ', indent + 2));
                    }
                    entry(key, value, indent + 2, out);
                }
            }
            flat => {
                flow(flat, out);
                out.push('\n');
            }
        }
    }
}

fn flow(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            out.push('{');
            for (i, (key, inner)) in fields.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                scalar(key, out);
                out.push_str(": ");
                flow(inner, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                flow(item, out);
            }
            out.push(']');
        }
        Value::String(text) => scalar(text, out),
        Value::Number(number) => out.push_str(&number_text(number)),
        other => out.push_str(&other.to_string()),
    }
}

/// A whole number has no fraction: the definition's types keep bounds as floating-point numbers.
fn number_text(number: &Number) -> String {
    let text = number.to_string();
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// A text without quotes where no reader could take it for anything else; JSON's quotes otherwise.
fn scalar(text: &str, out: &mut String) {
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && !text.ends_with(' ')
        && text.chars().all(|c| {
            c.is_ascii_alphanumeric()
                || matches!(c, ' ' | ';' | '.' | '/' | '-' | '_' | '(' | ')' | '\'' | '*')
        });
    // Words that YAML 1.1, which kubectl reads, takes for booleans or null.
    let taken = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
    if word && !taken.contains(&text.to_ascii_lowercase().as_str()) {
        out.push_str(text);
    } else {
        out.push_str(&Value::from(text).to_string());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(value: &Value) {
        let text = to_string(value);
        let read: Value = serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        assert_eq!(whole(&read), whole(value), "{text}");
    }

    /// The value with whole numbers as integers, which YAML doesn't tell from them.
    fn whole(value: &Value) -> Value {
        match value {
            Value::Object(fields) => fields
                .iter()
                .map(|(key, inner)| (key.clone(), whole(inner)))
                .collect(),
            Value::Array(items) => items.iter().map(whole).collect(),
            Value::Number(number) => serde_json::from_str(&number_text(number)).unwrap(),
            other => other.clone(),
        }
    }

    #[test]
    fn what_fits_a_line_takes_one() {
        let text = to_string(&json!({ "a": { "type": "string", "enum": ["On", "b"] } }));
        assert_eq!(text, "a: {type: string,enum: [\"On\",b]}\n");
    }

    #[test]
    fn what_is_written_is_read_back_the_same() {
        check(&json!({}));
        check(&json!({ "a": [] , "b": { "c": {} } }));
        check(
            &json!({ "y": "yes", "n": "no", "num": "12", "neg": "-1", "time": "2026-01-01", "null": "null", "colon": "a: b" }),
        );
        check(
            &json!({ "list": [{ "a": 1, "b": { "c": [{ "d": "#x" }, { "e": [1, [2, "x"]] }] } }, { "f": true }] }),
        );
        check(&json!({ "quotes": "it's \"quoted\" \\ \n line", "unicode": "\u{e9}\u{1f600}", "empty": "" }));
    }

    #[test]
    fn the_definition_is_read_back_the_same() {
        check(&serde_json::to_value(kvasir_operator_api::crd()).unwrap());
    }
}
