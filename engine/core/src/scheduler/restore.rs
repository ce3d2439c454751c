//! The whole state, put back from data, so that a recording needs no inputs from before.
//!
//! Law: a scheduler that was put back decides what the original decides. What comes from a file may be anything: it is put back only
//! if it adds up, and [`Scheduler::check`] has the last word.

use std::collections::BTreeSet;

use super::Scheduler;
use super::step::{Step, Work};
use crate::arena::Slot;
use crate::block::Tables;
use crate::config::MAX_POSITIONS;
use crate::ids::{SeqId, StepId};
use crate::invariant::Violation;
use crate::request::Request;
use crate::sequence::{Phase, Sequence};
use crate::trace::{Image, SequenceImage, StepImage, WorkImage};

/// No counter of a real scheduler comes near it, and none overflows that begins below it.
const MAX_COUNT: u64 = 1 << 62;

impl Scheduler {
    /// Puts a new scheduler into a state.
    ///
    /// # Errors
    /// If it can't be one under the scheduler's limits and policies; the scheduler is of no use then.
    pub(crate) fn restore(&mut self, image: &Image) -> Result<(), Violation> {
        if *image == Image::default() {
            return Ok(());
        }
        check_counters(image)?;
        self.next_seq = image.next_seq;
        self.next_step = image.next_step;
        self.now = image.now;
        self.restore_pool(image)?;
        let running: BTreeSet<SeqId> = image.running.iter().copied().collect();
        for seq in &image.seqs {
            self.restore_sequence(seq, running.contains(&seq.id))?;
        }
        for &id in &image.running {
            self.restore_running(id)?;
        }
        for (step, id) in image.in_flight.iter().zip(first_step(image)..) {
            self.restore_step(step, StepId(id))?;
        }
        let leaves = self.pool.restore_leaving(&image.pool);
        Violation::ensure(leaves, || "a block is leaving that nobody held".to_owned())?;
        self.restore_queue(image.ranks);
        let tenants = image.seqs.iter().map(|seq| seq.options.tenant);
        self.shares.restore(&image.served, image.served_floor, tenants);
        self.check()
    }

    fn restore_pool(&mut self, image: &Image) -> Result<(), Violation> {
        let num_groups = self.config.groups.len();
        let content = &image.pool.content;
        let has_groups = content
            .iter()
            .all(|(key, _)| usize::from(key.group.0) < num_groups);
        let fits = has_groups && self.pool.restore(&image.pool);
        Violation::ensure(fits, || {
            format!("its blocks aren't those of a pool of {}", self.config.num_blocks)
        })
    }

    fn restore_sequence(&mut self, image: &SequenceImage, is_running: bool) -> Result<(), Violation> {
        let SeqId(id) = image.id;
        let len = image.tokens.len();
        let max_len = (u64::from(self.layout.max_positions()) + 1).min(u64::from(self.config.max_model_len));
        let most = u64::from(image.prompt_len) + u64::from(image.stop.max_tokens);
        let possible = [
            (image.id.0 < self.next_seq, "its number"),
            (self.seqs.slot_of(image.id).is_none(), "its name"),
            (
                image.prompt_len >= 1 && image.prompt_len as usize <= len,
                "its prompt",
            ),
            (most <= max_len && len as u64 <= most, "its length"),
            (image.num_written as usize <= len, "what is written"),
            (image.num_preemptions < MAX_POSITIONS, "its preemptions"),
            (image.arrival <= self.now, "its arrival"),
            (image.blocked_since <= Some(self.now), "its wait"),
        ];
        for (is_possible, what) in possible {
            Violation::ensure(is_possible, || format!("sequence {id} can't be so: {what}"))?;
        }
        let mut seq = Sequence::restored(image);
        let tables = Tables::restored(&image.tables, self.config.groups.len(), &mut self.pool);
        seq.tables =
            tables.ok_or_else(|| Violation::new(format!("sequence {id} has blocks that nobody can have")))?;
        seq.phase = if is_running {
            Phase::Running
        } else {
            Phase::Waiting
        };
        seq.num_published = image.num_written / self.config.block_size;
        if is_running && self.reserves_ahead {
            seq.reserve(&self.layout);
        }
        if let Some(deadline) = image.options.deadline {
            self.deadlines.insert((deadline, image.id));
        }
        self.seqs.insert(seq);
        Ok(())
    }

    fn restore_running(&mut self, id: SeqId) -> Result<(), Violation> {
        let slot = self.seqs.slot_of(id);
        let slot = slot.ok_or_else(|| Violation::new(format!("sequence {} runs after its end", id.0)))?;
        self.running.push(slot);
        self.adapters.enter(self.seqs[slot].options.adapter);
        Ok(())
    }

    fn restore_step(&mut self, image: &StepImage, id: StepId) -> Result<(), Violation> {
        let total: u64 = image.work.iter().map(|work| u64::from(work.num_tokens)).sum();
        let fits = total <= u64::from(self.config.max_num_batched_tokens);
        Violation::ensure(fits, || format!("step {} has {total} tokens", id.0))?;
        let mut step = Step {
            id,
            copies: image.copies.clone(),
            ..Step::default()
        };
        let mut named = BTreeSet::new();
        for work in &image.work {
            let is_first = named.insert(work.seq);
            Violation::ensure(is_first, || {
                format!("step {} has sequence {} twice", id.0, work.seq.0)
            })?;
            step.work.push(self.restore_work(work, id)?);
        }
        let parked: Option<Vec<_>> = image.parked.iter().map(|&id| self.pool.adopt(id)).collect();
        step.parked =
            parked.ok_or_else(|| Violation::new(format!("step {} parks what nobody held", id.0)))?;
        self.in_flight.push_back(step);
        Ok(())
    }

    /// A piece of work in flight continues where the one before it ended, and computes nothing that isn't known when it is run.
    fn restore_work(&mut self, image: &WorkImage, step: StepId) -> Result<Work, Violation> {
        let &WorkImage {
            seq: id,
            num_preemptions,
            first,
            num_tokens,
            samples,
            copies_from,
        } = image;
        let end = u64::from(first) + u64::from(num_tokens);
        let mut is_possible = num_tokens > 0 && end <= u64::from(MAX_POSITIONS);
        let slot = self.seqs.slot_of(id).unwrap_or(Slot::NOWHERE);
        if let Some(seq) = self.seqs.find(slot, id) {
            if seq.phase == Phase::Running && seq.num_preemptions == num_preemptions {
                let target = u64::from(seq.target());
                is_possible &= first == seq.num_computed && end <= target && samples == (end == target);
                seq.num_computed = u32::try_from(end).unwrap_or(u32::MAX);
            } else {
                is_possible &= num_preemptions < seq.num_preemptions;
            }
            seq.num_pending = seq.num_pending.saturating_add(u32::from(samples));
            is_possible &= seq.num_output() < seq.stop.max_tokens
                && seq.num_pending <= seq.stop.max_tokens - seq.num_output();
            seq.num_in_flight += 1;
            seq.last_step = step;
        }
        Violation::ensure(is_possible, || {
            format!("step {} can't have this part for sequence {}", step.0, id.0)
        })?;
        let copy = copies_from.map(|leader| {
            let slot = self.seqs.slot_of(leader).unwrap_or(Slot::NOWHERE);
            if let Some(seq) = self.seqs.find(slot, leader) {
                seq.num_in_flight += 1;
                seq.last_step = step;
            }
            (slot, leader)
        });
        Ok(Work {
            slot,
            seq: id,
            num_preemptions,
            first,
            num_tokens,
            blocks_from: 0,
            samples,
            copy,
        })
    }

    fn restore_queue(&mut self, ranks: (i64, i64)) {
        let ids: Vec<SeqId> = self.seqs.iter().map(|seq| seq.id).collect();
        for id in ids {
            let Some(slot) = self.seqs.slot_of(id) else {
                continue;
            };
            let seq = &mut self.seqs[slot];
            if seq.phase == Phase::Waiting {
                self.waiting.insert_restored(seq, slot, self.policies.order);
            }
        }
        self.waiting.set_ranks(ranks);
    }
}

/// The number of the oldest step in flight.
fn first_step(image: &Image) -> u64 {
    image.next_step.saturating_sub(image.in_flight.len() as u64)
}

fn check_counters(image: &Image) -> Result<(), Violation> {
    let counts = [image.next_seq, image.next_step, image.served_floor];
    let served = image.served.iter().map(|&(_, served)| served);
    let are_small = counts.into_iter().chain(served).all(|count| count < MAX_COUNT)
        && image.ranks.0.unsigned_abs().max(image.ranks.1.unsigned_abs()) < MAX_COUNT
        && image.in_flight.len() as u64 <= image.next_step;
    Violation::ensure(are_small, || "it counts higher than anything can".to_owned())
}

impl Sequence {
    /// Without its blocks, as if it waited.
    fn restored(image: &SequenceImage) -> Self {
        let request = Request {
            prompt: image.tokens.as_slice().into(),
            stop: image.stop.clone(),
            priority: image.priority,
            cache_root: image.root,
            reads_prefix_cache: image.reads_prefix_cache,
        };
        let mut seq = Self::new(
            image.id,
            image.arrival,
            request,
            image.options,
            image.stop.max_tokens,
            1,
        );
        seq.prompt_len = image.prompt_len;
        seq.num_written = image.num_written;
        seq.num_computed = image.num_written;
        seq.num_preemptions = image.num_preemptions;
        seq.key.rank = image.rank;
        seq.blocked_since = image.blocked_since;
        seq.leader = image.leader;
        seq
    }
}
