//! `POST /tokenize` and `POST /detokenize`.

use serde_json::{Map, Value};

use super::chat::{Message, take_messages};
use super::common::take_name;
use super::{Parsed, check_token_ids};
use crate::body::Body;
use crate::error::ApiError;
use crate::limits::Context;

/// A request to turn text or a conversation into token ids.
#[derive(Clone, Debug)]
pub struct TokenizeRequest {
    /// None means the default model.
    pub model: Option<String>,
    /// What to tokenize.
    pub input: TokenizeInput,
    /// Adds the tokenizer's special tokens.
    pub add_special_tokens: bool,
    /// Also answers with the tokens as strings.
    pub return_token_strs: bool,
}

/// What to tokenize.
#[derive(Clone, Debug)]
pub enum TokenizeInput {
    /// Text; may be empty.
    Text(String),
    /// A conversation, rendered by the model's template.
    Chat {
        /// The conversation, at least one message.
        messages: Vec<Message>,
        /// Ends the prompt with the start of an assistant message.
        add_generation_prompt: bool,
        /// Leaves the last message open.
        continue_final_message: bool,
        /// More variables for the template.
        template_variables: Map<String, Value>,
    },
}

impl TokenizeRequest {
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
    pub fn read(mut body: Body<'_>, _context: &Context) -> Result<Parsed<Self>, ApiError> {
        let mut unknown = Vec::new();
        let model = take_name(&mut body, "model")?;
        for name in ["tools", "chat_template", "media_io_kwargs", "mm_processor_kwargs"] {
            if body.take_raw(name).is_some() {
                return Err(ApiError::unsupported(name));
            }
        }
        let prompt: Option<String> = body.take("prompt")?;
        let add_special = body.take::<bool>("add_special_tokens")?;
        let return_token_strs = body.flag("return_token_strs", false)?;
        let (input, add_special_tokens) = match prompt {
            Some(text) => (TokenizeInput::Text(text), add_special.unwrap_or(true)),
            None => (take_chat(&mut body, &mut unknown)?, add_special.unwrap_or(false)),
        };
        unknown.extend(body.into_unknown());
        let request = Self {
            model,
            input,
            add_special_tokens,
            return_token_strs,
        };
        Ok(Parsed { request, unknown })
    }
}

fn take_chat(body: &mut Body<'_>, unknown: &mut Vec<String>) -> Result<TokenizeInput, ApiError> {
    let messages = take_messages(body, unknown).map_err(|error| match error.param() {
        Some("messages") if error.message().ends_with("is required") => {
            ApiError::schema("prompt", "prompt or messages is required")
        }
        _ => error,
    })?;
    let add_generation_prompt = body.flag("add_generation_prompt", true)?;
    let continue_final_message = body.flag("continue_final_message", false)?;
    super::chat::check_prompt_end(add_generation_prompt, continue_final_message)?;
    let template_variables = body.take_value("chat_template_kwargs")?.unwrap_or_default();
    Ok(TokenizeInput::Chat {
        messages,
        add_generation_prompt,
        continue_final_message,
        template_variables,
    })
}

/// A request to turn token ids into text.
#[derive(Clone, Debug)]
pub struct DetokenizeRequest {
    /// None means the default model.
    pub model: Option<String>,
    /// Within the vocabulary.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
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
        let model = take_name(&mut body, "model")?;
        let tokens: Vec<u32> = body.require("tokens")?;
        check_token_ids("tokens", &tokens, context.limits.vocab_size)?;
        Ok(Parsed {
            request: Self { model, tokens },
            unknown: body.into_unknown(),
        })
    }
}
