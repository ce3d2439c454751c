//! Nothing a model or a client can give makes the sampler panic or choose what is forbidden.

use std::sync::Arc;

use proptest::prelude::*;

use super::{greedy, hostile_logit, next, sample};
use crate::{SamplingParams, Scratch, SequenceSampler};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

#[test]
fn nan_is_never_chosen_while_there_is_a_number() {
    let logits = [NAN, -1e30, NAN];
    assert_eq!(sample(greedy(), &[], &logits, 1), [1]);
    assert_eq!(sample(SamplingParams::default(), &[], &logits, 20), [1; 20]);
    let filtered = SamplingParams {
        top_k: 2,
        top_p: 0.5,
        ..SamplingParams::default()
    };
    assert_eq!(sample(filtered, &[], &logits, 20), [1; 20]);
}

#[test]
fn infinity_is_chosen_for_certain_and_several_share() {
    assert_eq!(
        sample(SamplingParams::default(), &[], &[0.0, INF, 9.0], 20),
        [1; 20]
    );
    let draws = sample(SamplingParams::default(), &[], &[INF, 1.0, INF], 100);
    assert!(draws.contains(&0) && draws.contains(&2) && !draws.contains(&1));
}

#[test]
fn with_nothing_left_the_lowest_permitted_id_is_chosen() {
    for logits in [[f32::NEG_INFINITY; 4], [NAN; 4]] {
        for params in [
            greedy(),
            SamplingParams::default(),
            SamplingParams {
                top_p: 0.5,
                ..SamplingParams::default()
            },
        ] {
            assert_eq!(sample(params.clone(), &[], &logits, 1), [0]);
            let allowed = SamplingParams {
                allowed_token_ids: vec![3, 2],
                ..params.clone()
            };
            assert_eq!(sample(allowed, &[], &logits, 1), [2]);
            let banned = SamplingParams {
                bad_words: vec![vec![0]],
                stop_token_ids: vec![1],
                min_tokens: 1,
                ..params
            };
            assert_eq!(sample(banned, &[], &logits, 1), [2]);
        }
    }
}

#[test]
fn when_all_allowed_ids_are_forbidden_the_lowest_allowed_one_is_chosen() {
    let params = SamplingParams {
        allowed_token_ids: vec![3, 2],
        bad_words: vec![vec![2], vec![3]],
        ..greedy()
    };
    assert_eq!(sample(params, &[], &[1.0; 5], 1), [2]);
}

#[test]
fn an_empty_vocabulary_gives_token_zero() {
    assert_eq!(sample(SamplingParams::default(), &[1], &[], 2), [0, 0]);
}

#[test]
fn extreme_temperatures_give_a_flat_distribution_or_the_best_token() {
    let logits = [1.0, 2.0, f32::NEG_INFINITY];
    let hot = sample(
        SamplingParams {
            temperature: INF,
            ..SamplingParams::default()
        },
        &[],
        &logits,
        400,
    );
    assert!(!hot.contains(&2));
    assert!(
        (150..250).contains(&hot.iter().filter(|&&token| token == 0).count()),
        "{hot:?}"
    );
    for temperature in [NAN, -1.0] {
        assert_eq!(
            sample(
                SamplingParams {
                    temperature,
                    ..SamplingParams::default()
                },
                &[],
                &logits,
                5
            ),
            [1; 5]
        );
    }
}

prop_compose! {
    /// Validated or not: the edge checks ranges, the sampler must survive without.
    fn any_params()(
        temperature in prop_oneof![Just(0.0_f32), 0.0_f32..2.0, any::<f32>()],
        top_p in prop_oneof![Just(1.0_f32), 0.0_f32..1.0, any::<f32>()],
        top_k in prop_oneof![Just(0_u32), 1_u32..50, any::<u32>()],
        min_p in prop_oneof![Just(0.0_f32), 0.0_f32..1.0, any::<f32>()],
        penalties in (any::<f32>(), -2.0_f32..2.0, prop_oneof![Just(1.0_f32), any::<f32>()]),
        seed in any::<u64>(),
        logit_bias in proptest::collection::vec((0_u32..40, prop_oneof![-100.0_f32..100.0, any::<f32>()]), 0..4),
        allowed_token_ids in proptest::collection::vec(0_u32..40, 0..4),
        bad_words in proptest::collection::vec(proptest::collection::vec(0_u32..40, 0..3), 0..3),
        logprobs in proptest::option::of(0_u32..30),
        stop_token_ids in proptest::collection::vec(0_u32..40, 0..3),
        min_tokens in 0_u32..3,
    ) -> SamplingParams {
        let (presence_penalty, frequency_penalty, repetition_penalty) = penalties;
        SamplingParams {
            temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty, seed, logit_bias,
            allowed_token_ids, bad_words, logprobs, stop_token_ids, min_tokens,
        }
    }
}

proptest! {
    #[test]
    fn any_parameters_and_logits_give_a_token_of_the_vocabulary_that_is_allowed(
        params in any_params(),
        logits in proptest::collection::vec(hostile_logit(), 1..40),
        prompt in proptest::collection::vec(0_u32..50, 0..5),
    ) {
        let params = Arc::new(params);
        let mut sampler = SequenceSampler::new(params.clone(), &prompt, logits.len());
        let mut scratch = Scratch::new();
        let exists = |id: &u32| (*id as usize) < logits.len();
        for _ in 0..4 {
            let choice = next(&mut sampler, &logits, &mut scratch);
            prop_assert!(exists(&choice.token));
            let mut allowed = params.allowed_token_ids.iter().filter(|id| exists(id)).peekable();
            prop_assert!(allowed.peek().is_none() || allowed.any(|&id| id == choice.token));
            prop_assert_eq!(choice.logprobs.is_some(), params.logprobs.is_some());
        }
    }
}
