//! Log probabilities, as clients see them: of the raw model distribution, before penalties and filters.

use std::collections::BinaryHeap;

use crate::draw::{WEIGHTS_PER_SUM, sum};
use crate::numeric::{self, id_of, rank_key};
use crate::weight::Weight;

/// The log probability of one token, its rank and the best alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: u32,
    /// Its log probability; never NaN, at least -9999.
    pub logprob: f32,
    /// 1 is the most likely token.
    pub rank: u32,
    /// The most likely tokens with their log probabilities, best first, ties by id.
    pub top: Vec<(u32, f32)>,
}

/// Clients get no -inf: JSON has no such number. The value is vLLM's.
pub const MIN_LOGPROB: f32 = -9999.0;

/// The log probability of `token` and of the `top` most likely tokens under the softmax of `logits`.
///
/// Ranks and alternatives order by logit, ties by id, so that the token of rank r is entry r - 1 of the alternatives. NaN counts as -inf. A token outside of the
/// vocabulary has the lowest log probability and comes after all others.
pub fn token_logprobs(logits: &[f32], token: u32, top: u32) -> TokenLogprobs {
    let normalizer = Normalizer::new(logits);
    let logit = logits.get(token as usize).copied();
    let best = best_keys(logits, top as usize).into_iter().map(|key| {
        let id = id_of(key);
        (id, normalizer.logprob(logits[id as usize]))
    });
    TokenLogprobs {
        token,
        logprob: logit.map_or(MIN_LOGPROB, |logit| normalizer.logprob(logit)),
        rank: num_before(logits, token) as u32 + 1,
        top: best.collect(),
    }
}

/// The stable log-softmax: `logit - max - ln(sum of e^(logit - max))`.
struct Normalizer {
    max: f32,
    ln_sum: f64,
}

impl Normalizer {
    fn new(logits: &[f32]) -> Self {
        let max = numeric::max(logits);
        let weight = Weight::unshaped(max);
        let mut weights = [0.0; WEIGHTS_PER_SUM];
        let sums = logits.chunks(WEIGHTS_PER_SUM).map(|piece| {
            let weights = &mut weights[..piece.len()];
            weight.write(piece, weights);
            sum(weights)
        });
        let ln_sum = sums.sum::<f64>().ln();
        Self { max, ln_sum }
    }

    fn logprob(&self, logit: f32) -> f32 {
        if logit.is_nan() || logit == f32::NEG_INFINITY {
            return MIN_LOGPROB;
        }
        // Equal infinities have no difference.
        let below_max = if logit == self.max {
            0.0
        } else {
            f64::from(logit) - f64::from(self.max)
        };
        ((below_max - self.ln_sum) as f32).max(MIN_LOGPROB)
    }
}

/// How many tokens come before this one by (logit descending, id ascending). Comparisons of floats are all it takes, and they become SIMD code.
fn num_before(logits: &[f32], token: u32) -> usize {
    let Some(&logit) = logits.get(token as usize) else {
        return logits.len();
    };
    let is_nothing = |other: f32| other.is_nan() || other == f32::NEG_INFINITY;
    let earlier = &logits[..token as usize];
    if is_nothing(logit) {
        let num_possible = logits.iter().filter(|&&other| !is_nothing(other)).count();
        return num_possible + earlier.iter().filter(|&&other| is_nothing(other)).count();
    }
    let num_larger = logits.iter().filter(|&&other| other > logit).count();
    num_larger + earlier.iter().filter(|&&other| other == logit).count()
}

/// The keys of the `count` best tokens, best first. A heap of the best so far costs one comparison for most tokens.
fn best_keys(logits: &[f32], count: usize) -> Vec<u64> {
    let count = count.min(logits.len());
    let (first, rest) = logits.split_at(count);
    let mut best: BinaryHeap<u64> = (0..).zip(first).map(|(id, &logit)| rank_key(logit, id)).collect();
    let worst_logit = |best: &BinaryHeap<u64>| best.peek().map(|&key| logits[id_of(key) as usize]);
    let Some(mut worst) = worst_logit(&best) else {
        return Vec::new();
    };
    for (id, &logit) in (count as u32..).zip(rest) {
        // Later ids lose against equal logits. NaN is never larger; against a NaN that is the worst, the keys decide.
        if logit > worst || worst.is_nan() {
            let key = rank_key(logit, id);
            if let Some(mut place) = best.peek_mut().filter(|place| key < **place) {
                *place = key;
            }
            worst = worst_logit(&best).unwrap_or(worst);
        }
    }
    best.into_sorted_vec()
}
