//! Draws by the thousand, with fixed seeds, against the distribution they come from.

use super::{logits, sample};
use crate::{SamplingParams, uniform};

/// The chi-square statistic of draws against weights, over cells that expect at least five, and its degrees of freedom.
fn chi_square(draws: &[u32], weights: &[f64]) -> (f64, f64) {
    let total: f64 = weights.iter().sum();
    let mut counts = vec![0.0; weights.len()];
    for &token in draws {
        counts[token as usize] += 1.0;
    }
    let (mut statistic, mut cells) = (0.0, 0.0);
    let (mut rare_expected, mut rare_count) = (0.0, 0.0);
    for (&count, weight) in counts.iter().zip(weights) {
        let expected = weight / total * draws.len() as f64;
        if expected < 5.0 {
            rare_expected += expected;
            rare_count += count;
        } else {
            statistic += (count - expected).powi(2) / expected;
            cells += 1.0;
        }
    }
    if rare_expected > 0.0 {
        statistic += (rare_count - rare_expected).powi(2) / rare_expected;
        cells += 1.0;
    }
    (statistic, cells - 1.0)
}

/// Mean of the statistic plus four standard deviations.
fn assert_follows(draws: &[u32], weights: &[f64]) {
    let (statistic, freedom) = chi_square(draws, weights);
    let bound = freedom + 4.0 * (2.0 * freedom).sqrt();
    assert!(
        statistic < bound,
        "chi-square {statistic} with {freedom} degrees of freedom"
    );
}

fn softmax_weights(logits: &[f32], temperature: f64) -> Vec<f64> {
    logits
        .iter()
        .map(|&logit| (f64::from(logit) / temperature).exp())
        .collect()
}

#[test]
fn tokens_of_one_sequence_follow_the_softmax() {
    let logits = logits(50);
    let draws = sample(
        SamplingParams {
            seed: 11,
            ..SamplingParams::default()
        },
        &[],
        &logits,
        20_000,
    );
    assert_follows(&draws, &softmax_weights(&logits, 1.0));
}

#[test]
fn first_tokens_over_neighbouring_seeds_follow_the_softmax() {
    let logits = logits(50);
    let first = |seed| {
        sample(
            SamplingParams {
                seed,
                ..SamplingParams::default()
            },
            &[],
            &logits,
            1,
        )[0]
    };
    assert_follows(
        &(0..20_000).map(first).collect::<Vec<_>>(),
        &softmax_weights(&logits, 1.0),
    );
}

#[test]
fn temperature_shapes_the_distribution() {
    let logits = logits(50);
    let params = SamplingParams {
        seed: 5,
        temperature: 0.6,
        ..SamplingParams::default()
    };
    let draws = sample(params, &[], &logits, 20_000);
    assert_follows(&draws, &softmax_weights(&logits, f64::from(0.6_f32)));
    let (unshaped, freedom) = chi_square(&draws, &softmax_weights(&logits, 1.0));
    assert!(
        unshaped > 10.0 * freedom,
        "the statistic can't tell distributions apart"
    );
}

#[test]
fn filtered_draws_keep_the_proportions_of_what_remains() {
    let logits = logits(50);
    let params = SamplingParams {
        seed: 5,
        top_k: 10,
        ..SamplingParams::default()
    };
    let draws = sample(params, &[], &logits, 20_000);
    let mut ranked: Vec<usize> = (0..50).collect();
    ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let mut weights = softmax_weights(&logits, 1.0);
    for &id in &ranked[10..] {
        weights[id] = 0.0;
    }
    assert!(draws.iter().all(|&token| weights[token as usize] > 0.0));
    assert_follows(&draws, &weights);
}

#[test]
fn a_flat_distribution_over_a_real_vocabulary_reaches_all_of_it() {
    let draws = sample(SamplingParams::default(), &[], &vec![0.25; 49_152], 4096);
    let quarters =
        [0, 1, 2, 3].map(|quarter| draws.iter().filter(|&&token| token / 12_288 == quarter).count());
    assert!(
        quarters.iter().all(|&count| count.abs_diff(1024) < 4 * 28),
        "{quarters:?}"
    );
}

#[test]
fn the_numbers_of_two_sequences_of_one_request_are_independent() {
    let pairs = (0..4096).map(|position| (uniform(40, position) - 0.5) * (uniform(41, position) - 0.5));
    // Variance of a product of two centred uniforms: 1/144.
    let correlation = pairs.sum::<f64>() / 4096.0 * 12.0;
    assert!(correlation.abs() < 4.0 / 64.0, "correlation {correlation}");
}
