//! One sequence's sampler: the stages in order, and the memory they need.

use std::sync::Arc;

use crate::draw::uniform;
use crate::filter::draw_filtered;
use crate::logprobs::{TokenLogprobs, token_logprobs};
use crate::mask::{apply_bias, apply_masks, lowest_permitted};
use crate::numeric;
use crate::params::SamplingParams;
use crate::penalty::Seen;

/// Temperatures below this are greedy (vLLM's `_SAMPLING_EPS`).
const GREEDY_BELOW: f32 = 1e-5;

/// Chooses the tokens of one sequence, one after the other.
#[derive(Clone, Debug)]
pub struct SequenceSampler {
    params: Arc<SamplingParams>,
    seen: Seen,
    output: Vec<u32>,
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Of the raw distribution, if [`SamplingParams::logprobs`] asks for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// Memory for one call of [`SequenceSampler::sample`], to be reused for the next one; its content means nothing between calls.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    pub(crate) weights: Vec<f32>,
    pub(crate) sums: Vec<f64>,
    pub(crate) ranks: Vec<u64>,
    raw: Vec<f32>,
    kept: Vec<f32>,
}

impl Scratch {
    /// No memory yet: it grows to the size of the vocabulary on first use.
    pub fn new() -> Self {
        Self::default()
    }
}

impl SequenceSampler {
    /// A sampler that hasn't sampled yet. The prompt matters to the repetition penalty only.
    ///
    /// `vocab_size` is the length of the logits to come; prompt tokens beyond it are ignored.
    pub fn new(params: Arc<SamplingParams>, prompt: &[u32], vocab_size: usize) -> Self {
        let seen = Seen::new(&params, prompt, vocab_size);
        Self {
            params,
            seen,
            output: Vec::new(),
        }
    }

    /// Tokens sampled so far: the position of the next draw.
    pub fn num_sampled(&self) -> usize {
        self.output.len()
    }

    /// The tokens sampled so far.
    pub fn output(&self) -> &[u32] {
        &self.output
    }

    /// Chooses the next token and remembers it. Overwrites the logits, one per token of the vocabulary.
    ///
    /// Never panics: NaN counts as -inf; if nothing can be sampled, the lowest permitted id is chosen.
    pub fn sample(&mut self, logits: &mut [f32], scratch: &mut Scratch) -> Choice {
        let wants_logprobs = self.params.logprobs;
        if wants_logprobs.is_some() {
            scratch.raw.clear();
            scratch.raw.extend_from_slice(logits);
        }
        let token = self.choose(logits, scratch);
        let logprobs = wants_logprobs.map(|top| token_logprobs(&scratch.raw, token, top));
        self.seen.record(token);
        self.output.push(token);
        Choice { token, logprobs }
    }

    fn choose(&self, logits: &mut [f32], scratch: &mut Scratch) -> u32 {
        let params = &*self.params;
        apply_bias(&params.logit_bias, logits);
        self.seen.apply(params, logits);
        // vLLM masks first. The result is the same, as nothing finite changes -inf; masking last also holds against parameters out of range.
        apply_masks(params, &self.output, logits, &mut scratch.kept);
        let token = if params.temperature >= GREEDY_BELOW {
            let u = uniform(params.seed, self.output.len() as u64);
            draw_filtered(params, logits, u, scratch)
        } else {
            numeric::argmax(logits)
        };
        token.unwrap_or_else(|| lowest_permitted(params, &self.output, logits, &mut scratch.kept))
    }
}
