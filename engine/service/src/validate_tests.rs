//! What is let through, and how it is put; `tests/support/hostile.rs` has what is refused.

use super::*;

fn model() -> ModelInfo {
    ModelInfo {
        vocab_size: 100,
        max_model_len: 64,
        max_num_seqs: 8,
        max_logprobs: 5,
        ..ModelInfo::default()
    }
}

fn request() -> GenerateRequest {
    GenerateRequest {
        request_id: "r".to_owned(),
        prompt_token_ids: vec![1, 2, 3],
        sampling: Some(types::SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            ..types::SamplingParams::default()
        }),
        stop: Some(types::StopConditions {
            max_tokens: 4,
            ..types::StopConditions::default()
        }),
        ..GenerateRequest::default()
    }
}

fn sampling(change: impl FnOnce(&mut types::SamplingParams)) -> SamplingParams {
    let mut request = request();
    change(request.sampling.as_mut().unwrap());
    valid(request).sampling
}

fn valid(request: GenerateRequest) -> ValidRequest {
    validate(request, &model(), CacheRoot([0; 32])).unwrap().1
}

fn param(request: GenerateRequest) -> String {
    validate(request, &model(), CacheRoot([0; 32])).unwrap_err().param
}

#[test]
fn an_absent_n_is_one() {
    assert_eq!(valid(GenerateRequest { n: 0, ..request() }).n, 1);
}

#[test]
fn the_longest_prompt_leaves_room_for_one_token() {
    assert_eq!(
        valid(GenerateRequest {
            prompt_token_ids: vec![1; 63],
            ..request()
        })
        .prompt
        .len(),
        63
    );
    assert_eq!(
        param(GenerateRequest {
            prompt_token_ids: vec![1; 64],
            ..request()
        }),
        "prompt_token_ids"
    );
}

#[test]
fn tiny_temperatures_are_greedy_or_raised() {
    for (given, used) in [
        (0.0, 0.0),
        (9e-6, 0.0),
        (1e-5, 0.01),
        (0.005, 0.01),
        (0.02, 0.02),
        (2.0, 2.0),
    ] {
        assert_eq!(
            sampling(|params| params.temperature = given).temperature,
            used,
            "{given}"
        );
    }
}

#[test]
fn a_negative_zero_is_zero() {
    let params = sampling(|params| {
        params.temperature = -0.0;
        params.min_p = -0.0;
    });
    assert_eq!((params.temperature, params.min_p), (0.0, 0.0));
}

#[test]
fn a_top_k_of_the_whole_vocabulary_is_off() {
    for (given, used) in [(0, 0), (99, 99), (100, 0), (u32::MAX, 0)] {
        assert_eq!(sampling(|params| params.top_k = given).top_k, used, "{given}");
    }
}

#[test]
fn repeated_ids_are_kept_once() {
    let mut request = request();
    let stop = request.stop.as_mut().unwrap();
    stop.eos_token_ids = vec![7, 7];
    stop.stop_token_ids = vec![9, 8, 9];
    request.sampling.as_mut().unwrap().allowed_token_ids = vec![5, 4, 5];
    let valid = valid(request);
    assert_eq!(
        (valid.stop.eos_token_ids, valid.stop.stop_token_ids),
        (vec![7], vec![8, 9])
    );
    assert_eq!(valid.sampling.allowed_token_ids, [4, 5]);
    assert_eq!(valid.sampling.stop_token_ids, [7, 8, 9]);
}

#[test]
fn the_edges_of_every_range_are_let_through() {
    sampling(|params| {
        params.top_p = f32::MIN_POSITIVE;
        params.min_p = 1.0;
        params.presence_penalty = -2.0;
        params.frequency_penalty = 2.0;
        params.repetition_penalty = f32::MAX;
        params.logprobs = Some(5);
        params.logit_bias = vec![
            types::LogitBias {
                token_id: 0,
                bias: -100.0,
            },
            types::LogitBias {
                token_id: 99,
                bias: 100.0,
            },
        ];
        params.bad_words = vec![types::TokenSequence {
            token_ids: vec![1; MAX_BAD_WORD_TOKENS],
        }];
    });
    let mut longest = request();
    longest.request_id = "x".repeat(MAX_REQUEST_ID_BYTES);
    longest.cache_salt = "x".repeat(MAX_CACHE_SALT_BYTES);
    longest.prompt_logprobs = Some(5);
    longest.n = 8;
    longest.stop.as_mut().unwrap().min_tokens = 4;
    valid(longest);
}

#[test]
fn bad_words_that_forbid_every_allowed_token_are_refused() {
    let mut request = request();
    let params = request.sampling.as_mut().unwrap();
    params.allowed_token_ids = vec![1, 2];
    params.bad_words = [vec![1], vec![9, 2]]
        .into_iter()
        .map(|token_ids| types::TokenSequence { token_ids })
        .collect();
    assert_eq!(param(request.clone()), "allowed_token_ids");
    request.sampling.as_mut().unwrap().bad_words.pop();
    valid(request);
}
