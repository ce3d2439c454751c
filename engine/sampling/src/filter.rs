//! From logits to a drawn token: temperature, `min_p`, `top_k`, `top_p`.

use crate::draw::{pick, pick_in_order, piece_sums, sum};
use crate::numeric::{self, id_of, rank_key};
use crate::params::SamplingParams;
use crate::sampler::Scratch;
use crate::weight::Weight;

/// The nucleus is looked for among this many of the most likely tokens first, then among four times as many, and so on.
/// Instruct models at usual temperatures keep tens of tokens at `top_p` 0.95.
const FIRST_NUCLEUS: usize = 256;
const NUCLEUS_GROWTH: usize = 4;

/// Draws a token with `u` in `[0, 1)`. None if no logit is above -inf.
///
/// Without `top_k` and `top_p` the tokens are walked in order of id, so nothing is sorted; else in order of (logit descending, id ascending), and
/// exactly `top_k` tokens remain, ties decided by id.
pub(crate) fn draw_filtered(
    params: &SamplingParams,
    logits: &[f32],
    u: f64,
    scratch: &mut Scratch,
) -> Option<u32> {
    let max = numeric::max(logits);
    if max == f32::NEG_INFINITY {
        return None;
    }
    let weight = Weight {
        max,
        temperature: params.temperature.max(MIN_TEMPERATURE),
        min_p: params.min_p,
    };
    let keeps_all_ranks = params.top_k == 0 || params.top_k as usize >= logits.len();
    if keeps_all_ranks && params.top_p >= 1.0 {
        weigh_all(weight, logits, scratch);
        return pick(&scratch.weights, &scratch.sums, u).map(|id| id as u32);
    }
    if keeps_all_ranks {
        return draw_nucleus(params.top_p, weight, logits, u, scratch);
    }
    scratch.ranks.clear();
    scratch
        .ranks
        .extend((0..).zip(logits).map(|(id, &logit)| rank_key(logit, id)));
    let kept = sort_first(&mut scratch.ranks, params.top_k as usize);
    weigh_ranked(weight, logits, kept, &mut scratch.weights);
    let nucleus = nucleus_len(&scratch.weights, params.top_p, sum(&scratch.weights)).unwrap_or(kept.len());
    draw_ranked(kept, &scratch.weights[..nucleus], u)
}

/// vLLM raises smaller temperatures to this value (`_MAX_TEMP` in `sampling_params.py`): below it a step of logits becomes meaninglessly steep.
const MIN_TEMPERATURE: f32 = 0.01;

/// Draws from the smallest set of most likely tokens whose share of the sum reaches `top_p`.
///
/// Only tokens that can be in it are ranked: of v tokens, those that weigh less than `(1 - top_p) * total / v` weigh less than
/// `(1 - top_p) * total` together, so the others reach `top_p` without them. Half of that bound leaves room for rounding.
fn draw_nucleus(top_p: f32, weight: Weight, logits: &[f32], u: f64, scratch: &mut Scratch) -> Option<u32> {
    weigh_all(weight, logits, scratch);
    let total = scratch.sums.iter().sum::<f64>();
    let lightest = ((1.0 - f64::from(top_p)) * total / (2 * logits.len()) as f64) as f32;
    let candidates = (0..)
        .zip(logits)
        .zip(&scratch.weights)
        .filter(|&(_, &weight)| weight > 0.0 && weight >= lightest);
    scratch.ranks.clear();
    scratch
        .ranks
        .extend(candidates.map(|((id, &logit), _)| rank_key(logit, id)));
    let mut num_sorted = FIRST_NUCLEUS;
    loop {
        let sorted = sort_first(&mut scratch.ranks, num_sorted);
        weigh_ranked(weight, logits, sorted, &mut scratch.weights);
        let is_everything = sorted.len() < num_sorted;
        match nucleus_len(&scratch.weights, top_p, total) {
            Some(len) => return draw_ranked(sorted, &scratch.weights[..len], u),
            None if is_everything => return draw_ranked(sorted, &scratch.weights, u),
            None => num_sorted *= NUCLEUS_GROWTH,
        }
    }
}

/// Weights in order of id, and the sums of their pieces.
fn weigh_all(weight: Weight, logits: &[f32], scratch: &mut Scratch) {
    scratch.weights.resize(logits.len(), 0.0);
    weight.write(logits, &mut scratch.weights);
    piece_sums(&scratch.weights, &mut scratch.sums);
}

/// Weights in order of rank.
fn weigh_ranked(weight: Weight, logits: &[f32], ranks: &[u64], weights: &mut Vec<f32>) {
    weights.clear();
    weights.extend(ranks.iter().map(|&key| weight.of(logits[id_of(key) as usize])));
}

/// How many of the weights, in order, it takes to reach the share `top_p` of `total`; at least 1. None if they don't reach it.
fn nucleus_len(weights: &[f32], top_p: f32, total: f64) -> Option<usize> {
    let target = f64::from(top_p) * total;
    let mut before = 0.0;
    let last = weights.iter().position(|&weight| {
        before += f64::from(weight);
        before >= target
    });
    last.map(|last| last + 1)
}

fn draw_ranked(ranks: &[u64], weights: &[f32], u: f64) -> Option<u32> {
    pick_in_order(weights, u * sum(weights)).map(|index| id_of(ranks[index]))
}

/// Brings the `count` first keys to the front, in order, and gives them.
fn sort_first(ranks: &mut [u64], count: usize) -> &[u64] {
    let count = count.min(ranks.len());
    if count < ranks.len() {
        ranks.select_nth_unstable(count);
    }
    ranks[..count].sort_unstable();
    &ranks[..count]
}
