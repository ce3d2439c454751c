//! The way of a request before the engine: template, tokenizer, lengths, and the engine's message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_api::{ApiError, ErrorKind, Sampling, Truncation};
use kvasir_client::types::{GenerateRequest, TokenSequence};
use kvasir_text::{Text, TextError};
use serde_json::Value;
use uuid::Uuid;

use super::{Inner, Prompt, TextRequest, wire};

/// Texts up to this many bytes are tokenized in place: that takes less time than handing them to another thread.
const INLINE_BYTES: usize = 2048;
/// Most token sequences that `bad_words` may become (vLLM 0.32).
const MAX_BAD_WORD_SEQUENCES: usize = 1024;
/// A tokenizer may normalize some bytes away, so the bound on bytes per token is never taken smaller than this.
const MIN_BYTES_PER_TOKEN: usize = 32;
/// Text that needn't fit the context may have this many bytes even if the context is small.
const MIN_UNFIT_BYTES: usize = 1 << 20;

/// A tokenized and checked request.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) request: GenerateRequest,
    pub(super) stop: Vec<String>,
    pub(super) include_stop_str_in_output: bool,
    pub(super) skip_special_tokens: bool,
    pub(super) prompt_text: Option<String>,
    pub(super) arrival: Instant,
    /// The end of its time.
    pub(super) deadline: Option<tokio::time::Instant>,
}

impl Prepared {
    /// The prompt's token ids.
    pub fn prompt_token_ids(&self) -> &[u32] {
        &self.request.prompt_token_ids
    }

    /// The prompt's text; none if it came as token ids.
    pub fn prompt_text(&self) -> Option<&str> {
        self.prompt_text.as_deref()
    }

    /// The id under which the engine knows it.
    pub fn request_id(&self) -> &str {
        &self.request.request_id
    }

    /// Output tokens per sequence.
    pub fn max_tokens(&self) -> u32 {
        self.request.stop.as_ref().map_or(0, |stop| stop.max_tokens)
    }
}

/// A tokenized prompt.
pub(super) struct Tokenized {
    pub(super) ids: Vec<u32>,
    text: Option<String>,
}

/// The code in logs of what doesn't fit.
const PROMPT_TOO_LONG: &str = "prompt_too_long";

pub(super) async fn prepare(inner: &Arc<Inner>, request: TextRequest) -> Result<Prepared, ApiError> {
    check_size(inner, &request.prompt, request.truncation.is_none())?;
    let Tokenized { mut ids, text } = tokenize(inner, request.prompt).await?;
    let sampling = &request.sampling;
    truncate(&mut ids, request.truncation, sampling, inner.info.max_model_len);
    let max_tokens = check_length(ids.len(), sampling, inner.info.max_model_len)?;
    if let Some(alternatives) = sampling.prompt_logprobs {
        inner
            .context
            .limits
            .check_logprob_budget("prompt_logprobs", ids.len() as u64, alternatives)?;
    }
    let bad_words = tokenize_bad_words(inner, &sampling.bad_words).await?;
    let id = Uuid::new_v4();
    let message = GenerateRequest {
        request_id: format!("{}-{}", request.request_id, id.simple()),
        prompt_token_ids: ids,
        n: sampling.n,
        sampling: Some(wire::sampling_params(
            sampling,
            sampling.seed.unwrap_or_else(|| inner.seeds.next()),
            bad_words,
        )),
        stop: Some(wire::stop_conditions(
            sampling,
            max_tokens,
            inner.text.eos_token_ids(),
        )),
        priority: request.priority,
        cache_salt: request.cache_salt,
        prompt_logprobs: sampling.prompt_logprobs,
        timeline: request.timeline,
        traceparent: request.traceparent,
        // Ours runs too, for an engine that has lost its.
        timeout_ms: request.timeout.map_or(0, whole_millis),
        // A gateway adds them.
        ..GenerateRequest::default()
    };
    Ok(Prepared {
        request: message,
        stop: request.sampling.stop,
        include_stop_str_in_output: request.sampling.include_stop_str_in_output,
        skip_special_tokens: request.sampling.skip_special_tokens,
        prompt_text: text,
        arrival: request.arrival,
        deadline: request.timeout.map(|timeout| {
            let left = timeout.saturating_sub(request.arrival.elapsed());
            tokio::time::Instant::now() + left
        }),
    })
}

/// At least 1, because 0 is no limit.
fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Turns a prompt into token ids, beside the async threads if it is long.
pub(super) async fn tokenize(inner: &Arc<Inner>, prompt: Prompt) -> Result<Tokenized, ApiError> {
    match prompt {
        Prompt::Tokens(ids) => Ok(Tokenized { ids, text: None }),
        Prompt::Text {
            text,
            add_special_tokens,
        } if text.len() <= INLINE_BYTES => encode_text(&inner.text, text, add_special_tokens),
        Prompt::Text {
            text,
            add_special_tokens,
        } => blocking(inner, move |assets| encode_text(assets, text, add_special_tokens)).await,
        Prompt::Chat(chat) => blocking(inner, move |assets| encode_chat(assets, &chat)).await,
    }
}

fn encode_text(assets: &Text, text: String, add_special_tokens: bool) -> Result<Tokenized, ApiError> {
    let ids = assets
        .encode(&text, add_special_tokens)
        .map_err(|error| text_error("prompt", &error))?;
    Ok(Tokenized {
        ids,
        text: Some(text),
    })
}

fn encode_chat(assets: &Text, chat: &kvasir_text::ChatRequest) -> Result<Tokenized, ApiError> {
    let refused = |error: TextError| text_error("messages", &error);
    let rendered = assets.render_chat(chat).map_err(refused)?;
    let ids = assets.encode_chat(&rendered).map_err(refused)?;
    Ok(Tokenized {
        ids,
        text: Some(rendered.text().to_owned()),
    })
}

async fn blocking<T: Send + 'static>(
    inner: &Arc<Inner>,
    work: impl FnOnce(&Text) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = inner.text_permits.acquire().await;
    let text = Arc::clone(&inner.text);
    let done = tokio::task::spawn_blocking(move || work(&text)).await;
    drop(permit);
    done.unwrap_or_else(|_| {
        Err(ApiError::new(
            ErrorKind::Internal,
            "the text could not be processed",
        ))
    })
}

/// Everything that can be wrong with a text came with the request.
fn text_error(param: &str, error: &TextError) -> ApiError {
    ApiError::new(ErrorKind::Value, error.to_string()).with_param(param)
}

/// Refuses text that can't fit, before any work is done on it. Text whose tokens are only counted, or cut off afterwards, needn't
/// fit, but has a bound too: tokenizing may take seconds and hundreds of bytes of memory per byte.
pub(super) fn check_size(inner: &Inner, prompt: &Prompt, must_fit: bool) -> Result<(), ApiError> {
    let (param, bytes) = match prompt {
        Prompt::Text { text, .. } => ("prompt", text.len()),
        Prompt::Chat(chat) => ("messages", chat.messages.iter().map(content_bytes).sum()),
        Prompt::Tokens(_) => return Ok(()),
    };
    let context_bytes = inner
        .max_token_bytes
        .max(MIN_BYTES_PER_TOKEN)
        .saturating_mul(inner.info.max_model_len as usize);
    let bound = if must_fit {
        context_bytes
    } else {
        context_bytes.max(MIN_UNFIT_BYTES)
    };
    if bytes <= bound {
        return Ok(());
    }
    let max_model_len = inner.info.max_model_len;
    let message = if must_fit {
        format!(
            "the prompt has {bytes} bytes; the model's context of {max_model_len} tokens holds at most {bound}"
        )
    } else {
        format!("the prompt has {bytes} bytes; at most {bound} are tokenized at once")
    };
    Err(ApiError::value(param, format_args!("{bytes} bytes"), &message).because(PROMPT_TOO_LONG))
}

/// Bytes of what a message says.
fn content_bytes(message: &Value) -> usize {
    match &message["content"] {
        Value::String(text) => text.len(),
        Value::Array(parts) => parts
            .iter()
            .map(|part| part["text"].as_str().map_or(0, str::len))
            .sum(),
        _ => 0,
    }
}

fn truncate(ids: &mut Vec<u32>, truncation: Option<Truncation>, sampling: &Sampling, max_model_len: u32) {
    let Some(Truncation {
        max_tokens,
        from_left,
    }) = truncation
    else {
        return;
    };
    let room = max_model_len
        .saturating_sub(sampling.max_tokens.unwrap_or(1).max(1))
        .max(1);
    let keep = max_tokens.unwrap_or(room) as usize;
    if ids.len() > keep && from_left {
        ids.drain(..ids.len() - keep);
    } else {
        ids.truncate(keep);
    }
}

/// How many tokens may be generated behind a prompt of this length.
fn check_length(prompt_len: usize, sampling: &Sampling, max_model_len: u32) -> Result<u32, ApiError> {
    if prompt_len == 0 {
        return Err(ApiError::value("prompt", "[]", "the prompt has no tokens"));
    }
    let room = u32::try_from(prompt_len)
        .ok()
        .and_then(|len| max_model_len.checked_sub(len))
        .filter(|&room| room > 0);
    let Some(room) = room else {
        let message = format!(
            "the prompt has {prompt_len} tokens; with at least one output token it exceeds the model's context of \
             {max_model_len} tokens"
        );
        let error = ApiError::value("prompt", format_args!("{prompt_len} tokens"), &message);
        return Err(error.because(PROMPT_TOO_LONG));
    };
    // Zero output tokens (only an echo) still need one step, whose token is dropped.
    let max_tokens = sampling.max_tokens.unwrap_or(room).clamp(1, room);
    if sampling.min_tokens > max_tokens {
        let message = format!("min_tokens must not exceed the {max_tokens} tokens that can be generated");
        return Err(ApiError::value("min_tokens", sampling.min_tokens, &message));
    }
    Ok(max_tokens)
}

/// Each word as it is and behind a space, since tokenizers spell the two differently.
async fn tokenize_bad_words(inner: &Arc<Inner>, words: &[String]) -> Result<Vec<TokenSequence>, ApiError> {
    if words.is_empty() {
        return Ok(Vec::new());
    }
    let words = words.to_vec();
    blocking(inner, move |text| {
        let mut sequences: Vec<Vec<u32>> = Vec::new();
        for word in &words {
            for spelled in [word.trim_start().to_owned(), format!(" {}", word.trim_start())] {
                let ids = text
                    .encode(&spelled, false)
                    .map_err(|error| text_error("bad_words", &error))?;
                if !ids.is_empty() && !sequences.contains(&ids) {
                    sequences.push(ids);
                }
            }
        }
        if sequences.len() > MAX_BAD_WORD_SEQUENCES {
            let message = format!("bad_words become more than {MAX_BAD_WORD_SEQUENCES} token sequences");
            return Err(ApiError::value("bad_words", sequences.len(), &message));
        }
        Ok(sequences
            .into_iter()
            .map(|token_ids| TokenSequence { token_ids })
            .collect())
    })
    .await
}
