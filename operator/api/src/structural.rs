//! Makes a generated schema structural, in the strict sense of the API server, and small.
//!
//! schemars writes what JSON Schema allows; a custom resource definition allows less. After [`structural`]:
//! - nothing is `nullable`: with a stored null `has(self.x)` would be true and "exactly one of" rules would silently break;
//! - there is no `anyOf`, `oneOf`, `$ref` or `title`;
//! - integers have no format: their bounds say more; lists that are written as a whole have no type: that is the API server's own default;
//! - a description is the first sentence of a field's documentation, and items of a list have none beside the list's own;
//! - a default that only repeats the defaults of its parts is written `{}`, unless the object has rules.

use serde_json::{Map, Value};

/// Rewrites `schema` and everything below it.
pub(crate) fn structural(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    flatten_optional(object);
    object.remove("nullable");
    object.remove("title");
    if object.get("default").is_some_and(Value::is_null) {
        object.remove("default");
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if object.get("additionalProperties") == Some(&Value::Bool(true)) {
        // Maps of free form say so with x-kubernetes-preserve-unknown-fields.
        object.remove("additionalProperties");
    }
    if object.get("type").is_some_and(|kind| kind == "integer") {
        object.remove("format");
    }
    if object
        .get("x-kubernetes-list-type")
        .is_some_and(|kind| kind == "atomic")
    {
        object.remove("x-kubernetes-list-type");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            structural(inner);
        }
    }
    if let Some(Value::Object(items)) = object.get_mut("items") {
        items.remove("description");
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(structural);
    }
    shorten_default(object);
    short_description(object);
}

/// `anyOf: [X, null]` is how an optional value is generated: it becomes X.
fn flatten_optional(object: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = object.remove("anyOf") else {
        return;
    };
    let is_null = |variant: &Value| variant["type"] == "null" || variant["enum"] == serde_json::json!([null]);
    for variant in variants {
        if is_null(&variant) {
            continue;
        }
        if let Value::Object(inner) = variant {
            for (key, value) in inner {
                object.entry(key).or_insert(value);
            }
        }
    }
}

/// Drops from an object's default what its properties' own defaults say. Not where the object has rules: the API server
/// evaluates them on the default as it is written.
fn shorten_default(object: &mut Map<String, Value>) {
    if object.contains_key("x-kubernetes-validations") {
        return;
    }
    let Some(Value::Object(default)) = object.get("default") else {
        return;
    };
    let mut default = default.clone();
    if let Some(Value::Object(properties)) = object.get("properties") {
        default.retain(|key, value| {
            let own = properties.get(key).and_then(|property| property.get("default"));
            let shortened = shortened(properties.get(key), value);
            own != Some(value) && own != Some(&shortened)
        });
    }
    object.insert("default".to_owned(), Value::Object(default));
}

/// `value` without what the schema's own defaults say.
fn shortened(schema: Option<&Value>, value: &Value) -> Value {
    let (Some(properties), Value::Object(fields)) =
        (schema.and_then(|schema| schema["properties"].as_object()), value)
    else {
        return value.clone();
    };
    fields
        .iter()
        .filter(|(key, field)| {
            let property = properties.get(*key);
            let own = property.and_then(|property| property.get("default"));
            own != Some(*field) && own != Some(&shortened(property, field))
        })
        .map(|(key, field)| (key.clone(), field.clone()))
        .collect::<Map<_, _>>()
        .into()
}

/// The first sentence, on one line: `kubectl explain` wraps text itself.
fn short_description(object: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = object.get_mut("description") {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        *text = match line.split_once(". ") {
            Some((first, _)) => format!("{first}."),
            None => line,
        };
    }
}
