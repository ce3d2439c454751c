//! Logits and greedy tokens against transformers, for the model's own code: in f64, so that nothing but a difference in
//! mathematics shows.

use crate::driver::{Driver, Job, Output, roomy};
use crate::fixture::{Golden, MAX_MODEL_LEN, PLAIN, Setup, load_tiny};
use crate::naive::Naive;

/// An inverse frequency may differ from transformers' by one unit in the last place (2^-24 of it), which at positions below
/// 128 turns an angle by less than 2^-17; through scores of a few units and up to three layers a logit moves by less than
/// four times that.
pub(crate) const COSINE_TOLERANCE: f32 = 1.0 / (1 << 15) as f32;

pub(crate) fn run_golden(driver: &mut Driver, golden: &Golden) -> Output {
    let job = Job::greedy(&golden.prompt, golden.greedy.len() as u32).with_prompt_logprobs();
    driver.run(&[job]).remove(0)
}

/// The largest difference to the golden logits.
pub(crate) fn deviation(output: &Output, golden: &Golden) -> f32 {
    let mut worst = 0.0_f32;
    for (position, expected) in golden.positions.iter().zip(&golden.logits) {
        let logits = output.logits_after(*position);
        assert_eq!(logits.len(), expected.len());
        for (logit, expected) in logits.iter().zip(expected) {
            let difference = (logit - expected).abs();
            // NaN is no small difference.
            worst = if difference.is_nan() {
                f32::INFINITY
            } else {
                worst.max(difference)
            };
        }
    }
    worst
}

#[test]
fn plain_models_give_the_logits_and_tokens_of_transformers() {
    for name in PLAIN {
        let golden = Golden::of(name);
        let model = load_tiny(Naive::default(), name, Setup::default());
        let mut driver = Driver::new(model, roomy(16, 600, MAX_MODEL_LEN));
        let output = run_golden(&mut driver, &golden);
        // The golden's own rounding, measured by transformers in f64, is all that is left.
        let (worst, tolerance) = (
            deviation(&output, &golden),
            golden.deviation_f64 + COSINE_TOLERANCE,
        );
        assert!(
            worst <= tolerance,
            "{name}: logits differ by {worst:e}, tolerance {tolerance:e}"
        );
        assert!(
            golden.margins.iter().all(|margin| *margin > 2.0 * tolerance),
            "{name}: a margin says nothing"
        );
        assert_eq!(output.tokens, golden.greedy, "{name}");
        assert_eq!(output.prompt_logprobs.len(), golden.prompt.len() - 1, "{name}");
    }
}
