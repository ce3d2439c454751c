//! Sampling as a pure function: penalties, filters, draws from (seed, position), log probabilities.
//!
//! A [`SequenceSampler`] holds what one sequence's choices depend on: its parameters, its prompt and the tokens it has sampled.
//! [`SequenceSampler::sample`] takes the model's logits and gives the next token. The result depends on nothing else, so a sequence
//! gives the same tokens alone, in any batch, and after it was preempted.
//!
//! The stages, in vLLM's order (V1 `sampler.py`):
//!
//! 1. log probabilities of the raw distribution, if asked for;
//! 2. logits are masked and adjusted: allowed ids, `min_tokens`, logit bias, bad words (`mask.rs`); repetition, frequency and presence
//!    penalty (`penalty.rs`);
//! 3. greedy: the largest logit. Otherwise temperature, `min_p`, `top_k`, `top_p` and a draw (`filter.rs`, `draw.rs`).
//!
//! Everything is total: logits of NaN count as -inf, infinities are allowed, and where every token is masked the lowest permitted id is
//! chosen. Exponentials are computed by our own polynomial and sums in `f64` in a fixed order, so that equal logits give equal tokens on every
//! machine, whatever its mathematics library.

mod draw;
mod filter;
mod logprobs;
mod mask;
mod numeric;
mod params;
mod penalty;
mod sampler;
mod weight;

pub use draw::uniform;
pub use logprobs::{MIN_LOGPROB, TokenLogprobs, token_logprobs};
pub use params::SamplingParams;
pub use sampler::{Choice, Scratch, SequenceSampler};

#[cfg(test)]
mod tests;
