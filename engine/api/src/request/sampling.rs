//! Sampling and stop fields, which chat and completion requests share.
//!
//! Ranges and their order are those of vLLM 0.32's `SamplingParams`: ranges are checked before greedy decoding resets
//! the filters, so `temperature: 0, top_p: 0` is still refused.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde::Deserialize;

use super::check_token_ids;
use crate::body::Body;
use crate::error::ApiError;
use crate::limits::{Context, Limits};

/// Below this a temperature means greedy decoding (vLLM's `_SAMPLING_EPS`).
const GREEDY_BELOW: f32 = 1e-5;
/// Smaller temperatures are raised to this, against overflow of the logits (vLLM's `_MAX_TEMP`).
const MIN_TEMPERATURE: f32 = 0.01;
/// Most entries of `bad_words` (vLLM 0.32).
const MAX_BAD_WORDS: usize = 128;

/// How tokens are chosen and where a sequence ends; every field resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Sequences per prompt, at least 1.
    pub n: u32,
    /// 0 is greedy, else [0.01, 2].
    pub temperature: f32,
    /// (0, 1]; 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// [0, 1]; 0 is off.
    pub min_p: f32,
    /// [-2, 2].
    pub presence_penalty: f32,
    /// [-2, 2].
    pub frequency_penalty: f32,
    /// > 0; 1 is off.
    pub repetition_penalty: f32,
    /// None draws a random one.
    pub seed: Option<u64>,
    /// Sorted by id, one entry per id, values clamped to [-100, 100].
    pub logit_bias: Vec<(u32, f32)>,
    /// Empty means all.
    pub allowed_token_ids: Vec<u32>,
    /// Not empty strings; at most 128.
    pub bad_words: Vec<String>,
    /// Output tokens, at least 1 (0 only where the route allows it); none means what the route says.
    pub max_tokens: Option<u32>,
    /// Stops are ignored until this many output tokens exist.
    pub min_tokens: u32,
    /// Not empty strings.
    pub stop: Vec<String>,
    /// Sorted, without duplicates.
    pub stop_token_ids: Vec<u32>,
    /// Whether a matched stop string stays in the text.
    pub include_stop_str_in_output: bool,
    /// Whether generation goes on after the end-of-sequence token.
    pub ignore_eos: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// Alternatives per output token; none means no log probabilities.
    pub logprobs: Option<u32>,
    /// Alternatives per prompt token; none means no log probabilities.
    pub prompt_logprobs: Option<u32>,
}

impl Sampling {
    /// Sampling with the given defaults and nothing asked for; what an empty request means.
    pub fn with_defaults(context: &Context) -> Self {
        let defaults = &context.defaults;
        let mut sampling = Self {
            n: 1,
            temperature: defaults.temperature,
            top_p: defaults.top_p,
            top_k: defaults.top_k,
            min_p: defaults.min_p,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: defaults.repetition_penalty,
            seed: None,
            logit_bias: Vec::new(),
            allowed_token_ids: Vec::new(),
            bad_words: Vec::new(),
            max_tokens: None,
            min_tokens: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            include_stop_str_in_output: false,
            ignore_eos: false,
            skip_special_tokens: true,
            logprobs: None,
            prompt_logprobs: None,
        };
        sampling.normalize_temperature();
        sampling
    }

    /// Takes the shared fields. `max_tokens` and `logprobs` differ by route and stay unset.
    pub(crate) fn take(body: &mut Body<'_>, context: &Context) -> Result<Self, ApiError> {
        let mut sampling = Self::with_defaults(context);
        sampling.take_distribution(body, context)?;
        sampling.take_token_lists(body, &context.limits)?;
        sampling.take_stops(body, &context.limits)?;
        sampling.n = match body.int("n")? {
            None => 1,
            Some(n @ 1..=16384) => n as u32,
            Some(n) => return Err(ApiError::value("n", n, "n must be in [1, 16384]")),
        };
        if body
            .int("best_of")?
            .is_some_and(|best_of| best_of != i64::from(sampling.n))
        {
            return Err(ApiError::new(
                crate::ErrorKind::Value,
                "best_of is supported only when it equals n: candidates are not ranked by this server",
            )
            .with_param("best_of"));
        }
        if sampling.n > 1 && sampling.temperature == 0.0 {
            return Err(ApiError::value(
                "n",
                sampling.n,
                "n must be 1 when using greedy sampling",
            ));
        }
        // Any 64-bit pattern is a seed; -1 is how vLLM clients say "none".
        sampling.seed = body
            .int("seed")?
            .filter(|&seed| seed != -1)
            .map(|seed| seed as u64);
        sampling.prompt_logprobs = take_logprobs(body, "prompt_logprobs", &context.limits)?;
        Ok(sampling)
    }

    fn take_distribution(&mut self, body: &mut Body<'_>, context: &Context) -> Result<(), ApiError> {
        let defaults = &context.defaults;
        self.presence_penalty = take_float(body, "presence_penalty", -2.0..=2.0)?.unwrap_or(0.0);
        self.frequency_penalty = take_float(body, "frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0);
        self.temperature = take_float(body, "temperature", 0.0..=2.0)?.unwrap_or(defaults.temperature);
        self.min_p = take_float(body, "min_p", 0.0..=1.0)?.unwrap_or(defaults.min_p);
        self.top_p = take_positive(body, "top_p", 1.0)?.unwrap_or(defaults.top_p);
        self.repetition_penalty =
            take_positive(body, "repetition_penalty", f32::MAX)?.unwrap_or(defaults.repetition_penalty);
        self.top_k = match body.int("top_k")? {
            None => defaults.top_k,
            Some(-1) => 0,
            Some(k) if k >= 0 => u32::try_from(k)
                .unwrap_or(u32::MAX)
                .min(context.limits.vocab_size),
            Some(k) => {
                return Err(ApiError::value(
                    "top_k",
                    k,
                    "top_k must be 0 or -1 (off), or at least 1",
                ));
            }
        };
        self.normalize_temperature();
        Ok(())
    }

    fn normalize_temperature(&mut self) {
        if self.temperature < GREEDY_BELOW {
            (self.temperature, self.top_p, self.top_k, self.min_p) = (0.0, 1.0, 0, 0.0);
        } else {
            self.temperature = self.temperature.max(MIN_TEMPERATURE);
        }
    }

    fn take_token_lists(&mut self, body: &mut Body<'_>, limits: &Limits) -> Result<(), ApiError> {
        self.logit_bias = take_logit_bias(body, limits.vocab_size)?;
        if let Some(ids) = take_token_ids(body, "allowed_token_ids", limits.vocab_size)? {
            if ids.is_empty() {
                return Err(ApiError::value(
                    "allowed_token_ids",
                    "[]",
                    "allowed_token_ids must not be empty",
                ));
            }
            self.allowed_token_ids = ids;
        }
        self.bad_words = body.take("bad_words")?.unwrap_or_default();
        if self.bad_words.len() > MAX_BAD_WORDS {
            let message = format!("bad_words has more than {MAX_BAD_WORDS} entries");
            return Err(ApiError::value("bad_words", self.bad_words.len(), &message));
        }
        if self.bad_words.iter().any(String::is_empty) {
            return Err(ApiError::value(
                "bad_words",
                "\"\"",
                "bad_words cannot contain an empty string",
            ));
        }
        Ok(())
    }

    fn take_stops(&mut self, body: &mut Body<'_>, limits: &Limits) -> Result<(), ApiError> {
        self.stop = match body.take("stop")? {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop],
            Some(OneOrMany::Many(stops)) => stops,
        };
        if self.stop.len() > limits.max_stop_strings {
            let message = format!("stop has more than {} strings", limits.max_stop_strings);
            return Err(ApiError::value("stop", self.stop.len(), &message));
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(ApiError::value(
                "stop",
                "\"\"",
                "stop cannot contain an empty string",
            ));
        }
        if let Some(stop) = self.stop.iter().find(|stop| stop.len() > limits.max_stop_bytes) {
            let message = format!("a stop string is longer than {} bytes", limits.max_stop_bytes);
            return Err(ApiError::value("stop", stop.len(), &message));
        }
        self.stop_token_ids = take_token_ids(body, "stop_token_ids", limits.vocab_size)?.unwrap_or_default();
        self.include_stop_str_in_output = body.flag("include_stop_str_in_output", false)?;
        self.ignore_eos = body.flag("ignore_eos", false)?;
        self.skip_special_tokens = body.flag("skip_special_tokens", true)?;
        // It only concerns slow Python tokenizers; ours has no such spaces.
        body.flag("spaces_between_special_tokens", true)?;
        self.min_tokens = match body.int("min_tokens")? {
            None => 0,
            Some(tokens) if (0..=i64::from(limits.max_model_len)).contains(&tokens) => tokens as u32,
            Some(tokens) => {
                let message = format!("min_tokens must be in [0, {}]", limits.max_model_len);
                return Err(ApiError::value("min_tokens", tokens, &message));
            }
        };
        Ok(())
    }

    /// Takes a field with a number of output tokens.
    pub(crate) fn take_max_tokens(
        body: &mut Body<'_>,
        name: &str,
        min: u32,
        limits: &Limits,
    ) -> Result<Option<u32>, ApiError> {
        match body.int(name)? {
            None => Ok(None),
            Some(tokens) if tokens < i64::from(min) => Err(ApiError::value(
                name,
                tokens,
                &format!("{name} must be at least {min}"),
            )),
            Some(tokens) if tokens > i64::from(limits.max_model_len) => {
                let message = format!(
                    "{name} is larger than the model's context of {}",
                    limits.max_model_len
                );
                Err(ApiError::value(name, tokens, &message))
            }
            Some(tokens) => Ok(Some(tokens as u32)),
        }
    }

    /// Checks what needs `max_tokens` and `logprobs`, once the route has set them.
    pub(crate) fn check(&self, prompts: usize, streamed: bool, limits: &Limits) -> Result<(), ApiError> {
        if let Some(max_tokens) = self.max_tokens
            && self.min_tokens > max_tokens
        {
            let message = format!("min_tokens must not exceed max_tokens={max_tokens}");
            return Err(ApiError::value("min_tokens", self.min_tokens, &message));
        }
        let sequences = prompts.saturating_mul(self.n as usize);
        if sequences > limits.max_sequences {
            let message = format!(
                "prompts x n is {sequences}, at most {} sequences are allowed",
                limits.max_sequences
            );
            return Err(ApiError::value("n", self.n, &message));
        }
        // A stream holds no more than one step's at a time.
        if let Some(alternatives) = self.logprobs.filter(|_| !streamed) {
            let tokens = self.max_tokens.unwrap_or(limits.max_model_len);
            limits.check_logprob_budget("logprobs", sequences as u64 * u64::from(tokens), alternatives)?;
        }
        Ok(())
    }
}

/// Takes a number of alternatives; -1 asks for as many as the server allows.
pub(crate) fn take_logprobs(
    body: &mut Body<'_>,
    name: &str,
    limits: &Limits,
) -> Result<Option<u32>, ApiError> {
    match body.int(name)? {
        None => Ok(None),
        Some(-1) => Ok(Some(limits.max_logprobs)),
        Some(count) if count < 0 => Err(ApiError::value(
            name,
            count,
            &format!("{name} must be -1 or at least 0"),
        )),
        Some(count) if count > i64::from(limits.max_logprobs) => {
            let message = format!("{name} is greater than the maximum of {}", limits.max_logprobs);
            Err(ApiError::value(name, count, &message))
        }
        Some(count) => Ok(Some(count as u32)),
    }
}

fn take_float(body: &mut Body<'_>, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
    let Some(value) = body.take::<f64>(name)? else {
        return Ok(None);
    };
    if range.contains(&(value as f32)) {
        return Ok(Some(value as f32));
    }
    let message = format!("{name} must be in [{}, {}]", range.start(), range.end());
    Err(ApiError::value(name, value, &message))
}

fn take_positive(body: &mut Body<'_>, name: &str, max: f32) -> Result<Option<f32>, ApiError> {
    let Some(value) = body.take::<f64>(name)? else {
        return Ok(None);
    };
    // The comparison is made after rounding: 1e-60 would become 0.
    if value as f32 > 0.0 && value as f32 <= max {
        return Ok(Some(value as f32));
    }
    let message = if max == f32::MAX {
        format!("{name} must be a finite number greater than zero")
    } else {
        format!("{name} must be in (0, {max}]")
    };
    Err(ApiError::value(name, value, &message))
}

fn take_token_ids(body: &mut Body<'_>, name: &str, vocab_size: u32) -> Result<Option<Vec<u32>>, ApiError> {
    let Some(ids) = body.take::<Vec<u32>>(name)? else {
        return Ok(None);
    };
    check_token_ids(name, &ids, vocab_size)?;
    Ok(Some(
        ids.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
    ))
}

fn take_logit_bias(body: &mut Body<'_>, vocab_size: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(entries) = body.take::<BTreeMap<String, f64>>("logit_bias")? else {
        return Ok(Vec::new());
    };
    let mut biases = BTreeMap::new();
    for (key, value) in entries {
        let Ok(id) = key.trim().parse::<i64>() else {
            return Err(ApiError::value(
                "logit_bias",
                key,
                "the keys of logit_bias must be token ids",
            ));
        };
        let Some(id) = u32::try_from(id).ok().filter(|&id| id < vocab_size) else {
            let message = format!("the token ids of logit_bias must be in [0, {vocab_size})");
            return Err(ApiError::value("logit_bias", id, &message));
        };
        biases.insert(id, value.clamp(-100.0, 100.0) as f32);
    }
    Ok(biases.into_iter().collect())
}

/// A string or a list of strings.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}
