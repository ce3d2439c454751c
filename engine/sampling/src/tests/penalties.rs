//! Repetition, frequency and presence penalty against their definitions.

use proptest::prelude::*;

use super::{greedy, sample};
use crate::SamplingParams;
use crate::penalty::Seen;

/// The definitions, token by token.
fn reference(params: &SamplingParams, prompt: &[u32], output: &[u32], logits: &[f32]) -> Vec<f32> {
    let penalized = (0_u32..).zip(logits).map(|(id, &logit)| {
        let count = output.iter().filter(|&&token| token == id).count() as f32;
        let mut logit = logit;
        if count > 0.0 || prompt.contains(&id) {
            logit = if logit > 0.0 {
                logit / params.repetition_penalty
            } else {
                logit * params.repetition_penalty
            };
        }
        if count > 0.0 {
            logit -= params.frequency_penalty * count;
            logit -= params.presence_penalty;
        }
        logit
    });
    penalized.collect()
}

proptest! {
    #[test]
    fn penalties_follow_their_definitions(
        logits in proptest::collection::vec(-9.0_f32..9.0, 1..12),
        prompt in proptest::collection::vec(0_u32..14, 0..10),
        output in proptest::collection::vec(0_u32..14, 0..20),
        repetition_penalty in prop_oneof![Just(1.0_f32), 0.5_f32..2.0],
        frequency_penalty in prop_oneof![Just(0.0_f32), -2.0_f32..2.0],
        presence_penalty in prop_oneof![Just(0.0_f32), -2.0_f32..2.0],
    ) {
        let params = SamplingParams { presence_penalty, frequency_penalty, repetition_penalty, ..SamplingParams::default() };
        let mut seen = Seen::new(&params, &prompt, logits.len());
        for &token in &output {
            seen.record(token);
        }
        let mut penalized = logits.clone();
        seen.apply(&params, &mut penalized);
        prop_assert_eq!(penalized, reference(&params, &prompt, &output, &logits));
    }
}

#[test]
fn a_repetition_penalty_looks_at_the_prompt() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        ..greedy()
    };
    assert_eq!(sample(params.clone(), &[], &[3.0, 2.0], 1), [0]);
    assert_eq!(sample(params, &[0], &[3.0, 2.0], 1), [1]);
}

#[test]
fn a_repetition_penalty_lowers_negative_logits_too() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        ..greedy()
    };
    assert_eq!(sample(params, &[0], &[-1.0, -1.5], 1), [1]);
}

#[test]
fn frequency_grows_with_each_time_and_presence_counts_once() {
    // The second token is 1.5 behind. A frequency penalty of 1 lets it in after two of the first.
    let frequency = SamplingParams {
        frequency_penalty: 1.0,
        ..greedy()
    };
    assert_eq!(sample(frequency, &[], &[3.0, 1.5], 4), [0, 0, 1, 0]);
    let presence = SamplingParams {
        presence_penalty: 2.0,
        ..greedy()
    };
    assert_eq!(sample(presence, &[], &[3.0, 1.5], 4), [0, 1, 0, 0]);
}

#[test]
fn frequency_and_presence_do_not_look_at_the_prompt() {
    let params = SamplingParams {
        frequency_penalty: 2.0,
        presence_penalty: 2.0,
        ..greedy()
    };
    assert_eq!(sample(params, &[0, 0, 0], &[3.0, 1.5], 1), [0]);
}
