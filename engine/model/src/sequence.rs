//! What is remembered of a sequence from step to step: on the caller's side to check plans, on the executor's thread to run them.

use std::sync::Arc;

use kvasir_backend::NewSequence;
use kvasir_engine_core::{BlockId, PENDING_TOKEN, TokenId};
use kvasir_sampling::{SequenceSampler, TokenLogprobs, token_logprobs};

/// A sequence as the caller has planned it: all steps in flight count as done.
pub(crate) struct Planned {
    pub(crate) prompt: Arc<[TokenId]>,
    /// False if a prompt token has no row in the embedding; no plan for such a sequence is accepted.
    pub(crate) prompt_is_in_vocab: bool,
    /// Entries of its block table.
    pub(crate) num_blocks: usize,
    /// Tokens sampled by all steps, those in flight included.
    pub(crate) num_outputs: usize,
    /// Those of them that the caller was told.
    pub(crate) num_told: usize,
}

impl Planned {
    pub(crate) fn new(new: &NewSequence, vocab_size: usize) -> Self {
        Self {
            prompt: Arc::clone(&new.prompt),
            prompt_is_in_vocab: new.prompt.iter().all(|token| (*token as usize) < vocab_size),
            num_blocks: 0,
            num_outputs: 0,
            num_told: 0,
        }
    }

    /// Whether a step in flight samples the token at this position.
    pub(crate) fn is_being_sampled(&self, position: usize) -> bool {
        position
            .checked_sub(self.prompt.len())
            .is_some_and(|output| (self.num_told..self.num_outputs).contains(&output))
    }
}

/// A sequence as the executor's thread has run it.
pub(crate) struct Sequence {
    /// Physical blocks of its positions, as the plans so far say.
    pub(crate) blocks: Vec<BlockId>,
    prompt: Arc<[TokenId]>,
    pub(crate) sampler: SequenceSampler,
    prompt_logprobs: Option<PromptLogprobs>,
    /// Why nothing more can be computed for it.
    pub(crate) lost: Option<String>,
}

/// A wish for the log probabilities of the prompt's tokens.
#[derive(Clone, Copy, Debug)]
struct PromptLogprobs {
    /// Alternatives per token.
    top: u32,
    /// The position whose token is reported next. A prompt that is computed again after a preemption reports nothing
    /// twice.
    next: usize,
}

impl Sequence {
    pub(crate) fn new(new: &NewSequence, vocab_size: usize) -> Self {
        Self {
            blocks: Vec::new(),
            prompt: Arc::clone(&new.prompt),
            sampler: SequenceSampler::new(Arc::clone(&new.sampling), &new.prompt, vocab_size),
            prompt_logprobs: new.prompt_logprobs.map(|top| PromptLogprobs { top, next: 1 }),
            lost: None,
        }
    }

    /// The plan's token, or the one that was sampled for this position since the plan was made. The plan's checks have seen to it that there is one.
    pub(crate) fn resolve(&self, token: TokenId, position: usize) -> TokenId {
        if token != PENDING_TOKEN {
            return token;
        }
        let output = position.checked_sub(self.prompt.len());
        let sampled = output.and_then(|output| self.sampler.output().get(output));
        sampled.copied().unwrap_or(PENDING_TOKEN)
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
