//! The handoff contract between scheduler and executor: plain, device-neutral data.
//!
//! A worker can't execute tokens that the scheduler has not assigned and backed with blocks.

use std::fmt;
use std::ops::Range;

use crate::ids::{BlockId, GroupId, SeqId, StepId, TokenId};

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
    /// KV groups, at least 1: every sequence has so many block tables, all of them equally long.
    pub num_groups: u32,
    /// New block table entries of all sequences, addressed by [`SeqPlan::blocks`], see [`StepPlan::blocks_of`].
    pub blocks: Vec<BlockId>,
    /// KV to copy before anything of this step is computed, all reads before all writes. Empty unless
    /// [`Policies::share_group_prompts`](crate::Policies::share_group_prompts) is on.
    pub copies: Vec<BlockCopy>,
}

/// Copy the first positions of one block to another one: the sequence that gets `to` shares a prompt whose last block isn't full.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockCopy {
    /// The sequence that owns `to` and is in the same plan.
    pub seq: SeqId,
    /// The KV group of both blocks.
    pub group: GroupId,
    /// Holds the positions.
    pub from: BlockId,
    /// Gets them, at the same offsets.
    pub to: BlockId,
    /// How many, counted from the block's start, in all layers; at least 1 and below the block's size.
    pub num_positions: u32,
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
    /// Logical index at which `blocks` begins: the executor cuts its block tables there and appends.
    pub blocks_from: u32,
    /// The change of its block tables, a range of [`StepPlan::blocks`]; may be empty. With several groups it has one piece for each of them, in
    /// order and equally long.
    ///
    /// In a group with a window, entries of which nothing is read are the null block, which no executor touches. Entries that come to lie
    /// behind the window later are not sent again: an executor must not read blocks in front of
    /// [`KvGroup::num_behind`](crate::KvGroup::num_behind), which may hold another sequence's KV by now.
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
            num_groups: 1,
            blocks: Vec::new(),
            copies: Vec::new(),
        }
    }

    /// Takes all work out and keeps the buffers.
    pub(crate) fn clear(&mut self) {
        self.seqs.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.copies.clear();
    }

    /// The change of a sequence's block table in one KV group: entries from `part.blocks_from` on. Empty for a group that the plan doesn't have.
    pub fn blocks_of(&self, part: &SeqPlan, group: GroupId) -> &[BlockId] {
        let pieces = self.blocks.get(part.blocks.clone()).unwrap_or_default();
        let len = pieces.len() / self.num_groups.max(1) as usize;
        let start = len * usize::from(group.0);
        pieces.get(start..start + len).unwrap_or_default()
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

/// One line for the step, one for each sequence's part: equal plans give equal text, and other plans other text.
impl fmt::Display for StepPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step {} tokens {}", self.step.0, self.num_tokens())?;
        for copy in &self.copies {
            let BlockCopy {
                seq,
                group,
                from,
                to,
                num_positions,
            } = copy;
            writeln!(
                f,
                "  copy {num_positions} from {} to {} in group {} for {}",
                from.0, to.0, group.0, seq.0
            )?;
        }
        for part in &self.seqs {
            let samples = if part.samples { " samples" } else { "" };
            write!(
                f,
                "  seq {} at {} output {}{samples} tokens",
                part.seq.0, part.first_position, part.output_index
            )?;
            for &token in &self.tokens[part.tokens.clone()] {
                match token {
                    PENDING_TOKEN => f.write_str(" ?")?,
                    token => write!(f, " {token}")?,
                }
            }
            write!(f, " blocks {}..", part.blocks_from)?;
            for group in 0..self.num_groups {
                f.write_str(if group > 0 { " |" } else { "" })?;
                for block in self.blocks_of(part, GroupId(group as u8)) {
                    write!(f, " {}", block.0)?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
