//! Log probabilities, as clients see them: of the raw model distribution, before penalties and filters.

use std::collections::BinaryHeap;

use crate::numeric::{self, exp_of_nonpositive, id_of, rank_key};

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
    let key = logit.map_or(u64::MAX, |logit| rank_key(logit, token));
    let num_better = logits
        .iter()
        .enumerate()
        .filter(|&(id, &logit)| rank_key(logit, id as u32) < key)
        .count();
    let best = best_keys(logits, top as usize).into_iter().map(|key| {
        let id = id_of(key);
        (id, normalizer.logprob(logits[id as usize]))
    });
    TokenLogprobs {
        token,
        logprob: logit.map_or(MIN_LOGPROB, |logit| normalizer.logprob(logit)),
        rank: num_better as u32 + 1,
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
        let sum: f64 = logits.iter().map(|&logit| f64::from(share(logit, max))).sum();
        Self {
            max,
            ln_sum: sum.ln(),
        }
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

fn share(logit: f32, max: f32) -> f32 {
    if logit == max {
        1.0
    } else {
        exp_of_nonpositive(logit - max)
    }
}

/// The keys of the `count` best tokens, best first. A heap of the best so far costs one comparison for most tokens.
fn best_keys(logits: &[f32], count: usize) -> Vec<u64> {
    let count = count.min(logits.len());
    let mut keys = logits
        .iter()
        .enumerate()
        .map(|(id, &logit)| rank_key(logit, id as u32));
    let mut best: BinaryHeap<u64> = keys.by_ref().take(count).collect();
    for key in keys {
        match best.peek_mut() {
            Some(mut worst) if key < *worst => *worst = key,
            _ => {}
        }
    }
    best.into_sorted_vec()
}
