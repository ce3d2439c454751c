//! Sampling as a pure function: penalties, filters, draws from (seed, position), log probabilities.

mod logprobs;
mod params;

pub use logprobs::TokenLogprobs;
pub use params::SamplingParams;
