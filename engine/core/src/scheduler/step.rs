//! A step while it is planned, and what is remembered of it until it completes.

use crate::block::BlockRef;
use crate::event::Event;
use crate::ids::{SeqId, StepId};
use crate::plan::{SeqPlan, StepPlan};
use crate::sequence::Sequence;

/// A planned step that hasn't completed.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) id: StepId,
    /// In the plan's order.
    pub(crate) work: Vec<Work>,
    /// Blocks of sequences that were aborted meanwhile: the executor still writes to them.
    pub(crate) parked: Vec<BlockRef>,
}

/// What a step does for one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) seq: SeqId,
    pub(crate) num_tokens: u32,
    /// Positions of the sequence that are written once the step completes.
    pub(crate) num_written: u32,
    pub(crate) samples: bool,
}

impl Default for Step {
    fn default() -> Self {
        Self {
            id: StepId(0),
            work: Vec::new(),
            parked: Vec::new(),
        }
    }
}

impl Step {
    pub(crate) fn names(&self, seq: SeqId) -> bool {
        self.work.iter().any(|work| work.seq == seq)
    }
}

/// One call of `schedule` under way.
pub(crate) struct Pass<'a> {
    /// Input positions that this step can still take.
    pub(crate) tokens_left: u32,
    /// The largest piece of one sequence.
    pub(crate) max_chunk: u32,
    pub(crate) plan: &'a mut StepPlan,
    pub(crate) step: &'a mut Step,
    pub(crate) events: &'a mut Vec<Event>,
}

impl Pass<'_> {
    /// How many positions the sequence gets if `num_computed` of its tokens are computed.
    pub(crate) fn chunk(&self, seq: &Sequence, num_computed: u32) -> u32 {
        (seq.num_tokens() - num_computed)
            .min(self.max_chunk)
            .min(self.tokens_left)
    }

    /// Plans the sequence's next `num_tokens` positions, which its blocks cover. Those from index `blocks_from` on are new to the executor.
    pub(crate) fn push(&mut self, seq: &mut Sequence, num_tokens: u32, blocks_from: u32) {
        let (first, end) = (seq.num_computed, seq.num_computed + num_tokens);
        let samples = end == seq.num_tokens();
        let tokens_start = self.plan.tokens.len();
        self.plan
            .tokens
            .extend_from_slice(&seq.tokens[first as usize..end as usize]);
        let blocks_start = self.plan.blocks.len();
        self.plan
            .blocks
            .extend(seq.blocks[blocks_from as usize..].iter().map(BlockRef::id));
        self.plan.seqs.push(SeqPlan {
            seq: seq.id,
            first_position: first,
            tokens: tokens_start..self.plan.tokens.len(),
            blocks_from,
            blocks: blocks_start..self.plan.blocks.len(),
            samples,
            output_index: seq.num_output(),
        });
        self.step.work.push(Work {
            seq: seq.id,
            num_tokens,
            num_written: end,
            samples,
        });
        self.tokens_left -= num_tokens;
        seq.num_computed = end;
    }
}
