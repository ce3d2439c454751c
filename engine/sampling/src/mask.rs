//! Tokens that must not be sampled, and the logit bias. Ids outside of the vocabulary are ignored.

use crate::params::SamplingParams;

/// Masks what is not allowed, what `min_tokens` forbids and what would complete a bad word.
pub(crate) fn apply_masks(params: &SamplingParams, output: &[u32], logits: &mut [f32], kept: &mut Vec<f32>) {
    keep_allowed(&params.allowed_token_ids, logits, kept);
    if output.len() < params.min_tokens as usize {
        for &id in &params.stop_token_ids {
            forbid(id, logits);
        }
    }
    for word in &params.bad_words {
        if let Some(last) = completes(word, output) {
            forbid(last, logits);
        }
    }
}

/// Adds the bias of each listed token.
pub(crate) fn apply_bias(bias: &[(u32, f32)], logits: &mut [f32]) {
    for &(id, bias) in bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
}

/// The lowest id that no mask forbids. If all are forbidden, the lowest allowed one.
pub(crate) fn lowest_permitted(
    params: &SamplingParams,
    output: &[u32],
    logits: &mut [f32],
    kept: &mut Vec<f32>,
) -> u32 {
    logits.fill(0.0);
    apply_masks(params, output, logits, kept);
    let permitted = logits.iter().position(|&logit| logit == 0.0).map(|id| id as u32);
    let in_vocabulary = params
        .allowed_token_ids
        .iter()
        .copied()
        .filter(|&id| (id as usize) < logits.len());
    permitted.or_else(|| in_vocabulary.min()).unwrap_or(0)
}

/// An empty list allows everything.
fn keep_allowed(allowed: &[u32], logits: &mut [f32], kept: &mut Vec<f32>) {
    if allowed.is_empty() {
        return;
    }
    kept.clear();
    kept.extend(
        allowed
            .iter()
            .map(|&id| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY)),
    );
    logits.fill(f32::NEG_INFINITY);
    for (&id, &logit) in allowed.iter().zip(kept.iter()) {
        if let Some(slot) = logits.get_mut(id as usize) {
            *slot = logit;
        }
    }
}

fn forbid(id: u32, logits: &mut [f32]) {
    if let Some(logit) = logits.get_mut(id as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

/// The last token of a bad word, if the output ends with all the others. Only generated tokens count, as in vLLM.
fn completes(word: &[u32], output: &[u32]) -> Option<u32> {
    let (&last, start) = word.split_last()?;
    output.ends_with(start).then_some(last)
}
