//! Allowed ids, `min_tokens`, bad words, logit bias.

use super::{greedy, logits, sample};
use crate::SamplingParams;

/// Falls with the id: greedy takes the lowest id that is left.
const FALLING: [f32; 6] = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0];

#[test]
fn only_allowed_ids_are_sampled() {
    let params = SamplingParams {
        allowed_token_ids: vec![4, 2, 4, 99],
        ..SamplingParams::default()
    };
    let draws = sample(params, &[], &FALLING, 200);
    assert!(draws.iter().all(|token| [2, 4].contains(token)));
    assert!(draws.contains(&2) && draws.contains(&4));
}

#[test]
fn an_empty_list_allows_everything() {
    assert_eq!(sample(greedy(), &[], &FALLING, 1), [0]);
}

#[test]
fn stop_tokens_are_masked_until_min_tokens_were_generated() {
    let params = SamplingParams {
        min_tokens: 3,
        stop_token_ids: vec![0, 1],
        ..greedy()
    };
    assert_eq!(sample(params, &[], &FALLING, 5), [2, 2, 2, 0, 0]);
}

#[test]
fn a_bad_word_of_one_token_never_comes() {
    let params = SamplingParams {
        bad_words: vec![vec![0], vec![1]],
        ..greedy()
    };
    assert_eq!(sample(params, &[], &FALLING, 3), [2, 2, 2]);
}

#[test]
fn the_last_token_of_a_bad_word_is_masked_only_after_its_others() {
    // Without the word: 0 0 0 0. The word is 0 0: after each 0 comes another token.
    let params = SamplingParams {
        bad_words: vec![vec![0, 0]],
        ..greedy()
    };
    assert_eq!(sample(params, &[], &FALLING, 4), [0, 1, 0, 1]);
    let longer = SamplingParams {
        bad_words: vec![vec![0, 0, 0]],
        ..greedy()
    };
    assert_eq!(sample(longer, &[], &FALLING, 6), [0, 0, 1, 0, 0, 1]);
}

#[test]
fn a_bad_word_does_not_begin_in_the_prompt() {
    let params = SamplingParams {
        bad_words: vec![vec![7, 0]],
        ..greedy()
    };
    assert_eq!(sample(params, &[7], &FALLING, 1), [0]);
}

#[test]
fn an_empty_bad_word_forbids_nothing() {
    let params = SamplingParams {
        bad_words: vec![vec![]],
        ..greedy()
    };
    assert_eq!(sample(params, &[], &FALLING, 1), [0]);
}

#[test]
fn a_bias_of_100_forces_a_token_and_of_minus_100_bans_it() {
    let logits = logits(1000);
    let forced = SamplingParams {
        logit_bias: vec![(321, 100.0)],
        ..SamplingParams::default()
    };
    assert_eq!(sample(forced, &[], &logits, 100), [321; 100]);
    let best = sample(greedy(), &[], &logits, 1)[0];
    let banned = SamplingParams {
        logit_bias: vec![(best, -100.0)],
        ..SamplingParams::default()
    };
    assert!(!sample(banned, &[], &logits, 2000).contains(&best));
}

#[test]
fn a_small_bias_moves_the_choice_by_its_amount() {
    let below = SamplingParams {
        logit_bias: vec![(1, 0.99)],
        ..greedy()
    };
    let above = SamplingParams {
        logit_bias: vec![(1, 1.01)],
        ..greedy()
    };
    assert_eq!(
        (sample(below, &[], &FALLING, 1), sample(above, &[], &FALLING, 1)),
        (vec![0], vec![1])
    );
}

#[test]
fn a_bias_does_not_bring_back_what_is_masked() {
    let params = SamplingParams {
        logit_bias: vec![(0, 100.0), (1, 100.0), (2, 100.0)],
        allowed_token_ids: vec![1, 2, 3],
        bad_words: vec![vec![1]],
        stop_token_ids: vec![2],
        min_tokens: 1,
        ..greedy()
    };
    assert_eq!(sample(params, &[], &FALLING, 2), [3, 2]);
}

#[test]
fn ids_outside_of_the_vocabulary_are_ignored_everywhere() {
    let params = SamplingParams {
        logit_bias: vec![(6, 100.0), (u32::MAX, 100.0)],
        bad_words: vec![vec![u32::MAX], vec![6]],
        stop_token_ids: vec![6],
        min_tokens: 9,
        repetition_penalty: 1.5,
        ..greedy()
    };
    assert_eq!(sample(params, &[6, u32::MAX], &FALLING, 1), [0]);
}
