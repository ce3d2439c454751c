//! From a chat request to the variables of a template, and what came out of it.

use minijinja::Value as TemplateValue;
use serde_json::{Map, Value};

use crate::error::TextError;
use crate::protect::{ControlSet, Suspicion};

/// A conversation to render.
///
/// Messages, tools and documents are JSON as the client sent it. `null` members of a message are dropped, tool call
/// arguments given as JSON text are parsed, and lists of content parts become one text where the template only knows
/// texts; so templates see what they see in transformers and vLLM.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    /// Objects with a `role`.
    pub messages: Vec<Value>,
    /// Function schemas, `None` if there are none.
    pub tools: Option<Vec<Value>>,
    /// For templates with retrieval.
    pub documents: Option<Vec<Value>>,
    /// Ends with the header of an assistant turn.
    pub add_generation_prompt: bool,
    /// Ends within the last message, so that the model continues it. Excludes `add_generation_prompt`.
    pub continue_final_message: bool,
    /// Further variables of the template, for example `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// A template in place of the model's.
    pub template: Option<String>,
    /// Adds what the tokenizer puts around a text; almost every template writes that itself.
    pub add_special_tokens: bool,
    /// Seconds since 1970, for templates that tell the model the date.
    pub now: i64,
}

/// A rendered conversation. [`crate::Text::encode_chat`] makes tokens of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub(crate) plain: String,
    /// Token ids by position in `plain`; only set where it differs from what the tokenizer would find.
    pub(crate) spans: Option<Vec<crate::protect::ControlSpan>>,
    /// Added tokens that were controls for this template.
    pub(crate) control_ids: Vec<u32>,
    pub(crate) add_special_tokens: bool,
}

impl Rendered {
    /// The prompt as a person reads it. Encoding this text instead of the [`Rendered`] would turn control tokens that a
    /// user wrote into real ones.
    pub fn text(&self) -> &str {
        &self.plain
    }
}

/// Roles that templates compare with and some put between brackets to make a control token (`'<|' + role + '|>'`).
const CONVENTIONAL_ROLES: [&str; 12] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "ipython",
    "model",
    "human",
    "observation",
    "context",
    "documents",
];

/// Objects whose keys the client chooses.
const OBJECTS_WITH_FREE_KEYS: [&str; 5] = ["arguments", "properties", "$defs", "definitions", "parameters"];

/// Names under which clients send a model's reasoning, the standard one first.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Messages as templates want them, still as JSON.
pub(crate) fn normalize(messages: &[Value], keeps_parts: bool) -> Result<Vec<Value>, TextError> {
    if messages.is_empty() {
        return Err(invalid("messages", "must not be empty"));
    }
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| normalize_message(index, message, keeps_parts))
        .collect()
}

fn normalize_message(index: usize, message: &Value, keeps_parts: bool) -> Result<Value, TextError> {
    let location = format!("messages[{index}]");
    let Some(message) = message.as_object() else {
        return Err(invalid(&location, "must be an object"));
    };
    let mut out: Map<String, Value> = Map::new();
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(invalid(&format!("{location}.role"), "must be a string"));
    }
    let reasoning = REASONING_FIELDS
        .iter()
        .find_map(|name| message.get(*name).filter(|value| !value.is_null()));
    for (name, value) in message.iter().filter(|(_, value)| !value.is_null()) {
        let value = match name.as_str() {
            "content" => content(value, keeps_parts, &location)?,
            "tool_calls" => tool_calls(value, &location)?,
            _ => value.clone(),
        };
        out.insert(name.clone(), value);
    }
    if let Some(reasoning) = reasoning {
        // gpt-oss reads `thinking`, the others `reasoning_content`.
        out.entry("thinking").or_insert_with(|| reasoning.clone());
        out.insert("reasoning_content".to_owned(), reasoning.clone());
    }
    // Templates add to `content` without asking whether it is there.
    out.entry("content")
        .or_insert_with(|| Value::String(String::new()));
    Ok(Value::Object(out))
}

/// Gives every message a `content`; true if one had none.
///
/// The second try for templates that add to `content` without asking whether it is there. Not the first, because others
/// write something else for a message that has an empty content than for one that has none.
pub(crate) fn fill_contents(messages: &mut [Value]) -> bool {
    let mut filled = false;
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        message.entry("content").or_insert_with(|| {
            filled = true;
            Value::String(String::new())
        });
    }
    filled
}

fn content(content: &Value, keeps_parts: bool, location: &str) -> Result<Value, TextError> {
    let Some(parts) = content.as_array().filter(|_| !keeps_parts) else {
        return match content {
            Value::String(_) | Value::Array(_) => Ok(content.clone()),
            _ => Err(invalid(
                &format!("{location}.content"),
                "must be a string or a list of parts",
            )),
        };
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let text = part
            .as_str()
            .or_else(|| {
                ["text", "refusal", "thinking"]
                    .iter()
                    .find_map(|name| part.get(*name)?.as_str())
            })
            .ok_or_else(|| {
                invalid(
                    &format!("{location}.content[{index}]"),
                    "must have a `text`; this model takes text only",
                )
            })?;
        texts.push(text);
    }
    Ok(Value::String(texts.join("\n")))
}

/// Templates print `arguments | tojson`, so arguments given as JSON text are parsed (as vLLM does).
fn tool_calls(calls: &Value, location: &str) -> Result<Value, TextError> {
    let mut calls = calls.clone();
    let list = calls
        .as_array_mut()
        .ok_or_else(|| invalid(&format!("{location}.tool_calls"), "must be a list"))?;
    for (index, call) in list.iter_mut().enumerate() {
        let Some(arguments) = call
            .get_mut("function")
            .and_then(|function| function.get_mut("arguments"))
        else {
            continue;
        };
        if let Value::String(text) = arguments {
            *arguments = if text.trim().is_empty() {
                Value::Object(Map::new())
            } else {
                serde_json::from_str(text).map_err(|error| {
                    let location = format!("{location}.tool_calls[{index}].function.arguments");
                    invalid(&location, &format!("isn't valid JSON: {error}"))
                })?
            };
        }
    }
    Ok(calls)
}

/// A list of JSON values for a template, protected.
pub(crate) fn protected_list(values: &[Value], controls: &ControlSet) -> TemplateValue {
    values
        .iter()
        .map(|value| protected(value, controls, Place::default()))
        .collect()
}

/// A JSON value for a template, protected.
pub(crate) fn protected_value(value: &Value, controls: &ControlSet) -> TemplateValue {
    protected(value, controls, Place::default())
}

/// Where in the request a value stands.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    role: bool,
    free_keys: bool,
}

fn protected(value: &Value, controls: &ControlSet, place: Place) -> TemplateValue {
    match value {
        Value::Null => TemplateValue::from(()),
        Value::Bool(value) => TemplateValue::from(*value),
        Value::Number(number) => number
            .as_i64()
            .map(TemplateValue::from)
            .or_else(|| number.as_u64().map(TemplateValue::from))
            .unwrap_or_else(|| TemplateValue::from(number.as_f64().unwrap_or(f64::NAN))),
        Value::String(text) => {
            let free_role = place.role && !CONVENTIONAL_ROLES.contains(&text.as_str());
            let suspicion = if free_role {
                Suspicion::Name
            } else {
                Suspicion::Text
            };
            TemplateValue::from(controls.protect(text, suspicion).as_ref())
        }
        Value::Array(items) => items
            .iter()
            .map(|item| protected(item, controls, Place { role: false, ..place }))
            .collect(),
        Value::Object(members) => TemplateValue::from_pairs(members.iter().map(|(key, member)| {
            let suspicion = if place.free_keys {
                Suspicion::Name
            } else {
                Suspicion::Text
            };
            let inner = Place {
                role: key == "role" && !place.free_keys,
                free_keys: place.free_keys || OBJECTS_WITH_FREE_KEYS.contains(&key.as_str()),
            };
            let key = if place.free_keys && SCHEMA_KEYWORDS.contains(&key.as_str()) {
                key.clone()
            } else {
                controls.protect(key, suspicion).into_owned()
            };
            (key, protected(member, controls, inner))
        })),
    }
}

/// Keys of JSON Schema that templates look up by name inside objects with free keys.
const SCHEMA_KEYWORDS: [&str; 12] = [
    "type",
    "description",
    "properties",
    "required",
    "items",
    "enum",
    "default",
    "anyOf",
    "oneOf",
    "allOf",
    "format",
    "nullable",
];

pub(crate) fn invalid(location: &str, reason: &str) -> TextError {
    TextError::InvalidMessage {
        location: location.to_owned(),
        reason: reason.to_owned(),
    }
}
