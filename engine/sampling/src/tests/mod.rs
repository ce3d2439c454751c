//! Each stage against a naive reference, and the sampler as a whole.

mod distribution;
mod filters;
mod hostile;
mod logprobs;
mod masks;
mod numbers;
mod penalties;
mod sampler;

use std::sync::Arc;

use proptest::prelude::*;

use crate::{Choice, SamplingParams, Scratch, SequenceSampler};

fn greedy() -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    }
}

/// The next `count` tokens when the model gives the same logits each time.
fn sample(params: SamplingParams, prompt: &[u32], logits: &[f32], count: usize) -> Vec<u32> {
    let mut sampler = SequenceSampler::new(Arc::new(params), prompt, logits.len());
    let mut scratch = Scratch::new();
    (0..count)
        .map(|_| next(&mut sampler, logits, &mut scratch).token)
        .collect()
}

fn next(sampler: &mut SequenceSampler, logits: &[f32], scratch: &mut Scratch) -> Choice {
    sampler.sample(&mut logits.to_vec(), scratch)
}

/// Logits of a made-up model: distinct, spread over about eight units, the same everywhere.
fn logits(len: usize) -> Vec<f32> {
    (0..len)
        .map(|id| (crate::uniform(7, id as u64) * 8.0) as f32)
        .collect()
}

/// Any logits, ties and infinities and NaN among them.
fn hostile_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -9.0_f32..9.0,
        3 => (-2_i8..3).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
        1 => prop_oneof![Just(f32::INFINITY), Just(f32::NAN), Just(-0.0), Just(f32::MAX), Just(f32::MIN), Just(f32::MIN_POSITIVE)],
    ]
}
