//! Compact YAML: an object without objects inside takes one line, so that a schema has one line per field.

use serde_json::{Map, Value};

/// `value` as a YAML document.
pub(crate) fn to_string(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields) if is_deep(value) => block(fields, 0, &mut out),
        flat => {
            flow(flat, &mut out);
            out.push('\n');
        }
    }
    out
}

/// Whether anything in it is worth lines of its own.
fn is_deep(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().any(|inner| inner.is_object() || is_deep(inner)),
        Value::Array(items) => items.iter().any(Value::is_object),
        _ => false,
    }
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
        other => out.push_str(&other.to_string()),
    }
}

/// A text without quotes where no reader could take it for anything else; JSON's quotes otherwise.
fn scalar(text: &str, out: &mut String) {
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_'));
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
        assert_eq!(&read, value, "{text}");
    }

    #[test]
    fn an_object_without_objects_takes_one_line() {
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
