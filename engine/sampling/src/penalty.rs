//! Penalties for tokens that were seen before.

use std::collections::BTreeMap;

use crate::params::SamplingParams;

/// Which tokens a sequence has seen; empty if no penalty asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Distinct tokens of the prompt, ascending.
    prompt: Vec<u32>,
    /// How often each token was generated.
    output: BTreeMap<u32, u32>,
    counts_output: bool,
}

impl Seen {
    pub(crate) fn new(params: &SamplingParams, prompt: &[u32], vocab_size: usize) -> Self {
        let repetition = params.repetition_penalty != 1.0;
        let relevant = if repetition { prompt } else { &[] };
        let mut distinct: Vec<u32> = relevant
            .iter()
            .copied()
            .filter(|&id| (id as usize) < vocab_size)
            .collect();
        distinct.sort_unstable();
        distinct.dedup();
        let counts_output = repetition || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
        Self {
            prompt: distinct,
            output: BTreeMap::new(),
            counts_output,
        }
    }

    pub(crate) fn record(&mut self, token: u32) {
        if self.counts_output {
            *self.output.entry(token).or_insert(0) += 1;
        }
    }

    /// Repetition over prompt and output, once per token; then frequency and presence over the output. Ids outside of the
    /// vocabulary are ignored.
    pub(crate) fn apply(&self, params: &SamplingParams, logits: &mut [f32]) {
        if params.repetition_penalty != 1.0 {
            let only_prompt = self.prompt.iter().filter(|id| !self.output.contains_key(id));
            for &id in only_prompt.chain(self.output.keys()) {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = repeated(*logit, params.repetition_penalty);
                }
            }
        }
        for (&id, &count) in &self.output {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= params.frequency_penalty * count as f32;
                *logit -= params.presence_penalty;
            }
        }
    }
}

/// Less likely for a penalty above 1, whatever the sign (Keskar et al., *CTRL*, 2019).
fn repeated(logit: f32, penalty: f32) -> f32 {
    if logit > 0.0 {
        logit / penalty
    } else {
        logit * penalty
    }
}
