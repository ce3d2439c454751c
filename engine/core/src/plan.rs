//! The handoff contract between scheduler and executor: plain, device-neutral data.
//!
//! A worker can't execute tokens that the scheduler has not assigned and backed with blocks.

use std::ops::Range;

use crate::ids::{BlockId, SeqId, StepId, TokenId};

/// Stands for an input token that an earlier step in flight is still sampling.
pub const PENDING_TOKEN: TokenId = TokenId::MAX;

/// The work of one step. Flat buffers that are reused from step to step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StepPlan {
    /// Which step.
    pub step: StepId,
    /// The sequences, in the order they were scheduled.
    pub seqs: Vec<SeqPlan>,
    /// Input tokens of all sequences, addressed by [`SeqPlan::tokens`].
    pub tokens: Vec<TokenId>,
    /// New block table entries of all sequences, addressed by [`SeqPlan::blocks`].
    pub blocks: Vec<BlockId>,
}

/// One sequence's part in a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeqPlan {
    /// Which sequence.
    pub seq: SeqId,
    /// Position of its first input token; all earlier positions are in the KV cache.
    pub first_position: u32,
    /// Its input tokens, a range of [`StepPlan::tokens`], never empty.
    pub tokens: Range<usize>,
    /// Logical index at which `blocks` begins: the executor cuts its block table there and appends.
    pub blocks_from: u32,
    /// The change of its block table, a range of [`StepPlan::blocks`]; may be empty.
    pub blocks: Range<usize>,
    /// Whether the last input token's logits are sampled.
    pub samples: bool,
    /// How many output tokens precede the one sampled here: the position of the draw.
    pub output_index: u32,
}

impl StepPlan {
    /// A plan without work, to be filled by the scheduler again and again.
    pub fn new() -> Self {
        Self {
            step: StepId(0),
            seqs: Vec::new(),
            tokens: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Takes all work out and keeps the buffers.
    pub(crate) fn clear(&mut self) {
        self.seqs.clear();
        self.tokens.clear();
        self.blocks.clear();
    }

    /// Input positions computed by this step.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }
}

impl Default for StepPlan {
    fn default() -> Self {
        Self::new()
    }
}

/// What came out of a step: one token for each sequence of the plan that samples, in the plan's order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StepOutcome {
    /// The sampled tokens.
    pub sampled: Vec<(SeqId, TokenId)>,
}
