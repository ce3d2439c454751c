//! A step while it is planned, and what is remembered of it until it completes.
//!
//! First it is decided who computes what, which can be taken back; then the decisions are written into the plan.

use super::Scheduler;
use crate::arena::Slot;
use crate::block::BlockRef;
use crate::event::Event;
use crate::ids::{BlockId, GroupId, SeqId, StepId};
use crate::plan::{BlockCopy, PENDING_TOKEN, SeqPlan, StepPlan};
use crate::sequence::Sequence;

/// A planned step that hasn't completed.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct Step {
    pub(crate) id: StepId,
    /// In the plan's order.
    pub(crate) work: Vec<Work>,
    /// Blocks of sequences that ended or were preempted meanwhile: the executor still touches them.
    pub(crate) parked: Vec<BlockRef>,
    /// Blocks from which sequences of the step copy, those of one sequence in the order of the groups.
    pub(crate) copies: Vec<(SeqId, BlockId)>,
}

/// What a step does for one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) slot: Slot,
    pub(crate) seq: SeqId,
    /// How often the sequence had been preempted: its blocks are others after that.
    pub(crate) num_preemptions: u32,
    pub(crate) first: u32,
    pub(crate) num_tokens: u32,
    /// Entries of its block table that the executor knows.
    pub(crate) blocks_from: u32,
    pub(crate) samples: bool,
    /// The sequence from which it copies the positions before `first`, back to the start of their block.
    pub(crate) copy: Option<(Slot, SeqId)>,
}

impl Default for Step {
    fn default() -> Self {
        Self {
            id: StepId(0),
            work: Vec::new(),
            parked: Vec::new(),
            copies: Vec::new(),
        }
    }
}

/// One call of `schedule` under way.
pub(crate) struct Pass<'a> {
    /// Positions that this step can still take, without drafts.
    tokens_left: u32,
    /// Positions that this step can still take, with drafts.
    input_left: u32,
    draft_slots: u32,
    /// The largest piece of one sequence.
    max_chunk: u32,
    /// Whether a sequence had to give way: nobody is admitted then (S7).
    pub(crate) preempted: bool,
    /// Whether a running sequence waits for blocks that a step in flight holds: nobody takes any then.
    pub(crate) waits_for_blocks: bool,
    pub(crate) step: &'a mut Step,
    pub(crate) events: &'a mut Vec<Event>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(scheduler: &Scheduler, step: &'a mut Step, events: &'a mut Vec<Event>) -> Self {
        let input = scheduler.config.max_num_batched_tokens;
        Self {
            tokens_left: scheduler.policies.max_num_scheduled_tokens.unwrap_or(input),
            input_left: input,
            draft_slots: scheduler.policies.draft_slots,
            max_chunk: scheduler.max_chunk(),
            preempted: false,
            waits_for_blocks: false,
            step,
            events,
        }
    }

    /// Whether nothing more can be planned (S8).
    pub(crate) fn is_full(&self) -> bool {
        self.tokens_left == 0 || self.input_left <= self.draft_slots
    }

    /// How many positions the sequence gets if `num_computed` of its tokens are computed (S3).
    pub(crate) fn chunk(&self, seq: &Sequence, num_computed: u32) -> u32 {
        seq.num_wanted(num_computed)
            .min(self.max_chunk)
            .min(self.tokens_left)
            .min(self.input_left.saturating_sub(self.draft_slots))
    }

    /// Decides to compute the sequence's next `num_tokens` positions, which its blocks cover. Those from index `blocks_from` on are new to
    /// the executor.
    pub(crate) fn push(&mut self, seq: &mut Sequence, slot: Slot, num_tokens: u32, blocks_from: u32) {
        let (first, end) = (seq.num_computed, seq.num_computed + num_tokens);
        self.step.work.push(Work {
            slot,
            seq: seq.id,
            num_preemptions: seq.num_preemptions,
            first,
            num_tokens,
            blocks_from,
            samples: end == seq.target(),
            copy: None,
        });
        self.tokens_left -= num_tokens;
        self.input_left -= num_tokens + self.draft_slots;
        seq.num_computed = end;
    }

    /// The sequence that was decided on last starts with a copied block in each group.
    pub(crate) fn copy_from(
        &mut self,
        seq: SeqId,
        leader: (Slot, SeqId),
        blocks: impl Iterator<Item = BlockId>,
    ) {
        if let Some(work) = self.step.work.last_mut() {
            work.copy = Some(leader);
            self.step.copies.extend(blocks.map(|block| (seq, block)));
        }
    }

    /// Takes back what was decided for a sequence, and says how many positions that were (S6).
    pub(crate) fn take_back(&mut self, slot: Slot) -> Option<u32> {
        let at = self.step.work.iter().position(|work| work.slot == slot)?;
        let Work {
            seq,
            num_tokens,
            copy,
            ..
        } = self.step.work.remove(at);
        if copy.is_some() {
            self.step.copies.retain(|&(copying, _)| copying != seq);
        }
        self.tokens_left += num_tokens;
        self.input_left += num_tokens + self.draft_slots;
        Some(num_tokens)
    }
}

impl Scheduler {
    /// Writes what was decided into `plan` and puts the step in flight.
    pub(super) fn commit(&mut self, mut step: Step, plan: &mut StepPlan) {
        step.id = StepId(self.next_step);
        plan.step = step.id;
        plan.num_groups = self.layout.num_groups();
        self.next_step += 1;
        for work in &step.work {
            self.write(work, &step.copies, plan);
            if let Some((slot, id)) = work.copy
                && let Some(leader) = self.seqs.find(slot, id)
            {
                leader.num_in_flight += 1;
                leader.last_step = step.id;
            }
            let seq = &mut self.seqs[work.slot];
            seq.num_in_flight += 1;
            seq.last_step = step.id;
            seq.num_pending += u32::from(work.samples);
        }
        self.in_flight.push_back(step);
    }

    fn write(&self, work: &Work, copies: &[(SeqId, BlockId)], plan: &mut StepPlan) {
        let seq = &self.seqs[work.slot];
        let tokens_start = plan.tokens.len();
        let (first, end) = (work.first, work.first + work.num_tokens);
        // The last ones may still be in the making.
        let num_known = seq.num_tokens();
        let known = first.min(num_known)..end.min(num_known);
        if known.len() == 1 && known.end == num_known {
            plan.tokens.push(seq.last_token);
        } else {
            seq.tokens.copy(known, &mut plan.tokens);
        }
        plan.tokens
            .resize(tokens_start + work.num_tokens as usize, PENDING_TOKEN);
        if work.copy.is_some() {
            self.write_copies(seq, first, copies, plan);
        }
        let blocks_start = plan.blocks.len();
        // Most steps of a sequence need no block.
        if work.blocks_from < seq.tables.len() {
            seq.tables.write_from(work.blocks_from, &mut plan.blocks);
        }
        plan.seqs.push(SeqPlan {
            seq: seq.id,
            first_position: first,
            tokens: tokens_start..plan.tokens.len(),
            blocks_from: work.blocks_from,
            blocks: blocks_start..plan.blocks.len(),
            samples: work.samples,
            output_index: seq.num_output() + seq.num_pending,
        });
    }

    fn write_copies(&self, seq: &Sequence, first: u32, copies: &[(SeqId, BlockId)], plan: &mut StepPlan) {
        let block_size = self.config.block_size;
        let from = copies.iter().filter(|&&(copying, _)| copying == seq.id);
        let to = seq
            .tables
            .iter()
            .filter_map(|table| table.get(first / block_size));
        for (group, (&(_, from), to)) in (0..).zip(from.zip(to)) {
            plan.copies.push(BlockCopy {
                seq: seq.id,
                group: GroupId(group),
                from,
                to: to.id(),
                num_positions: first % block_size,
            });
        }
    }
}
