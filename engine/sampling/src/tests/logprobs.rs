//! Log probabilities against a log-softmax in `f64`.

use std::sync::Arc;

use proptest::prelude::*;

use super::{greedy, hostile_logit, logits, next};
use crate::{MIN_LOGPROB, SamplingParams, Scratch, SequenceSampler, TokenLogprobs, token_logprobs};

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| (f64::from(logit) - f64::from(max)).exp())
        .sum();
    logits
        .iter()
        .map(|&logit| f64::from(logit) - f64::from(max) - sum.ln())
        .collect()
}

#[test]
fn two_equal_logits_have_a_probability_of_one_half_each() {
    let logprobs = token_logprobs(&[1.0, 1.0], 1, 2);
    let half = 0.5_f32.ln();
    let expected = TokenLogprobs {
        token: 1,
        logprob: half,
        rank: 2,
        top: vec![(0, half), (1, half)],
    };
    assert_eq!(logprobs, expected);
}

#[test]
fn no_alternatives_still_gives_the_token() {
    let logprobs = token_logprobs(&[0.0, 0.0], 0, 0);
    assert_eq!((logprobs.top.len(), logprobs.rank), (0, 1));
}

#[test]
fn more_alternatives_than_tokens_give_all_tokens() {
    let ids: Vec<u32> = token_logprobs(&[1.0, 3.0, 2.0], 0, 20)
        .top
        .iter()
        .map(|&(id, _)| id)
        .collect();
    assert_eq!(ids, [1, 2, 0]);
}

#[test]
fn impossible_tokens_have_the_lowest_log_probability_and_not_minus_infinity() {
    let logprobs = token_logprobs(&[0.0, f32::NEG_INFINITY, f32::NAN], 1, 3);
    assert_eq!((logprobs.logprob, logprobs.rank), (MIN_LOGPROB, 2));
    assert_eq!(logprobs.top, [(0, 0.0), (1, MIN_LOGPROB), (2, MIN_LOGPROB)]);
    assert_eq!(token_logprobs(&[0.0, -1e30], 1, 0).logprob, MIN_LOGPROB);
}

#[test]
fn a_token_outside_of_the_vocabulary_comes_last() {
    let logprobs = token_logprobs(&[0.0, 1.0], 5, 1);
    assert_eq!((logprobs.logprob, logprobs.rank), (MIN_LOGPROB, 3));
}

#[test]
fn an_infinite_logit_takes_all_the_probability() {
    let logprobs = token_logprobs(&[f32::INFINITY, 7.0], 0, 2);
    assert_eq!(logprobs.top, [(0, 0.0), (1, MIN_LOGPROB)]);
}

#[test]
fn large_logits_lose_nothing() {
    let shifted: Vec<f32> = [1.0_f32, 2.0, 3.0].iter().map(|logit| logit + 1e4).collect();
    let (near, far) = (
        token_logprobs(&[1.0, 2.0, 3.0], 0, 3),
        token_logprobs(&shifted, 0, 3),
    );
    assert_eq!(near, far);
}

#[test]
fn the_sampler_reports_the_raw_distribution_whatever_the_parameters_are() {
    let logits = logits(100);
    let params = SamplingParams {
        logprobs: Some(3),
        temperature: 0.3,
        top_k: 2,
        logit_bias: vec![(17, 100.0)],
        repetition_penalty: 1.7,
        ..SamplingParams::default()
    };
    let mut sampler = SequenceSampler::new(Arc::new(params), &[3, 4, 5], logits.len());
    let choice = next(&mut sampler, &logits, &mut Scratch::new());
    assert_eq!(choice.token, 17);
    assert_eq!(choice.logprobs, Some(token_logprobs(&logits, 17, 3)));
}

#[test]
fn log_probabilities_are_given_only_if_asked_for() {
    let mut sampler = SequenceSampler::new(Arc::new(greedy()), &[], 2);
    assert_eq!(
        next(&mut sampler, &[0.0, 1.0], &mut Scratch::new()).logprobs,
        None
    );
}

proptest! {
    #[test]
    fn log_probabilities_follow_the_log_softmax(
        logits in proptest::collection::vec(prop_oneof![3 => -30.0_f32..30.0, 1 => (-2_i8..3).prop_map(f32::from)], 1..300),
        token in any::<prop::sample::Index>(),
        top in 0_u32..25,
    ) {
        let token = token.index(logits.len()) as u32;
        let exact = log_softmax(&logits);
        let found = token_logprobs(&logits, token, top);
        let is_close = |id: u32, logprob: f32| (f64::from(logprob) - exact[id as usize]).abs() < 1e-5;
        prop_assert!(is_close(token, found.logprob), "{} for {}", found.logprob, exact[token as usize]);
        prop_assert_eq!(found.top.len(), (top as usize).min(logits.len()));
        prop_assert!(found.top.iter().all(|&(id, logprob)| is_close(id, logprob)));
        let mut ranked: Vec<u32> = (0..logits.len() as u32).collect();
        ranked.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        prop_assert!(found.top.iter().map(|&(id, _)| id).eq(ranked.iter().copied().take(top as usize)));
        prop_assert_eq!(ranked[found.rank as usize - 1], token);
    }

    #[test]
    fn log_probabilities_are_never_nan_positive_or_below_the_floor(
        logits in proptest::collection::vec(hostile_logit(), 0..40),
        token in 0_u32..50,
    ) {
        let found = token_logprobs(&logits, token, 50);
        let all = found.top.iter().map(|&(_, logprob)| logprob).chain([found.logprob]);
        for logprob in all {
            prop_assert!((MIN_LOGPROB..=0.0).contains(&logprob), "{} from {:?}", logprob, logits);
        }
    }
}
