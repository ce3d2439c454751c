//! Fields that chat and completion requests share beside sampling.

use super::sampling::Sampling;
use crate::body::Body;
use crate::error::ApiError;
use crate::limits::Context;

/// Longest cache salt, in characters (vLLM 0.32).
const MAX_CACHE_SALT_CHARS: usize = 128;
/// Longest model name or request id that is looked at, in bytes.
const MAX_NAME_BYTES: usize = 512;

/// Fields that chat and completion requests share.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the fields are independent switches of the wire format"
)]
pub struct Common {
    /// None means the default model.
    pub model: Option<String>,
    /// How tokens are chosen and where a sequence ends.
    pub sampling: Sampling,
    /// Set if the answer is streamed.
    pub stream: Option<StreamOptions>,
    /// Lower runs earlier.
    pub priority: i64,
    /// Separates prefix-cache entries; empty means none.
    pub cache_salt: String,
    /// The client's name for the request.
    pub request_id: Option<String>,
    /// Cuts the prompt before it is checked.
    pub truncation: Option<Truncation>,
    /// Whether the request itself asks for log probabilities of the prompt (`echo` needs them too).
    pub wants_prompt_logprobs: bool,
    /// Puts token ids of prompt and output into the answer.
    pub return_token_ids: bool,
    /// Shows tokens of log probabilities as `token_id:ID`.
    pub return_tokens_as_token_ids: bool,
    /// Puts the prompt's text into the answer.
    pub return_prompt_text: bool,
    /// Puts each sequence's timeline into the answer. Ours; vLLM has no such field.
    pub return_timeline: bool,
}

/// What a streamed answer carries beside text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// One more chunk with the usage.
    pub include_usage: bool,
    /// The usage so far on every chunk.
    pub continuous_usage_stats: bool,
}

/// How a prompt is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Tokens that stay; none means as many as leave room for the answer.
    pub max_tokens: Option<u32>,
    /// Whether the front is cut off rather than the end.
    pub from_left: bool,
}

impl Common {
    /// Takes the shared fields, sampling among them.
    pub(crate) fn take(body: &mut Body<'_>, context: &Context) -> Result<Self, ApiError> {
        let sampling = Sampling::take(body, context)?;
        let stream = take_stream(body)?;
        if stream.is_some() && sampling.prompt_logprobs.is_some() {
            return Err(ApiError::value(
                "prompt_logprobs",
                sampling.prompt_logprobs.unwrap_or_default(),
                "prompt_logprobs are not available when stream is true",
            ));
        }
        Ok(Self {
            model: take_name(body, "model")?.filter(|model| !model.is_empty()),
            wants_prompt_logprobs: sampling.prompt_logprobs.is_some(),
            sampling,
            stream,
            priority: body.int("priority")?.unwrap_or(0),
            cache_salt: take_cache_salt(body)?,
            request_id: take_name(body, "request_id")?,
            truncation: take_truncation(body, context)?,
            return_token_ids: body.flag("return_token_ids", false)?,
            return_tokens_as_token_ids: body.flag("return_tokens_as_token_ids", false)?,
            return_prompt_text: body.flag("return_prompt_text", false)?,
            return_timeline: body.flag("return_timeline", false)?,
        })
    }
}

impl Body<'_> {
    /// The model that the request names, before the request is parsed; none means the default model.
    ///
    /// # Errors
    /// A 400 that names the field: it's no string, or too long for a name.
    pub fn model(&self) -> Result<Option<String>, ApiError> {
        let model = short("model", self.peek("model")?)?;
        Ok(model.filter(|model| !model.is_empty()))
    }
}

/// Takes a short string.
pub(crate) fn take_name(body: &mut Body<'_>, name: &str) -> Result<Option<String>, ApiError> {
    short(name, body.take(name)?)
}

fn short(name: &str, value: Option<String>) -> Result<Option<String>, ApiError> {
    match &value {
        Some(text) if text.len() > MAX_NAME_BYTES => Err(ApiError::value(
            name,
            text,
            &format!("{name} is longer than {MAX_NAME_BYTES} bytes"),
        )),
        _ => Ok(value),
    }
}

fn take_stream(body: &mut Body<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let stream = body.flag("stream", false)?;
    let Some(raw) = body.take_raw("stream_options") else {
        return Ok(stream.then(StreamOptions::default));
    };
    if !stream {
        return Err(ApiError::value(
            "stream_options",
            "set",
            "stream_options is only allowed when stream is true",
        ));
    }
    let mut options = Body::nested(raw, "stream_options")?;
    // OpenAI's padding against traffic analysis; a hint that we don't follow.
    options.flag("include_obfuscation", false)?;
    let include_usage = options.flag("include_usage", false)?;
    let continuous = options.flag("continuous_usage_stats", false)?;
    if let Some(name) = options.into_unknown().first() {
        return Err(ApiError::schema(
            name,
            format!("{name} is not an option of streams"),
        ));
    }
    Ok(Some(StreamOptions {
        include_usage,
        continuous_usage_stats: include_usage && continuous,
    }))
}

fn take_cache_salt(body: &mut Body<'_>) -> Result<String, ApiError> {
    let Some(salt) = body.take::<String>("cache_salt")? else {
        return Ok(String::new());
    };
    if salt.is_empty() || salt.chars().nth(MAX_CACHE_SALT_CHARS).is_some() {
        let message = format!("cache_salt must have 1 to {MAX_CACHE_SALT_CHARS} characters");
        return Err(ApiError::value("cache_salt", salt, &message));
    }
    if salt.contains(['@', '/', '\\', '\0']) {
        return Err(ApiError::value(
            "cache_salt",
            salt,
            "cache_salt must not contain @, /, \\ or NUL",
        ));
    }
    Ok(salt)
}

fn take_truncation(body: &mut Body<'_>, context: &Context) -> Result<Option<Truncation>, ApiError> {
    let from_left = match body.take::<String>("truncation_side")?.as_deref() {
        None | Some("left") => true,
        Some("right") => false,
        Some(other) => {
            return Err(ApiError::value(
                "truncation_side",
                other,
                "truncation_side must be left or right",
            ));
        }
    };
    let max_model_len = i64::from(context.limits.max_model_len);
    match body.int("truncate_prompt_tokens")? {
        None => Ok(None),
        Some(-1) => Ok(Some(Truncation {
            max_tokens: None,
            from_left,
        })),
        Some(tokens) if (1..=max_model_len).contains(&tokens) => Ok(Some(Truncation {
            max_tokens: Some(tokens as u32),
            from_left,
        })),
        Some(tokens) => {
            let message = format!("truncate_prompt_tokens must be -1 or in [1, {max_model_len}]");
            Err(ApiError::value("truncate_prompt_tokens", tokens, &message))
        }
    }
}
