//! Checks everything that comes from a client. Pure.
//!
//! The engine trusts no edge: whatever passes here can't make scheduler, sampler or executor fail. Ranges are those of vLLM's
//! `SamplingParams`. What depends on the state of the queue, or on the KV pool, is the scheduler's to refuse.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvasir_cache_key::CacheRoot;
use kvasir_client::invalid;
use kvasir_client::types::{self, Error, GenerateRequest, ModelInfo};
use kvasir_engine_core::{Micros, StopConditions, TokenId};
use kvasir_sampling::SamplingParams;

/// Longest request id on the wire, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 512;
/// Longest cache salt, in bytes.
const MAX_CACHE_SALT_BYTES: usize = 1024;
/// A digest of 64 bytes is the longest that gateways could make.
const MAX_TENANT_SALT_BYTES: usize = 64;
/// Version 00 of the W3C trace context has 55.
const MAX_TRACEPARENT_BYTES: usize = 64;
/// End-of-sequence and stop ids, together; each is compared with every token.
const MAX_STOP_IDS: usize = 1024;
/// Bad words, as vLLM, and their tokens: each is compared with the end of the output at every step.
const MAX_BAD_WORDS: usize = 1024;
const MAX_BAD_WORD_TOKENS: usize = 16 * 1024;
/// Log probabilities of one prompt, alternatives included: some 16 MB on the wire. Without a limit a long prompt with many
/// alternatives asks for gigabytes (local-inference-lab/vllm#264).
const MAX_PROMPT_LOGPROBS: u64 = 1 << 20;
/// Temperatures below the first are greedy; the second is the lowest that others get, as vLLM.
const GREEDY_TEMPERATURE: f32 = 1e-5;
const MIN_TEMPERATURE: f32 = 0.01;

/// A request that can be run.
#[derive(Clone, Debug)]
pub(crate) struct ValidRequest {
    pub(crate) prompt: Arc<[TokenId]>,
    /// Sequences, at least 1.
    pub(crate) n: u32,
    /// Of sequence 0; the others draw with the seeds that follow.
    pub(crate) sampling: SamplingParams,
    pub(crate) stop: StopConditions,
    pub(crate) priority: i64,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) cache_root: CacheRoot,
    /// Whether the timeline of each sequence lists its entries.
    pub(crate) timeline: bool,
    /// From when the scheduler takes it until it is too late.
    pub(crate) timeout: Option<Micros>,
}

/// Gives the request's id and the rest of it, checked.
///
/// # Errors
/// INVALID_REQUEST with the field at fault, its value and the limit.
pub(crate) fn validate(
    request: GenerateRequest,
    model: &ModelInfo,
    cache_root: CacheRoot,
) -> Result<(String, ValidRequest), Error> {
    let GenerateRequest {
        request_id,
        prompt_token_ids,
        n,
        sampling,
        stop,
        priority,
        cache_salt,
        prompt_logprobs,
        timeline,
        tenant_salt,
        traceparent,
        timeout_ms,
    } = request;
    between("request_id", "bytes", request_id.len(), 1, MAX_REQUEST_ID_BYTES)?;
    between("cache_salt", "bytes", cache_salt.len(), 0, MAX_CACHE_SALT_BYTES)?;
    between(
        "tenant_salt",
        "bytes",
        tenant_salt.len(),
        0,
        MAX_TENANT_SALT_BYTES,
    )?;
    between(
        "traceparent",
        "bytes",
        traceparent.len(),
        0,
        MAX_TRACEPARENT_BYTES,
    )?;
    let n = n.max(1);
    between("n", "sequences", n as usize, 1, model.max_num_seqs as usize)?;
    check_prompt(&prompt_token_ids, prompt_logprobs, model)?;
    let stop = stop_conditions(
        stop.ok_or_else(|| invalid("stop", "the message is missing"))?,
        model,
    )?;
    let sampling = sampling.ok_or_else(|| invalid("sampling", "the message is missing"))?;
    let sampling = sampling_params(sampling, &stop, model)?;
    let prompt = prompt_token_ids.into();
    Ok((
        request_id,
        ValidRequest {
            prompt,
            n,
            sampling,
            stop,
            priority,
            prompt_logprobs,
            cache_root,
            timeline,
            timeout: (timeout_ms > 0).then(|| Micros(timeout_ms.saturating_mul(1000))),
        },
    ))
}

fn check_prompt(prompt: &[TokenId], logprobs: Option<u32>, model: &ModelInfo) -> Result<(), Error> {
    // One token of output has to fit.
    between(
        "prompt_token_ids",
        "tokens",
        prompt.len(),
        1,
        (model.max_model_len as usize).saturating_sub(1),
    )?;
    in_vocabulary("prompt_token_ids", prompt, model)?;
    let Some(alternatives) = logprobs else {
        return Ok(());
    };
    check_logprobs("prompt_logprobs", alternatives, model)?;
    let total = prompt.len() as u64 * (u64::from(alternatives) + 1);
    if total > MAX_PROMPT_LOGPROBS {
        let message = format!(
            "{} prompt tokens with {alternatives} alternatives each are {total} log probabilities, the limit is {MAX_PROMPT_LOGPROBS}",
            prompt.len()
        );
        return Err(invalid("prompt_logprobs", message));
    }
    Ok(())
}

fn stop_conditions(stop: types::StopConditions, model: &ModelInfo) -> Result<StopConditions, Error> {
    let types::StopConditions {
        max_tokens,
        min_tokens,
        eos_token_ids,
        stop_token_ids,
    } = stop;
    if max_tokens == 0 {
        return Err(invalid("max_tokens", "max_tokens is 0, it must be at least 1"));
    }
    if min_tokens > max_tokens {
        let message = format!("min_tokens is {min_tokens}, it must be at most max_tokens, {max_tokens}");
        return Err(invalid("min_tokens", message));
    }
    between(
        "stop_token_ids",
        "ids",
        eos_token_ids.len().saturating_add(stop_token_ids.len()),
        0,
        MAX_STOP_IDS,
    )?;
    in_vocabulary("eos_token_ids", &eos_token_ids, model)?;
    in_vocabulary("stop_token_ids", &stop_token_ids, model)?;
    Ok(StopConditions {
        max_tokens,
        min_tokens,
        eos_token_ids: distinct(eos_token_ids),
        stop_token_ids: distinct(stop_token_ids),
    })
}

fn sampling_params(
    params: types::SamplingParams,
    stop: &StopConditions,
    model: &ModelInfo,
) -> Result<SamplingParams, Error> {
    check_floats(&params)?;
    if let Some(alternatives) = params.logprobs {
        check_logprobs("logprobs", alternatives, model)?;
    }
    in_vocabulary("allowed_token_ids", &params.allowed_token_ids, model)?;
    let logit_bias = logit_bias(&params.logit_bias, model)?;
    let bad_words = bad_words(params.bad_words, model)?;
    let mut stop_token_ids = stop.eos_token_ids.clone();
    stop_token_ids.extend(&stop.stop_token_ids);
    let valid = SamplingParams {
        temperature: match params.temperature {
            t if t < GREEDY_TEMPERATURE => 0.0,
            t => t.max(MIN_TEMPERATURE),
        },
        top_p: params.top_p,
        top_k: if params.top_k >= model.vocab_size {
            0
        } else {
            params.top_k
        },
        min_p: params.min_p,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        repetition_penalty: params.repetition_penalty,
        seed: params.seed,
        logit_bias,
        allowed_token_ids: distinct(params.allowed_token_ids),
        bad_words,
        logprobs: params.logprobs,
        stop_token_ids: distinct(stop_token_ids),
        min_tokens: stop.min_tokens,
    };
    check_choice_remains(&valid, model)?;
    Ok(valid)
}

fn check_floats(params: &types::SamplingParams) -> Result<(), Error> {
    // A NaN is in no range.
    in_range(
        "temperature",
        params.temperature,
        (0.0..=2.0).contains(&params.temperature),
        "in [0, 2]",
    )?;
    in_range(
        "top_p",
        params.top_p,
        params.top_p > 0.0 && params.top_p <= 1.0,
        "in (0, 1]",
    )?;
    in_range(
        "min_p",
        params.min_p,
        (0.0..=1.0).contains(&params.min_p),
        "in [0, 1]",
    )?;
    for (name, value) in [
        ("presence_penalty", params.presence_penalty),
        ("frequency_penalty", params.frequency_penalty),
    ] {
        in_range(name, value, (-2.0..=2.0).contains(&value), "in [-2, 2]")?;
    }
    let repetition = params.repetition_penalty;
    in_range(
        "repetition_penalty",
        repetition,
        repetition > 0.0 && repetition.is_finite(),
        "finite and above 0",
    )
}

fn logit_bias(entries: &[types::LogitBias], model: &ModelInfo) -> Result<Vec<(TokenId, f32)>, Error> {
    let mut seen = BTreeSet::new();
    for entry in entries {
        in_vocabulary("logit_bias", &[entry.token_id], model)?;
        in_range(
            "logit_bias",
            entry.bias,
            (-100.0..=100.0).contains(&entry.bias),
            "in [-100, 100]",
        )?;
        if !seen.insert(entry.token_id) {
            return Err(invalid(
                "logit_bias",
                format!("token {} has two biases", entry.token_id),
            ));
        }
    }
    Ok(entries.iter().map(|entry| (entry.token_id, entry.bias)).collect())
}

fn bad_words(words: Vec<types::TokenSequence>, model: &ModelInfo) -> Result<Vec<Vec<TokenId>>, Error> {
    between("bad_words", "token sequences", words.len(), 0, MAX_BAD_WORDS)?;
    between(
        "bad_words",
        "tokens in all",
        words.iter().map(|word| word.token_ids.len()).sum(),
        0,
        MAX_BAD_WORD_TOKENS,
    )?;
    for word in &words {
        between(
            "bad_words",
            "tokens in a sequence",
            word.token_ids.len(),
            1,
            MAX_BAD_WORD_TOKENS,
        )?;
        in_vocabulary("bad_words", &word.token_ids, model)?;
    }
    Ok(words.into_iter().map(|word| word.token_ids).collect())
}

/// Some token can always be sampled, whatever was generated before. Bad words of several tokens each forbid one token
/// at a time, so each is counted as one.
fn check_choice_remains(params: &SamplingParams, model: &ModelInfo) -> Result<(), Error> {
    let mut forbidden: BTreeSet<TokenId> = params
        .bad_words
        .iter()
        .filter_map(|word| word.last().copied())
        .collect();
    if params.min_tokens > 0 {
        forbidden.extend(&params.stop_token_ids);
    }
    let (field, remains) = if params.allowed_token_ids.is_empty() {
        ("bad_words", forbidden.len() < model.vocab_size as usize)
    } else {
        (
            "allowed_token_ids",
            params
                .allowed_token_ids
                .iter()
                .any(|token| !forbidden.contains(token)),
        )
    };
    if remains {
        return Ok(());
    }
    Err(invalid(
        field,
        "allowed_token_ids, bad_words and min_tokens together leave no token that can be sampled",
    ))
}

fn check_logprobs(field: &str, alternatives: u32, model: &ModelInfo) -> Result<(), Error> {
    if alternatives <= model.max_logprobs {
        return Ok(());
    }
    Err(invalid(
        field,
        format!("{field} is {alternatives}, the limit is {}", model.max_logprobs),
    ))
}

fn in_vocabulary(field: &str, tokens: &[TokenId], model: &ModelInfo) -> Result<(), Error> {
    match tokens.iter().find(|&&token| token >= model.vocab_size) {
        None => Ok(()),
        Some(token) => {
            let message = format!(
                "token {token} is outside of the vocabulary, which has {} tokens",
                model.vocab_size
            );
            Err(invalid(field, message))
        }
    }
}

fn in_range(field: &str, value: f32, holds: bool, range: &str) -> Result<(), Error> {
    if holds {
        Ok(())
    } else {
        Err(invalid(field, format!("{field} is {value}, it must be {range}")))
    }
}

fn between(field: &str, what: &str, count: usize, min: usize, max: usize) -> Result<(), Error> {
    if (min..=max).contains(&count) {
        Ok(())
    } else {
        Err(invalid(
            field,
            format!("{field} has {count} {what}, it must be {min} to {max}"),
        ))
    }
}

fn distinct(tokens: Vec<TokenId>) -> Vec<TokenId> {
    tokens.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
