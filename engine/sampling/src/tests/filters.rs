//! The filters against a reference in `f64` that sorts everything and follows the definitions.

use proptest::prelude::*;

use crate::SamplingParams;
use crate::filter::draw_filtered;
use crate::sampler::Scratch;

/// What remains of the distribution, in the order of the walk.
fn kept(params: &SamplingParams, logits: &[f32]) -> Vec<(u32, f64)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let temperature = f64::from(params.temperature.max(0.01));
    let mut tokens: Vec<(u32, f64)> = (0..)
        .zip(logits)
        .map(|(id, &logit)| (id, ((f64::from(logit) - f64::from(max)) / temperature).exp()))
        .filter(|&(_, weight)| weight > 0.0 && weight >= f64::from(params.min_p))
        .collect();
    let is_ranked = (params.top_k > 0 && (params.top_k as usize) < logits.len()) || params.top_p < 1.0;
    if is_ranked {
        tokens.sort_by(|a, b| {
            logits[b.0 as usize]
                .total_cmp(&logits[a.0 as usize])
                .then(a.0.cmp(&b.0))
        });
    }
    if params.top_k > 0 {
        tokens.truncate(params.top_k as usize);
    }
    let total: f64 = tokens.iter().map(|&(_, weight)| weight).sum();
    let mut before = 0.0;
    tokens.retain(|&(_, weight)| {
        let keep = before < f64::from(params.top_p) * total;
        before += weight;
        keep
    });
    tokens
}

/// Asserts that every `u` of a grid gives the token in whose share it lies.
fn check(params: &SamplingParams, logits: &[f32]) -> Result<(), TestCaseError> {
    let kept = kept(params, logits);
    let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
    let mut scratch = Scratch::new();
    for step in 0..200 {
        let u = (f64::from(step) + 0.5) / 200.0;
        let token = draw_filtered(params, logits, u, &mut scratch).expect("finite logits");
        let index = kept.iter().position(|&(id, _)| id == token);
        let Some(index) = index else {
            return Err(TestCaseError::fail(format!(
                "token {token} was filtered out: {kept:?}"
            )));
        };
        let from: f64 = kept[..index].iter().map(|&(_, weight)| weight).sum::<f64>() / total;
        let to = from + kept[index].1 / total;
        // Weights are `f32` with an error of some 2e-7; the sums of a few hundred stay below this.
        prop_assert!(
            (from - 1e-6..to + 1e-6).contains(&u),
            "{} drew token {} of [{}, {})",
            u,
            token,
            from,
            to
        );
    }
    Ok(())
}

fn params(temperature: f32, top_k: u32, top_p: f32, min_p: f32) -> SamplingParams {
    SamplingParams {
        temperature,
        top_p,
        top_k,
        min_p,
        ..SamplingParams::default()
    }
}

/// The ids that can be drawn.
fn support(params: &SamplingParams, logits: &[f32]) -> Vec<u32> {
    let mut scratch = Scratch::new();
    let draws =
        (0..1000).map(|step| draw_filtered(params, logits, f64::from(step) / 1000.0, &mut scratch).unwrap());
    let mut ids: Vec<u32> = draws.collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[test]
fn top_k_keeps_exactly_k_and_breaks_ties_by_id() {
    let logits = [1.0, 2.0, 1.0, 2.0, 1.0];
    assert_eq!(support(&params(1.0, 1, 1.0, 0.0), &logits), [1]);
    assert_eq!(support(&params(1.0, 3, 1.0, 0.0), &logits), [0, 1, 3]);
    assert_eq!(support(&params(1.0, 0, 1.0, 0.0), &logits), [0, 1, 2, 3, 4]);
    assert_eq!(support(&params(1.0, 99, 1.0, 0.0), &logits), [0, 1, 2, 3, 4]);
}

#[test]
fn top_p_keeps_the_token_that_reaches_the_share() {
    // Shares 1/2, 1/4, 1/8, 1/8.
    let logits = [4.0_f32, 2.0, 1.0, 1.0].map(f32::ln);
    assert_eq!(support(&params(1.0, 0, 0.4, 0.0), &logits), [0]);
    assert_eq!(support(&params(1.0, 0, 0.6, 0.0), &logits), [0, 1]);
    assert_eq!(support(&params(1.0, 0, 0.8, 0.0), &logits), [0, 1, 2]);
    assert_eq!(
        support(&params(1.0, 0, 1e-9, 0.0), &logits),
        [0],
        "one token always remains"
    );
}

#[test]
fn min_p_is_relative_to_the_most_likely_token() {
    let logits = [4.0_f32, 2.1, 1.9, 1.0].map(f32::ln);
    assert_eq!(support(&params(1.0, 0, 1.0, 0.5), &logits), [0, 1]);
    assert_eq!(support(&params(1.0, 0, 1.0, 1.0), &logits), [0]);
}

#[test]
fn temperature_comes_before_min_p() {
    // At temperature 2 the share of the second token grows from 1/4 to 1/2.
    let logits = [4.0_f32, 1.0].map(f32::ln);
    assert_eq!(support(&params(1.0, 0, 1.0, 0.4), &logits), [0]);
    assert_eq!(support(&params(2.0, 0, 1.0, 0.4), &logits), [0, 1]);
}

#[test]
fn top_p_is_taken_of_what_top_k_left() {
    // Of all, the first token has a share of 0.4; of the first two, 2/3.
    let logits = [4.0_f32, 2.0, 2.0, 2.0].map(f32::ln);
    assert_eq!(support(&params(1.0, 0, 0.5, 0.0), &logits), [0, 1]);
    assert_eq!(support(&params(1.0, 2, 0.5, 0.0), &logits), [0]);
}

#[test]
fn a_nucleus_larger_than_the_first_guess_is_found() {
    // 5000 equal tokens: half of them have half of the mass.
    let logits = vec![0.5; 5000];
    let params = params(1.0, 0, 0.5, 0.0);
    let mut scratch = Scratch::new();
    assert_eq!(draw_filtered(&params, &logits, 0.0, &mut scratch), Some(0));
    assert_eq!(draw_filtered(&params, &logits, 0.5, &mut scratch), Some(1250));
    assert_eq!(draw_filtered(&params, &logits, 0.9999, &mut scratch), Some(2499));
}

#[test]
fn a_tiny_temperature_is_raised_to_one_hundredth() {
    let logits = [1.0, 1.0 + 0.01];
    assert_eq!(
        support(&params(1e-4, 0, 1.0, 0.0), &logits),
        support(&params(0.01, 0, 1.0, 0.0), &logits)
    );
    assert_eq!(support(&params(1e-4, 0, 1.0, 0.0), &logits), [0, 1]);
}

fn finite_logits() -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec(
        prop_oneof![3 => -9.0_f32..9.0, 1 => (-2_i8..3).prop_map(f32::from)],
        1..600,
    )
}

proptest! {
    #[test]
    fn unfiltered_draws_follow_the_reference(logits in finite_logits(), temperature in 0.05_f32..2.0) {
        check(&params(temperature, 0, 1.0, 0.0), &logits)?;
    }

    #[test]
    fn top_k_follows_the_reference(logits in finite_logits(), temperature in 0.05_f32..2.0, top_k in 1_u32..700) {
        check(&params(temperature, top_k, 1.0, 0.0), &logits)?;
    }

    #[test]
    fn top_p_follows_the_reference(logits in finite_logits(), temperature in 0.05_f32..2.0, top_p in 0.01_f32..0.999) {
        check(&params(temperature, 0, top_p, 0.0), &logits)?;
    }

    #[test]
    fn min_p_follows_the_reference(logits in finite_logits(), temperature in 0.05_f32..2.0, min_p in 0.0_f32..=1.0) {
        check(&params(temperature, 0, 1.0, min_p), &logits)?;
    }

    #[test]
    fn all_filters_together_follow_the_reference(
        logits in finite_logits(),
        temperature in 0.05_f32..2.0,
        top_k in 0_u32..50,
        top_p in 0.1_f32..0.999,
        min_p in 0.0_f32..0.3,
    ) {
        check(&params(temperature, top_k, top_p, min_p), &logits)?;
    }
}
