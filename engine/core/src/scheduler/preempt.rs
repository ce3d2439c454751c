//! Taking the blocks of a running sequence; it is computed again later (S6, S16).
//!
//! Law: a preempted sequence keeps its tokens, and those that steps in flight still sample for it are delivered when the steps complete. Its
//! blocks are free at once, or, if a step in flight names it, when the newest such step completes. It doesn't start again before its tokens
//! are all known, so its output is what it is without preemption (cases T13 and C23).

use std::collections::VecDeque;

use super::Scheduler;
use super::step::{Pass, Step, Work};
use crate::block::{BlockPool, BlockRef};
use crate::event::Event;
use crate::sequence::{Phase, Sequence};

/// What asking for blocks led to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Room {
    /// They are free now; the sequence that asked is at this index of the running set.
    Made(usize),
    /// They will be free when the steps in flight complete.
    Later,
    /// The sequence that asked had to give way itself.
    Gone,
}

impl Scheduler {
    /// Frees `num_blocks` for the sequence at `index` of the running set, by preempting others and in the end itself.
    pub(super) fn make_room(&mut self, mut index: usize, num_blocks: u32, pass: &mut Pass<'_>) -> Room {
        loop {
            let free = self.pool.num_free();
            if num_blocks <= free {
                return Room::Made(index);
            }
            if num_blocks <= free + self.num_due() {
                pass.waits_for_blocks = true;
                return Room::Later;
            }
            let victim = self.victim();
            self.preempt(victim, pass);
            pass.preempted = true;
            match victim.cmp(&index) {
                std::cmp::Ordering::Less => index -= 1,
                std::cmp::Ordering::Equal => return Room::Gone,
                std::cmp::Ordering::Greater => {}
            }
        }
    }

    /// Preempts one of the running set. What this step has planned for it is taken back.
    pub(super) fn preempt(&mut self, index: usize, pass: &mut Pass<'_>) {
        let slot = self.running.remove(index);
        if let Some(num_tokens) = pass.take_back(slot) {
            self.shares.refund(&self.seqs[slot].options, num_tokens);
        }
        let seq = &mut self.seqs[slot];
        self.adapters.leave(seq.options.adapter);
        give_back(seq, &mut self.pool, &mut self.in_flight);
        seq.phase = Phase::Waiting;
        seq.num_computed = 0;
        seq.num_written = 0;
        seq.num_published = 0;
        seq.num_preemptions += 1;
        self.waiting.push_front(seq, slot, self.policies.order);
        self.counters.num_preemptions += 1;
        pass.events.push(Event::Preempted { seq: seq.id });
    }

    /// Blocks that nobody will hold when the steps in flight complete: those that are parked, and those that will lie behind a window. Only
    /// asked when blocks run out.
    pub(super) fn num_due(&self) -> u32 {
        let parked = self.in_flight.iter().flat_map(|step| &step.parked);
        let works = self.in_flight.iter().flat_map(|step| &step.work);
        let held_once = |block: &&BlockRef| self.pool.num_refs(block.id()) == 1;
        let behind = works.flat_map(|work| self.blocks_left_behind(work));
        parked.filter(held_once).count() as u32 + behind.filter(held_once).count() as u32
    }

    /// The blocks that leave every window when a piece of work completes.
    fn blocks_left_behind(&self, work: &Work) -> impl Iterator<Item = &BlockRef> {
        let windows = self.layout.windows();
        let seq = self.seqs.get(work.slot, work.seq).filter(|_| !windows.is_empty());
        let seq = seq.filter(|seq| seq.num_preemptions == work.num_preemptions);
        let (before, after) = (work.first, work.first + work.num_tokens);
        let block_size = self.config.block_size;
        seq.into_iter().flat_map(move |seq| {
            windows.iter().flat_map(move |&(at, group)| {
                let left = group.num_behind(before, block_size)..group.num_behind(after, block_size);
                left.filter_map(move |index| seq.tables.get(at).get(index))
            })
        })
    }
}

/// Frees a sequence's blocks, the last one first, or parks them in the newest step in flight that names it: it is the last one to touch them.
pub(super) fn give_back(seq: &mut Sequence, pool: &mut BlockPool, in_flight: &mut VecDeque<Step>) {
    let oldest = in_flight.front().map_or(0, |step| step.id.0);
    let newest = (seq.last_step.0.saturating_sub(oldest)) as usize;
    match in_flight.get_mut(newest).filter(|_| seq.num_in_flight > 0) {
        Some(step) => seq.tables.park(&mut step.parked),
        None => seq.tables.release(pool),
    }
}
