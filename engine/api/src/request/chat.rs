//! `POST /v1/chat/completions`.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::common::Common;
use super::sampling::{Sampling, take_logprobs};
use super::{Parsed, unsupported};
use crate::body::Body;
use crate::error::ApiError;
use crate::limits::Context;

/// Most messages of one conversation.
const MAX_MESSAGES: usize = 16_384;
/// Most parts of one message.
const MAX_PARTS: usize = 4096;
/// The values of `reasoning_effort` (vLLM 0.32).
const REASONING_EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// A chat request, resolved.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the fields are independent switches of the wire format"
)]
pub struct ChatRequest {
    /// Fields shared with completions.
    pub common: Common,
    /// The conversation, at least one message.
    pub messages: Vec<Message>,
    /// Puts the last message in front of the answer if it is the assistant's.
    pub echo: bool,
    /// Ends the prompt with the start of an assistant message.
    pub add_generation_prompt: bool,
    /// Leaves the last message open, so that the answer continues it.
    pub continue_final_message: bool,
    /// Adds the tokenizer's special tokens on top of the template's.
    pub add_special_tokens: bool,
    /// A template that replaces the model's; only set where the server trusts requests to do so.
    pub chat_template: Option<String>,
    /// More variables for the template.
    pub template_variables: Map<String, Value>,
    /// For templates with retrieval.
    pub documents: Option<Vec<Value>>,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant` and `tool` are the standard ones; others go to the template.
    pub role: String,
    /// What was said; none for an assistant message that only calls tools.
    pub content: Option<Content>,
    /// More fields the template may read: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`.
    pub extra: Map<String, Value>,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// One string.
    Text(String),
    /// Text parts in order.
    Parts(Vec<String>),
}

impl Content {
    /// The text; parts are joined by line breaks, as vLLM does for templates that want one string.
    pub fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.join("\n"),
        }
    }
}

impl ChatRequest {
    /// Parses and checks a request body.
    ///
    /// # Errors
    /// A 400 that names the field at fault.
    pub fn parse(bytes: &[u8], context: &Context) -> Result<Parsed<Self>, ApiError> {
        Self::read(Body::parse(bytes)?, context)
    }

    /// Reads and checks a body.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn read(mut body: Body<'_>, context: &Context) -> Result<Parsed<Self>, ApiError> {
        unsupported::refuse_chat(&mut body)?;
        let mut unknown = Vec::new();
        let messages = take_messages(&mut body, &mut unknown)?;
        let mut common = Common::take(&mut body, context)?;
        take_chat_sampling(&mut body, &mut common, context)?;
        let add_generation_prompt = body.flag("add_generation_prompt", true)?;
        let continue_final_message = body.flag("continue_final_message", false)?;
        check_prompt_end(add_generation_prompt, continue_final_message)?;
        let request = Self {
            common,
            messages,
            echo: body.flag("echo", false)?,
            add_generation_prompt,
            continue_final_message,
            add_special_tokens: body.flag("add_special_tokens", false)?,
            chat_template: take_chat_template(&mut body, context)?,
            template_variables: take_template_variables(&mut body)?,
            documents: body.take_value("documents")?,
        };
        unknown.extend(body.into_unknown());
        Ok(Parsed { request, unknown })
    }
}

pub(super) fn check_prompt_end(add_generation_prompt: bool, continue_final: bool) -> Result<(), ApiError> {
    if add_generation_prompt && continue_final {
        return Err(ApiError::value(
            "continue_final_message",
            true,
            "continue_final_message and add_generation_prompt can't both be true",
        ));
    }
    Ok(())
}

fn take_chat_sampling(body: &mut Body<'_>, common: &mut Common, context: &Context) -> Result<(), ApiError> {
    let limits = &context.limits;
    let sampling = &mut common.sampling;
    let max_tokens = Sampling::take_max_tokens(body, "max_tokens", 1, limits)?;
    let max_completion_tokens = Sampling::take_max_tokens(body, "max_completion_tokens", 1, limits)?;
    sampling.max_tokens = max_completion_tokens
        .or(max_tokens)
        .or(context.defaults.max_tokens);
    let wants_logprobs = body.flag("logprobs", false)?;
    let top = take_logprobs(body, "top_logprobs", limits)?;
    match top {
        Some(top) if top > 0 && !wants_logprobs => {
            return Err(ApiError::value(
                "top_logprobs",
                top,
                "top_logprobs needs logprobs to be true",
            ));
        }
        _ => sampling.logprobs = wants_logprobs.then(|| top.unwrap_or(0)),
    }
    sampling.check(1, common.stream.is_some(), limits)
}

fn take_chat_template(body: &mut Body<'_>, context: &Context) -> Result<Option<String>, ApiError> {
    let template = body.take::<String>("chat_template")?;
    if template.is_some() && !context.limits.trust_request_chat_template {
        return Err(ApiError::new(
            crate::ErrorKind::Value,
            "chat_template in a request is refused unless the server runs with --trust-request-chat-template",
        )
        .with_param("chat_template"));
    }
    Ok(template)
}

fn take_template_variables(body: &mut Body<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut variables: Map<String, Value> = body.take_value("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = body.take::<String>("reasoning_effort")? {
        if !REASONING_EFFORTS.contains(&effort.as_str()) {
            let message = format!("reasoning_effort must be one of {}", REASONING_EFFORTS.join(", "));
            return Err(ApiError::value("reasoning_effort", effort, &message));
        }
        variables
            .entry("enable_thinking")
            .or_insert(Value::Bool(effort != "none"));
        variables
            .entry("reasoning_effort")
            .or_insert(Value::String(effort));
    }
    Ok(variables)
}

/// Takes the conversation.
pub(super) fn take_messages(
    body: &mut Body<'_>,
    unknown: &mut Vec<String>,
) -> Result<Vec<Message>, ApiError> {
    let raw: Vec<&RawValue> = body.require("messages")?;
    if raw.is_empty() || raw.len() > MAX_MESSAGES {
        let message = format!("messages must have 1 to {MAX_MESSAGES} entries");
        return Err(ApiError::value("messages", raw.len(), &message));
    }
    raw.iter()
        .enumerate()
        .map(|(index, raw)| parse_message(raw, &format!("messages.{index}"), unknown))
        .collect()
}

fn parse_message(raw: &RawValue, path: &str, unknown: &mut Vec<String>) -> Result<Message, ApiError> {
    let mut body = Body::nested(raw, path)?;
    let role: String = body.require("role")?;
    let param = body.param("content");
    let content = match body.take_raw("content") {
        None => None,
        Some(raw) => Some(parse_content(raw, &param)?),
    };
    let mut extra = Map::new();
    for name in ["name", "tool_call_id", "reasoning_content", "reasoning"] {
        if let Some(text) = body.take::<String>(name)? {
            extra.insert(name.to_owned(), Value::String(text));
        }
    }
    if let Some(calls) = body.take_value::<Vec<Value>>("tool_calls")? {
        extra.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    if body.take_raw("function_call").is_some() {
        return Err(ApiError::unsupported(&body.param("function_call")));
    }
    if body.take_raw("audio").is_some() {
        return Err(ApiError::unsupported(&body.param("audio")));
    }
    // What the SDKs echo back from an earlier answer.
    for name in ["refusal", "annotations"] {
        body.take_raw(name);
    }
    if content.is_none() && !extra.contains_key("tool_calls") && role != "assistant" {
        return Err(ApiError::schema(&param, format!("{param} is required")));
    }
    unknown.extend(body.into_unknown());
    Ok(Message { role, content, extra })
}

fn parse_content(raw: &RawValue, param: &str) -> Result<Content, ApiError> {
    if raw.get().starts_with('"') {
        let text = serde_json::from_str(raw.get());
        return text
            .map(Content::Text)
            .map_err(|error| ApiError::schema(param, format!("{param}: {error}")));
    }
    let parts: Vec<&RawValue> = serde_json::from_str(raw.get())
        .map_err(|_| ApiError::schema(param, format!("{param} must be a string or a list of parts")))?;
    if parts.len() > MAX_PARTS {
        let message = format!("a message has more than {MAX_PARTS} parts");
        return Err(ApiError::value(param, parts.len(), &message));
    }
    let parse = |(index, raw): (usize, &&RawValue)| parse_part(raw, &format!("{param}.{index}"));
    parts
        .iter()
        .enumerate()
        .map(parse)
        .collect::<Result<_, _>>()
        .map(Content::Parts)
}

fn parse_part(raw: &RawValue, path: &str) -> Result<String, ApiError> {
    if raw.get().starts_with('"') {
        return serde_json::from_str(raw.get())
            .map_err(|error| ApiError::schema(path, format!("{path}: {error}")));
    }
    let mut part = Body::nested(raw, path)?;
    let kind: String = part.require("type")?;
    match kind.as_str() {
        "text" | "input_text" | "output_text" => part.require("text"),
        "refusal" => part.require("refusal"),
        "thinking" => part.require("thinking"),
        "image_url" | "input_image" | "image_pil" | "input_audio" | "audio_url" | "video_url"
        | "image_embeds" | "audio_embeds" | "video_embeds" | "prompt_embeds" | "file" => {
            let message = format!("{path}: content of type {kind} is not supported by this model");
            Err(ApiError::new(crate::ErrorKind::Value, message).with_param(path))
        }
        _ => Err(ApiError::value(
            &part.param("type"),
            kind,
            "unknown type of content part",
        )),
    }
}
