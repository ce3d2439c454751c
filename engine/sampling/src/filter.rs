//! From logits to a drawn token: temperature, `min_p`, `top_k`, `top_p`.

use crate::draw::{pick, piece_sums};
use crate::numeric::{self, id_of, rank_key};
use crate::params::SamplingParams;
use crate::sampler::Scratch;
use crate::weight::Weight;

/// Draws a token with `u` in `[0, 1)`. None if no logit is above -inf.
///
/// Without `top_k` and `top_p` the tokens are walked in order of id, so nothing is sorted; else in order of (probability descending, id ascending), and
/// exactly `top_k` tokens remain, equal logits decided by id.
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
    let total = if keeps_all_ranks {
        rank_candidates(params.top_p, weight, logits, scratch)
    } else {
        rank_top_k(params.top_k as usize, weight, logits, &mut scratch.ranks)
    };
    let ranked = &mut scratch.ranks[..];
    let nucleus = if params.top_p < 1.0 {
        let last = leading(ranked, |sum| sum >= f64::from(params.top_p) * total)?;
        &mut ranked[..=last]
    } else {
        ranked
    };
    let mass = mass(nucleus);
    let drawn = leading(nucleus, |sum| sum > u * mass)?;
    Some(id_of(nucleus[drawn]))
}

/// vLLM raises smaller temperatures to this value (`_MAX_TEMP` in `sampling_params.py`): below it a step of logits becomes meaninglessly steep.
const MIN_TEMPERATURE: f32 = 0.01;

/// Ranks the tokens that can be in the nucleus, in no order, and gives the weight of all tokens.
///
/// Of v tokens, those that weigh less than `(1 - top_p) * total / v` weigh less than `(1 - top_p) * total` together, so the others reach
/// `top_p` without them. Half of that bound leaves room for rounding.
fn rank_candidates(top_p: f32, weight: Weight, logits: &[f32], scratch: &mut Scratch) -> f64 {
    weigh_all(weight, logits, scratch);
    let total = scratch.sums.iter().sum::<f64>();
    let lightest = ((1.0 - f64::from(top_p)) * total / (2 * logits.len()) as f64) as f32;
    let weighted = (0..).zip(&scratch.weights);
    let candidates = weighted.filter(|&(_, &weight)| weight > 0.0 && weight >= lightest);
    scratch.ranks.clear();
    scratch
        .ranks
        .extend(candidates.map(|(id, &weight)| weight_key(weight, id)));
    total
}

/// Ranks the `top_k` most likely tokens, those with weight, in no order, and gives their weight.
fn rank_top_k(top_k: usize, weight: Weight, logits: &[f32], ranked: &mut Vec<u64>) -> f64 {
    ranked.clear();
    ranked.extend((0..).zip(logits).map(|(id, &logit)| rank_key(logit, id)));
    if top_k < ranked.len() {
        ranked.select_nth_unstable(top_k);
        ranked.truncate(top_k);
    }
    for key in ranked.iter_mut() {
        let id = id_of(*key);
        *key = weight_key(weight.of(logits[id as usize]), id);
    }
    ranked.retain(|&key| weight_in(key) > 0.0);
    mass(ranked)
}

/// Below this many keys, sorting and walking costs less than splitting further.
const SORT_BELOW: usize = 64;

/// The place, in order of rank, at which the running sum of weights has `reached` its goal; the last one if rounding keeps it from it. Orders the keys only as
/// far as needed: those before the place are the more likely ones, in no order. None if there are no keys.
///
/// Halves the range in which the place lies, by rank, with the weight of the better half as the guide: linear in the number of keys.
fn leading(ranked: &mut [u64], reached: impl Fn(f64) -> bool) -> Option<usize> {
    let (mut start, mut end, mut before) = (0, ranked.len(), 0.0);
    while end - start > SORT_BELOW {
        let middle = usize::midpoint(start, end);
        ranked[start..end].select_nth_unstable(middle - start);
        let through_middle = before + mass(&ranked[start..middle]);
        if reached(through_middle) {
            end = middle;
        } else {
            (start, before) = (middle, through_middle);
        }
    }
    ranked[start..end].sort_unstable();
    let place = ranked[start..end].iter().position(|&key| {
        before += f64::from(weight_in(key));
        reached(before)
    });
    place.map(|offset| start + offset).or(end.checked_sub(1))
}

/// The weight of ranked tokens together.
fn mass(ranked: &[u64]) -> f64 {
    ranked.iter().map(|&key| f64::from(weight_in(key))).sum()
}

/// A key whose ascending order is: larger weight first, then lower id. Weights are not negative, so their bits order as they do.
fn weight_key(weight: f32, id: u32) -> u64 {
    u64::from(!weight.to_bits()) << 32 | u64::from(id)
}

fn weight_in(key: u64) -> f32 {
    f32::from_bits(!((key >> 32) as u32))
}

/// Weights in order of id, and the sums of their pieces.
fn weigh_all(weight: Weight, logits: &[f32], scratch: &mut Scratch) {
    scratch.weights.resize(logits.len(), 0.0);
    weight.write(logits, &mut scratch.weights);
    piece_sums(&scratch.weights, &mut scratch.sums);
}
