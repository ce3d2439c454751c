//! What the executor remembers of a sequence from step to step.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvasir_backend::NewSequence;
use kvasir_engine_core::{BlockId, SeqId, TokenId};
use kvasir_sampling::{SequenceSampler, TokenLogprobs, token_logprobs};

/// All sequences that were admitted and not yet released.
pub(crate) type Sequences = BTreeMap<SeqId, Sequence>;

/// One sequence.
pub(crate) struct Sequence {
    /// Physical blocks of its positions, as the plans so far say.
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) prompt: Arc<[TokenId]>,
    /// False if a prompt token has no row in the embedding; no plan for such a sequence is accepted.
    pub(crate) prompt_is_in_vocab: bool,
    pub(crate) sampler: SequenceSampler,
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    /// Released while a step that names it is in flight; it goes when the step is sampled.
    pub(crate) is_released: bool,
}

/// A wish for the log probabilities of the prompt's tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptLogprobs {
    /// Alternatives per token.
    pub(crate) top: u32,
    /// The position whose token is reported next. A prompt that is computed again after a preemption reports nothing
    /// twice.
    pub(crate) next: usize,
}

impl Sequence {
    pub(crate) fn new(new: &NewSequence, vocab_size: usize) -> Self {
        Self {
            blocks: Vec::new(),
            prompt: Arc::clone(&new.prompt),
            prompt_is_in_vocab: new.prompt.iter().all(|token| (*token as usize) < vocab_size),
            sampler: SequenceSampler::new(Arc::clone(&new.sampling), &new.prompt, vocab_size),
            prompt_logprobs: new.prompt_logprobs.map(|top| PromptLogprobs { top, next: 1 }),
            is_released: false,
        }
    }

    /// Whether the logits after `position` give the log probability of a prompt token that was not reported yet.
    pub(crate) fn wants_logprobs_after(&self, position: usize) -> bool {
        let next = position + 1;
        self.prompt_logprobs
            .is_some_and(|wish| next >= wish.next && next < self.prompt.len())
    }

    /// The log probability of the prompt's token after `position`; its turn is over then.
    pub(crate) fn prompt_logprobs_after(&mut self, position: usize, logits: &[f32]) -> Option<TokenLogprobs> {
        let wish = self.prompt_logprobs.as_mut()?;
        let token = *self.prompt.get(position + 1)?;
        wish.next = position + 2;
        Some(token_logprobs(logits, token, wish.top))
    }
}
