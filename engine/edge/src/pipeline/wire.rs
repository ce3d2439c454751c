//! Between the API's values and the engine's messages.

use kvasir_api::{ApiError, ErrorKind, FinishReason, Sampling, SamplingDefaults, Timeline, TimelineEntry};
use kvasir_client::types::{
    self, ErrorCode, LogitBias, ModelInfo, SamplingParams, StopConditions, TimelineKind, TokenSequence,
};
use kvasir_text::GenerationDefaults;

pub(super) fn sampling_params(
    sampling: &Sampling,
    seed: u64,
    bad_words: Vec<TokenSequence>,
) -> SamplingParams {
    SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        repetition_penalty: sampling.repetition_penalty,
        seed,
        logit_bias: sampling
            .logit_bias
            .iter()
            .map(|&(token_id, bias)| LogitBias { token_id, bias })
            .collect(),
        allowed_token_ids: sampling.allowed_token_ids.clone(),
        bad_words,
        logprobs: sampling.logprobs,
    }
}

pub(super) fn stop_conditions(sampling: &Sampling, max_tokens: u32, eos: &[u32]) -> StopConditions {
    StopConditions {
        max_tokens,
        min_tokens: sampling.min_tokens,
        eos_token_ids: if sampling.ignore_eos {
            Vec::new()
        } else {
            eos.to_vec()
        },
        stop_token_ids: sampling.stop_token_ids.clone(),
    }
}

/// A timeline as answers show it. Entries of a newer engine's kinds are left out.
pub(super) fn timeline(request_id: &str, timeline: types::Timeline) -> Timeline {
    let mut num_entries_left_out = timeline.num_entries_left_out;
    let mut entries = Vec::with_capacity(timeline.entries.len());
    for entry in timeline.entries {
        let (event, has_tokens) = match entry.kind() {
            TimelineKind::Queued => ("queued", false),
            TimelineKind::Scheduled => ("scheduled", true),
            TimelineKind::Chunk => ("chunk", true),
            TimelineKind::FirstToken => ("first_token", false),
            TimelineKind::Preempted => ("preempted", false),
            TimelineKind::Resumed => ("resumed", true),
            TimelineKind::Finished => ("finished", true),
            TimelineKind::Unspecified => {
                num_entries_left_out += 1;
                continue;
            }
        };
        entries.push(TimelineEntry {
            event,
            at_us: entry.at_us,
            step: entry.step,
            tokens: has_tokens.then_some(entry.tokens),
        });
    }
    Timeline {
        request_id: request_id.to_owned(),
        entries,
        num_entries_left_out,
    }
}

/// The model's own defaults; values outside the ranges of requests are ignored.
pub(super) fn sampling_defaults(model: &GenerationDefaults, info: &ModelInfo) -> SamplingDefaults {
    let base = SamplingDefaults::default();
    let pick =
        |value: Option<f32>, default: f32, ok: fn(f32) -> bool| value.filter(|&v| ok(v)).unwrap_or(default);
    SamplingDefaults {
        temperature: pick(model.temperature, base.temperature, |v| (0.0..=2.0).contains(&v)),
        top_p: pick(model.top_p, base.top_p, |v| v > 0.0 && v <= 1.0),
        top_k: model.top_k.unwrap_or(base.top_k).min(info.vocab_size),
        min_p: pick(model.min_p, base.min_p, |v| (0.0..=1.0).contains(&v)),
        repetition_penalty: pick(model.repetition_penalty, base.repetition_penalty, |v| {
            v > 0.0 && v.is_finite()
        }),
        max_tokens: model
            .max_new_tokens
            .filter(|&tokens| tokens > 0)
            .map(|tokens| tokens.min(info.max_model_len)),
    }
}

/// What a client is told about an engine's error.
pub fn engine_error(error: &types::Error) -> ApiError {
    let kind = match error.code() {
        ErrorCode::InvalidRequest => ErrorKind::Value,
        ErrorCode::QueueFull => ErrorKind::Overloaded,
        ErrorCode::Draining | ErrorCode::Unavailable | ErrorCode::SlowClient => ErrorKind::Unavailable,
        ErrorCode::Deadline => ErrorKind::Timeout,
        ErrorCode::Internal | ErrorCode::Unspecified => ErrorKind::Internal,
    };
    let api_error = ApiError::new(kind, error.message.clone());
    if error.param.is_empty() {
        api_error
    } else {
        api_error.with_param(&error.param)
    }
}

pub(super) fn finish_reason(reason: types::FinishReason) -> FinishReason {
    match reason {
        types::FinishReason::Stop => FinishReason::Stop,
        types::FinishReason::Length => FinishReason::Length,
        types::FinishReason::Abort => FinishReason::Abort,
        types::FinishReason::Error | types::FinishReason::Unspecified => FinishReason::Error,
    }
}
