//! From messages of the API to the conversation that a chat template renders.

use kvasir_api::{ChatRequest, Content, Message};
use serde_json::{Map, Value, json};

use crate::state::unix_seconds;

/// The conversation of a chat request.
pub fn from_request(request: ChatRequest) -> kvasir_text::ChatRequest {
    kvasir_text::ChatRequest {
        messages: request.messages.into_iter().map(message).collect(),
        tools: None,
        documents: request.documents,
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message,
        template_kwargs: request.template_variables,
        template: request.chat_template,
        add_special_tokens: request.add_special_tokens,
        now: now(),
    }
}

/// The conversation of a tokenize request.
pub(super) fn from_messages(
    messages: Vec<Message>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_kwargs: Map<String, Value>,
    add_special_tokens: bool,
) -> kvasir_text::ChatRequest {
    kvasir_text::ChatRequest {
        messages: messages.into_iter().map(message).collect(),
        add_generation_prompt,
        continue_final_message,
        template_kwargs,
        add_special_tokens,
        now: now(),
        ..kvasir_text::ChatRequest::default()
    }
}

fn now() -> i64 {
    i64::try_from(unix_seconds()).unwrap_or(0)
}

fn message(message: Message) -> Value {
    let mut object = Map::new();
    object.insert("role".to_owned(), Value::String(message.role));
    let content = message.content.map(|content| match content {
        Content::Text(text) => Value::String(text),
        Content::Parts(parts) => parts
            .into_iter()
            .map(|text| json!({"type": "text", "text": text}))
            .collect(),
    });
    object.extend(content.map(|content| ("content".to_owned(), content)));
    object.extend(message.extra);
    Value::Object(object)
}
