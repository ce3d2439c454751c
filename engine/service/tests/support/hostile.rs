//! Requests that must be refused, with the field that the refusal names.

#![allow(clippy::too_many_lines, reason = "tables")]

use kvasir_client::types::{GenerateRequest, LogitBias, SamplingParams, StopConditions, TokenSequence};

use super::{VOCAB_SIZE, prompt, request};

/// The table, for an engine with the default options.
pub fn requests() -> Vec<(&'static str, GenerateRequest)> {
    let mut table = plain();
    table.extend(samplings().into_iter().map(|(field, sampling)| {
        (
            field,
            GenerateRequest {
                sampling: Some(sampling),
                ..base()
            },
        )
    }));
    table.extend(stops().into_iter().map(|(field, stop)| {
        (
            field,
            GenerateRequest {
                stop: Some(stop),
                ..base()
            },
        )
    }));
    table.push(("allowed_token_ids", no_choice()));
    table
}

fn base() -> GenerateRequest {
    request("hostile", &prompt(4, 0), 5)
}

fn plain() -> Vec<(&'static str, GenerateRequest)> {
    let with_prompt = |prompt: Vec<u32>| GenerateRequest {
        prompt_token_ids: prompt,
        ..base()
    };
    vec![
        (
            "request_id",
            GenerateRequest {
                request_id: String::new(),
                ..base()
            },
        ),
        (
            "request_id",
            GenerateRequest {
                request_id: "x".repeat(10_000),
                ..base()
            },
        ),
        ("prompt_token_ids", with_prompt(vec![])),
        ("prompt_token_ids", with_prompt(vec![VOCAB_SIZE])),
        ("prompt_token_ids", with_prompt(vec![1, u32::MAX, 1])),
        ("prompt_token_ids", with_prompt(vec![1; 100_000])),
        // More than a message may have.
        ("prompt_token_ids", with_prompt(vec![1; 20 << 20])),
        ("n", GenerateRequest { n: 65, ..base() }),
        (
            "n",
            GenerateRequest {
                n: u32::MAX,
                ..base()
            },
        ),
        (
            "sampling",
            GenerateRequest {
                sampling: None,
                ..base()
            },
        ),
        ("stop", GenerateRequest { stop: None, ..base() }),
        (
            "cache_salt",
            GenerateRequest {
                cache_salt: "x".repeat(100_000),
                ..base()
            },
        ),
        (
            "prompt_logprobs",
            GenerateRequest {
                prompt_logprobs: Some(21),
                ..base()
            },
        ),
        (
            "prompt_logprobs",
            GenerateRequest {
                prompt_logprobs: Some(u32::MAX),
                ..base()
            },
        ),
        // Allowed by themselves, too much together.
        (
            "prompt_logprobs",
            GenerateRequest {
                prompt_logprobs: Some(20),
                ..with_prompt(vec![1; 60_000])
            },
        ),
    ]
}

fn samplings() -> Vec<(&'static str, SamplingParams)> {
    let base = || base().sampling.unwrap_or_default();
    let mut table = Vec::new();
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1, 2.1] {
        table.push((
            "temperature",
            SamplingParams {
                temperature: value,
                ..base()
            },
        ));
    }
    for value in [f32::NAN, f32::INFINITY, 0.0, -1.0, 1.1] {
        table.push((
            "top_p",
            SamplingParams {
                top_p: value,
                ..base()
            },
        ));
    }
    for value in [f32::NAN, f32::NEG_INFINITY, -0.1, 1.1] {
        table.push((
            "min_p",
            SamplingParams {
                min_p: value,
                ..base()
            },
        ));
    }
    for value in [f32::NAN, f32::INFINITY, -2.1, 2.1] {
        table.push((
            "presence_penalty",
            SamplingParams {
                presence_penalty: value,
                ..base()
            },
        ));
        table.push((
            "frequency_penalty",
            SamplingParams {
                frequency_penalty: value,
                ..base()
            },
        ));
    }
    for value in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        table.push((
            "repetition_penalty",
            SamplingParams {
                repetition_penalty: value,
                ..base()
            },
        ));
    }
    for entries in [
        vec![(VOCAB_SIZE, 1.0)],
        vec![(99_999_999, 1.0)],
        vec![(1, f32::NAN)],
        vec![(1, f32::INFINITY)],
        vec![(1, 100.1)],
        vec![(1, -100.1)],
        vec![(1, 1.0), (2, 1.0), (1, 2.0)],
    ] {
        let logit_bias = entries
            .into_iter()
            .map(|(token_id, bias)| LogitBias { token_id, bias })
            .collect();
        table.push(("logit_bias", SamplingParams { logit_bias, ..base() }));
    }
    for allowed_token_ids in [vec![VOCAB_SIZE], vec![1, u32::MAX]] {
        table.push((
            "allowed_token_ids",
            SamplingParams {
                allowed_token_ids,
                ..base()
            },
        ));
    }
    for words in [
        vec![vec![]],
        vec![vec![1], vec![VOCAB_SIZE]],
        vec![vec![1]; 1025],
        vec![vec![1; 17_000]],
        (0..VOCAB_SIZE).map(|token| vec![token]).collect(),
    ] {
        let bad_words = words
            .into_iter()
            .map(|token_ids| TokenSequence { token_ids })
            .collect();
        table.push(("bad_words", SamplingParams { bad_words, ..base() }));
    }
    for logprobs in [Some(21), Some(u32::MAX)] {
        table.push(("logprobs", SamplingParams { logprobs, ..base() }));
    }
    table
}

fn stops() -> Vec<(&'static str, StopConditions)> {
    let base = || base().stop.unwrap_or_default();
    vec![
        (
            "max_tokens",
            StopConditions {
                max_tokens: 0,
                ..base()
            },
        ),
        (
            "min_tokens",
            StopConditions {
                min_tokens: 6,
                ..base()
            },
        ),
        (
            "min_tokens",
            StopConditions {
                min_tokens: u32::MAX,
                ..base()
            },
        ),
        (
            "eos_token_ids",
            StopConditions {
                eos_token_ids: vec![VOCAB_SIZE],
                ..base()
            },
        ),
        (
            "stop_token_ids",
            StopConditions {
                stop_token_ids: vec![u32::MAX],
                ..base()
            },
        ),
        (
            "stop_token_ids",
            StopConditions {
                stop_token_ids: vec![1; 2000],
                ..base()
            },
        ),
        (
            "stop_token_ids",
            StopConditions {
                eos_token_ids: vec![1; 2000],
                ..base()
            },
        ),
    ]
}

/// Only the stop token is allowed, and it is masked until two tokens exist.
fn no_choice() -> GenerateRequest {
    GenerateRequest {
        sampling: Some(SamplingParams {
            allowed_token_ids: vec![3],
            ..base().sampling.unwrap_or_default()
        }),
        stop: Some(StopConditions {
            max_tokens: 5,
            min_tokens: 2,
            eos_token_ids: vec![3],
            stop_token_ids: vec![],
        }),
        ..base()
    }
}
