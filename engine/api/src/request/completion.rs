//! `POST /v1/completions`.

use super::common::Common;
use super::sampling::{Sampling, take_logprobs};
use super::{Parsed, check_token_ids, unsupported};
use crate::body::Body;
use crate::error::ApiError;
use crate::limits::Context;

/// Output tokens if a request doesn't say (OpenAI's and vLLM's default).
const DEFAULT_MAX_TOKENS: u32 = 16;

/// A completion request, resolved.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// Fields shared with chat. `max_tokens` is set; 0 only with `echo`.
    pub common: Common,
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// Puts the prompt in front of the answer.
    pub echo: bool,
    /// Adds the tokenizer's special tokens to text prompts.
    pub add_special_tokens: bool,
}

/// One prompt, not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids, within the vocabulary.
    Tokens(Vec<u32>),
}

impl CompletionRequest {
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
        let limits = &context.limits;
        unsupported::refuse_completion(&mut body)?;
        let prompts = take_prompts(&mut body, context)?;
        let mut common = Common::take(&mut body, context)?;
        let echo = body.flag("echo", false)?;
        let sampling = &mut common.sampling;
        sampling.logprobs = take_logprobs(&mut body, "logprobs", limits)?;
        let min = u32::from(!echo);
        let default = context
            .defaults
            .max_tokens
            .unwrap_or(DEFAULT_MAX_TOKENS)
            .min(limits.max_model_len);
        let max_tokens = Sampling::take_max_tokens(&mut body, "max_tokens", min, limits)?;
        sampling.max_tokens = Some(max_tokens.unwrap_or(default));
        sampling.check(prompts.len(), common.stream.is_some(), limits)?;
        if echo && sampling.logprobs.is_some() {
            // The echoed prompt carries log probabilities too.
            sampling.prompt_logprobs = sampling.prompt_logprobs.max(sampling.logprobs);
        }
        let request = Self {
            common,
            prompts,
            echo,
            add_special_tokens: body.flag("add_special_tokens", true)?,
        };
        Ok(Parsed {
            request,
            unknown: body.into_unknown(),
        })
    }
}

/// The four shapes of `prompt`.
enum WirePrompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

fn take_prompts(body: &mut Body<'_>, context: &Context) -> Result<Vec<Prompt>, ApiError> {
    let limits = &context.limits;
    let raw = body
        .take_raw("prompt")
        .ok_or_else(|| ApiError::schema("prompt", "prompt is required"))?;
    let prompts = match parse_prompt(raw.get())? {
        WirePrompt::Text(text) => vec![Prompt::Text(text)],
        WirePrompt::Tokens(ids) => vec![Prompt::Tokens(ids)],
        WirePrompt::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
        WirePrompt::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
    };
    if prompts.len() > limits.max_prompts {
        let message = format!("prompt has more than {} entries", limits.max_prompts);
        return Err(ApiError::value("prompt", prompts.len(), &message));
    }
    for prompt in &prompts {
        match prompt {
            Prompt::Text(text) if text.is_empty() => return Err(empty_prompt()),
            Prompt::Tokens(ids) if ids.is_empty() => return Err(empty_prompt()),
            Prompt::Tokens(ids) => check_token_ids("prompt", ids, limits.vocab_size)?,
            Prompt::Text(_) => {}
        }
    }
    Ok(prompts)
}

/// Looks at the first bytes to learn the shape, so that a wrong one isn't tried four times.
fn parse_prompt(json: &str) -> Result<WirePrompt, ApiError> {
    let mut significant = json.bytes().filter(|byte| !byte.is_ascii_whitespace());
    let shape = (significant.next(), significant.next());
    let parsed = match shape {
        (Some(b'"'), _) => serde_json::from_str(json).map(WirePrompt::Text),
        (Some(b'['), Some(b'"')) => serde_json::from_str(json).map(WirePrompt::Texts),
        (Some(b'['), Some(b'[')) => serde_json::from_str(json).map(WirePrompt::TokenLists),
        (Some(b'['), Some(b']')) => return Err(empty_prompt()),
        (Some(b'['), Some(b'0'..=b'9' | b'-')) => serde_json::from_str(json).map(WirePrompt::Tokens),
        _ => {
            let message =
                "prompt must be a string, a list of strings, a list of token ids or a list of those";
            return Err(ApiError::schema("prompt", message));
        }
    };
    parsed.map_err(|error| ApiError::schema("prompt", format!("prompt: {error}")))
}

fn empty_prompt() -> ApiError {
    ApiError::value("prompt", "\"\"", "prompt must not be empty")
}
