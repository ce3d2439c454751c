//! Exponential, maximum, order of logits, and the random numbers.

use proptest::prelude::*;

use super::hostile_logit;
use crate::draw::{philox, pick, piece_sums};
use crate::numeric::{argmax, exp_of_nonpositive, id_of, max, rank_key};
use crate::uniform;

#[test]
fn the_exponential_is_as_good_as_its_documentation_says() {
    let mut worst = 0.0_f64;
    for step in 0..870_000 {
        let x = step as f32 * -1e-4;
        let exact = f64::from(x).exp();
        worst = worst.max((f64::from(exp_of_nonpositive(x)) - exact).abs() / exact);
    }
    assert!(worst < 2e-7, "relative error {worst}");
}

#[test]
fn the_exponential_of_zero_is_one_and_of_nothing_is_zero() {
    assert_eq!(exp_of_nonpositive(0.0), 1.0);
    assert_eq!(exp_of_nonpositive(-0.0), 1.0);
    for x in [-87.1, -1000.0, f32::MIN, f32::NEG_INFINITY, f32::NAN] {
        assert_eq!(exp_of_nonpositive(x), 0.0, "e^{x}");
    }
}

/// The known answers of the authors' Random123 library (`kat_vectors`, philox4x32 with 10 rounds).
#[test]
fn philox_gives_the_published_answers() {
    assert_eq!(
        philox([0; 4], [0; 2]),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    assert_eq!(
        philox([u32::MAX; 4], [u32::MAX; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
    let digits_of_pi = philox(
        [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
        [0xa409_3822, 0x299f_31d0],
    );
    assert_eq!(digits_of_pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

#[test]
fn draws_of_neighbouring_seeds_and_positions_are_uniform_and_uncorrelated() {
    // 64 x 64 draws in 16 x 16 cells of (draw, draw of the next seed) and (draw, draw of the next position).
    for neighbour in [(1, 0), (0, 1)] {
        let mut cells = [[0_u32; 16]; 16];
        for seed in 0..64_u64 {
            for position in 0..64_u64 {
                let (a, b) = (
                    uniform(seed, position),
                    uniform(seed + neighbour.0, position + neighbour.1),
                );
                assert!((0.0..1.0).contains(&a));
                cells[(a * 16.0) as usize][(b * 16.0) as usize] += 1;
            }
        }
        let expected = 4096.0 / 256.0;
        let chi_square: f64 = cells
            .iter()
            .flatten()
            .map(|&count| (f64::from(count) - expected).powi(2) / expected)
            .sum();
        // 255 degrees of freedom: mean 255, standard deviation 22.6; this is four of them.
        assert!(
            chi_square < 255.0 + 4.0 * 22.6,
            "chi-square {chi_square} for {neighbour:?}"
        );
    }
}

#[test]
fn all_64_bits_of_seed_and_position_matter() {
    let draws: Vec<f64> = (0..64)
        .flat_map(|bit| [uniform(1 << bit, 0), uniform(0, 1 << bit)])
        .collect();
    for (index, draw) in draws.iter().enumerate() {
        assert!(!draws[index + 1..].contains(draw), "draw {index} repeats");
    }
}

#[test]
fn a_pick_at_zero_skips_tokens_without_weight() {
    let weights = [0.0, 0.0, 1.0, 0.0];
    let mut sums = Vec::new();
    piece_sums(&weights, &mut sums);
    assert_eq!(pick(&weights, &sums, 0.0), Some(2));
    assert_eq!(pick(&weights, &sums, 1.0 - f64::EPSILON / 2.0), Some(2));
    piece_sums(&[0.0; 4], &mut sums);
    assert_eq!(pick(&[0.0; 4], &sums, 0.5), None);
}

proptest! {
    #[test]
    fn the_key_orders_by_logit_and_then_by_id(logits in proptest::collection::vec(hostile_logit(), 1..40)) {
        let value = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
        let mut keys: Vec<u64> = (0..).zip(&logits).map(|(id, &logit)| rank_key(logit, id)).collect();
        keys.sort_unstable();
        let by_key: Vec<u32> = keys.into_iter().map(id_of).collect();
        let mut by_value: Vec<u32> = (0..logits.len() as u32).collect();
        by_value.sort_by(|&a, &b| value(logits[b as usize]).partial_cmp(&value(logits[a as usize])).unwrap());
        prop_assert_eq!(by_key, by_value);
    }

    #[test]
    fn maximum_and_its_index_ignore_nan(logits in proptest::collection::vec(hostile_logit(), 0..70)) {
        let numbers = || logits.iter().copied().enumerate().filter(|(_, logit)| !logit.is_nan());
        let expected = numbers().map(|(_, logit)| logit).fold(f32::NEG_INFINITY, f32::max);
        prop_assert_eq!(max(&logits), expected);
        let first = numbers().find(|&(_, logit)| logit == expected && logit > f32::NEG_INFINITY);
        prop_assert_eq!(argmax(&logits), first.map(|(id, _)| id as u32));
    }

    /// The two-level walk finds what a plain walk over exact sums finds.
    #[test]
    fn a_pick_over_pieces_equals_a_walk_over_all(
        // Small integers, whose sums are exact.
        weights in proptest::collection::vec((0_u8..4).prop_map(f32::from), 1..900),
        u in 0.0_f64..1.0,
    ) {
        let mut sums = Vec::new();
        piece_sums(&weights, &mut sums);
        let target = u * weights.iter().map(|&weight| f64::from(weight)).sum::<f64>();
        let mut before = 0.0;
        let walked = weights.iter().position(|&weight| {
            before += f64::from(weight);
            before > target
        });
        prop_assert_eq!(pick(&weights, &sums, u), walked);
    }
}
