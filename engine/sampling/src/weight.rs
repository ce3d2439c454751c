//! Unnormalized probabilities: 1 for the most likely token.

use crate::numeric::exp_of_nonpositive;

/// From a logit to `e^((logit - max) / temperature)`, or 0 where that is below `min_p`.
///
/// Differences from the maximum are scaled, not the logits, so that nothing overflows. NaN and -inf weigh nothing; several infinite
/// logits share everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    /// The largest of the logits, above -inf.
    pub(crate) max: f32,
    /// Above 0.
    pub(crate) temperature: f32,
    /// In `[0, 1]`.
    pub(crate) min_p: f32,
}

impl Weight {
    /// The softmax's own weights.
    pub(crate) fn unshaped(max: f32) -> Self {
        Self {
            max,
            temperature: 1.0,
            min_p: 0.0,
        }
    }

    pub(crate) fn of(self, logit: f32) -> f32 {
        if self.max.is_finite() {
            self.of_finite(logit)
        } else {
            self.of_infinite(logit)
        }
    }

    /// The weights of all logits, into a buffer of their length. The choice of formula is made once, so that the loops become SIMD code.
    pub(crate) fn write(self, logits: &[f32], weights: &mut [f32]) {
        let pairs = weights.iter_mut().zip(logits);
        if self.max.is_finite() {
            pairs.for_each(|(weight, &logit)| *weight = self.of_finite(logit));
        } else {
            pairs.for_each(|(weight, &logit)| *weight = self.of_infinite(logit));
        }
    }

    #[inline]
    fn of_finite(self, logit: f32) -> f32 {
        // -inf over an infinite temperature is NaN, which weighs nothing either.
        let weight = exp_of_nonpositive((logit - self.max) / self.temperature);
        if weight < self.min_p { 0.0 } else { weight }
    }

    #[inline]
    fn of_infinite(self, logit: f32) -> f32 {
        if logit == self.max { 1.0 } else { 0.0 }
    }
}
