//! What the routes do.

mod chat;
mod chat_stream;
mod completion;
mod completion_stream;
mod conversation;
mod events;
mod info;
mod logprobs;
mod tokenize;

use std::time::Instant;

use kvasir_api::{ApiError, Common, Parsed, StreamOptions};

pub(crate) use chat::chat_completions;
pub(crate) use completion::completions;
pub use conversation::from_request as conversation;
pub(crate) use info::{dump, health, load, metrics, model, models, ready, server_info, version};
pub(crate) use tokenize::{detokenize, tokenize};

use crate::gate::{Call, is_usable_id};
use crate::host::Wanted;
use crate::pipeline::{Prompt, TextRequest};
use crate::state::{State, system_fingerprint, unix_seconds};

/// What every chunk of an answer repeats.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) system_fingerprint: String,
}

impl Head {
    /// `prefix` is that of the object kind; the rest is the client's id, or a random one.
    fn new(prefix: &str, call: &Call<'_>, common: &Common) -> Self {
        let body_id = common.request_id.as_deref().filter(|id| is_usable_id(id));
        let id = call.client_id.as_deref().or(body_id).unwrap_or(&call.id);
        Self {
            id: format!("{prefix}-{id}"),
            created: unix_seconds(),
            model: call.model.shown.clone(),
            system_fingerprint: system_fingerprint(call.pipeline.model_info()),
        }
    }
}

/// Puts the terms on which the client may use the model into the request.
fn agree(call: &Call<'_>, common: &mut Common) -> Result<(), ApiError> {
    let sampling = &mut common.sampling;
    // What the model's own defaults say isn't the client's wish.
    let default = call.pipeline.context().defaults.max_tokens;
    let terms = call.visit.terms(Wanted {
        model: &call.model.name,
        max_tokens: sampling.max_tokens.filter(|_| sampling.max_tokens != default),
        priority: call
            .priority
            .or((common.priority != 0).then_some(common.priority)),
    })?;
    sampling.max_tokens = match (sampling.max_tokens, terms.max_tokens) {
        (Some(wanted), Some(most)) => Some(wanted.min(most)),
        (wanted, most) => wanted.or(most),
    };
    common.priority = terms.priority;
    Ok(())
}

/// Refuses unknown fields where the server is strict.
fn check_unknown<T>(state: &State, parsed: &Parsed<T>) -> Result<(), ApiError> {
    match parsed.unknown.first() {
        Some(name) if state.config.strict => Err(ApiError::schema(
            name,
            format!("{name} is not a field of this request"),
        )),
        _ => Ok(()),
    }
}

/// What streams carry, with what the server forces.
fn stream_options(state: &State, options: StreamOptions) -> StreamOptions {
    if state.config.enable_force_include_usage {
        StreamOptions {
            include_usage: true,
            continuous_usage_stats: true,
        }
    } else {
        options
    }
}

/// The pipeline's request for one prompt.
fn text_request(state: &State, call: &Call<'_>, common: &Common, head: &Head, prompt: Prompt) -> TextRequest {
    let arrival: Instant = call.arrival;
    TextRequest {
        request_id: head.id.clone(),
        prompt,
        sampling: common.sampling.clone(),
        truncation: common.truncation,
        priority: common.priority,
        cache_salt: common.cache_salt.clone(),
        traceparent: call.traceparent.clone(),
        arrival,
        timeline: common.return_timeline,
        timeout: state.config.request_timeout,
    }
}
