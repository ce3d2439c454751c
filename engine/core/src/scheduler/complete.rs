//! The end of a step: what it wrote becomes findable, what it sampled becomes output.

use super::step::{Step, Work};
use super::{KvLayout, Scheduler};
use crate::block::{BlockPool, CachedBlock};
use crate::event::{Event, FinishReason};
use crate::ids::{GroupId, SeqId, StepId, TokenId};
use crate::plan::StepOutcome;
use crate::sequence::Sequence;
use crate::trace::Input;

/// An outcome that doesn't belong to the oldest step in flight. Nothing was changed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CompleteError {
    /// Steps complete in order, once each.
    #[error("step {} is not the oldest one in flight, which is {expected:?}", .step.0)]
    UnexpectedStep {
        /// The step that was given.
        step: StepId,
        /// The step that has to complete next, if one is in flight.
        expected: Option<StepId>,
    },
    /// Another number of tokens than the plan samples.
    #[error("step {} sampled {sampled} tokens, its plan asked for {expected}", .step.0)]
    WrongCount {
        /// Which step.
        step: StepId,
        /// Tokens given.
        sampled: usize,
        /// Sequences of the plan that sample.
        expected: usize,
    },
    /// A token for another sequence than the plan has in this place.
    #[error("step {} sampled for sequence {} where its plan has sequence {}", .step.0, .sampled.0, .expected.0)]
    WrongSequence {
        /// Which step.
        step: StepId,
        /// The sequence given.
        sampled: SeqId,
        /// The plan's sequence.
        expected: SeqId,
    },
}

impl Scheduler {
    /// Takes back what a step gave: one token for each sequence of its plan that samples, in the plan's order, also for those that were
    /// aborted meanwhile (they are dropped).
    ///
    /// # Errors
    /// If the outcome doesn't belong to the oldest step in flight; nothing is changed then, so the caller can still give the right
    /// one, or [`Scheduler::fail_step`].
    pub fn complete(
        &mut self,
        step: StepId,
        outcome: &StepOutcome,
        events: &mut Vec<Event>,
    ) -> Result<(), CompleteError> {
        self.note(|| Input::Complete(step, outcome.clone()));
        let mut done = self.take_step(step, |oldest| verify(oldest, outcome))?;
        let mut sampled = outcome.sampled.iter();
        for work in &done.work {
            let token = if work.samples {
                sampled.next().map(|&(_, token)| token)
            } else {
                None
            };
            self.complete_work(work, token, events);
        }
        self.counters.num_steps += 1;
        self.retire(&mut done);
        Ok(())
    }

    /// Ends every sequence of a step that the executor couldn't run, with [`FinishReason::Error`]. Sequences outside of the step go on.
    /// Ignored if the step is not the oldest one in flight.
    pub fn fail_step(&mut self, step: StepId, events: &mut Vec<Event>) {
        self.note(|| Input::FailStep(step));
        let Ok(mut failed) = self.take_step(step, |_| Ok(())) else {
            return;
        };
        for work in &failed.work {
            self.leave_step(work);
        }
        for work in &failed.work {
            if self.seqs.find(work.slot, work.seq).is_some() {
                self.end(work.slot, FinishReason::Error, events);
            }
        }
        self.retire(&mut failed);
    }

    fn take_step(
        &mut self,
        step: StepId,
        verify: impl FnOnce(&Step) -> Result<(), CompleteError>,
    ) -> Result<Step, CompleteError> {
        let expected = self.in_flight.front().map(|oldest| oldest.id);
        let Some(oldest) = self.in_flight.front().filter(|oldest| oldest.id == step) else {
            return Err(CompleteError::UnexpectedStep { step, expected });
        };
        verify(oldest)?;
        self.in_flight
            .pop_front()
            .ok_or(CompleteError::UnexpectedStep { step, expected })
    }

    /// A step no longer touches the blocks of a sequence, nor of the one that it copied from.
    fn leave_step(&mut self, work: &Work) {
        let leader = work.copy.and_then(|(slot, id)| self.seqs.find(slot, id));
        if let Some(leader) = leader {
            leader.num_in_flight -= 1;
        }
        if let Some(seq) = self.seqs.find(work.slot, work.seq) {
            seq.num_in_flight -= 1;
            seq.num_pending -= u32::from(work.samples);
        }
    }

    fn complete_work(&mut self, work: &Work, token: Option<TokenId>, events: &mut Vec<Event>) {
        self.leave_step(work);
        let Some(seq) = self.seqs.find(work.slot, work.seq) else {
            return;
        };
        let num_written = work.first + work.num_tokens;
        let computed_prompt = num_written.min(seq.prompt_len).saturating_sub(work.first);
        self.counters.num_prompt_tokens += u64::from(computed_prompt);
        // A sequence preempted since has lost what the step wrote, but not what it sampled.
        if seq.num_preemptions == work.num_preemptions {
            seq.num_written = num_written;
            if num_written / self.config.block_size > seq.num_published {
                seal_full_blocks(
                    seq,
                    &mut self.pool,
                    self.config.block_size,
                    self.config.enable_prefix_caching,
                );
            }
            if !self.layout.windows().is_empty() {
                drop_behind_windows(seq, &mut self.pool, &self.layout);
            }
        }
        let Some(token) = token else { return };
        self.counters.num_generation_tokens += 1;
        let reason = seq.push_output(token);
        events.push(Event::Token { seq: work.seq, token });
        if let Some(reason) = reason {
            self.end(work.slot, reason, events);
        }
    }

    fn retire(&mut self, step: &mut Step) {
        self.pool.release_all(&mut step.parked);
        step.work.clear();
        step.copies.clear();
        self.spare.push(std::mem::take(step));
    }
}

/// Seals the blocks that are full and written, output included: nobody writes to them again. With a prefix cache they can be found.
fn seal_full_blocks(seq: &mut Sequence, pool: &mut BlockPool, block_size: u32, is_cached: bool) {
    let num_full = seq.num_written / block_size;
    if is_cached {
        pool.log().act_for(seq.id);
        for index in seq.num_published..num_full {
            let hash = seq.block_hash(index, block_size);
            for (group, table) in seq.tables.iter().enumerate() {
                if let Some(block) = table.get(index) {
                    let content = CachedBlock {
                        group: GroupId(group as u8),
                        hash,
                    };
                    pool.publish(block, content, || seq.content(group, index, block_size));
                }
            }
        }
    }
    seq.num_published = num_full;
}

/// Gives back what no position from the next one on reads. Steps in flight begin there or later, so they don't read it either, and nothing has to
/// be parked.
fn drop_behind_windows(seq: &mut Sequence, pool: &mut BlockPool, layout: &KvLayout) {
    for &(at, group) in layout.windows() {
        let num_behind = group.num_behind(seq.num_written, layout.block_size());
        seq.tables.get_mut(at).drop_before(num_behind, pool);
    }
}

fn verify(step: &Step, outcome: &StepOutcome) -> Result<(), CompleteError> {
    let expected = step.work.iter().filter(|work| work.samples).count();
    let sampled = outcome.sampled.len();
    if sampled != expected {
        return Err(CompleteError::WrongCount {
            step: step.id,
            sampled,
            expected,
        });
    }
    let planned = step.work.iter().filter(|work| work.samples).map(|work| work.seq);
    match planned
        .zip(&outcome.sampled)
        .find(|(planned, (sampled, _))| planned != sampled)
    {
        Some((expected, &(sampled, _))) => Err(CompleteError::WrongSequence {
            step: step.id,
            sampled,
            expected,
        }),
        None => Ok(()),
    }
}
