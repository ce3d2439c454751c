//! The last steps, and those in flight: what each computed for whom, and how long it took.

use std::collections::VecDeque;
use std::sync::Arc;

use kvasir_backend::ExecError;
use kvasir_engine_core::{Micros, SeqId, SeqPlan, Stats, StepId, StepPlan};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::worker::StepTime;

/// A step as it is remembered, in dumps and as an event of level debug and target `kvasir::step`. Times are in microseconds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StepRecord {
    /// Its id, as in plans.
    pub step: u64,
    /// When it was planned, since the engine started.
    pub planned_us: u64,
    /// Its sequences, in the plan's order.
    pub seqs: Vec<StepPart>,
    /// Prompt tokens computed.
    pub num_prompt_tokens: u32,
    /// Tokens computed that had been sampled before.
    pub num_output_tokens: u32,
    /// Sequences in the running set when it was planned, with those that it admitted.
    pub num_running: u32,
    /// Sequences that waited.
    pub num_waiting: u32,
    /// Prompt tokens of those.
    pub num_queued_tokens: u64,
    /// Blocks that nobody held.
    pub num_free_blocks: u32,
    /// Planning.
    pub schedule_us: u64,
    /// The executor's submit call.
    pub launch_us: u64,
    /// The executor's work, from its submission or the end of the step before to its result.
    pub execute_us: u64,
    /// Waiting for the result.
    pub wait_us: u64,
    /// Taking the result.
    pub complete_us: u64,
    /// Routing outputs.
    pub deliver_us: u64,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// One sequence's part in a step.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct StepPart {
    /// The id that the client gave its request.
    #[serde(serialize_with = "put_str", deserialize_with = "take_str")]
    pub request_id: Arc<str>,
    /// Which of the request's sequences.
    pub index: u32,
    /// The scheduler's name for it.
    pub seq: u64,
    /// Position of its first input token.
    pub first_position: u32,
    /// Its input tokens: the chunk.
    pub num_tokens: u32,
    /// Those of them that are the prompt's.
    pub num_prompt_tokens: u32,
    /// Whether a token is sampled.
    pub samples: bool,
}

fn put_str<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn take_str<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    String::deserialize(deserializer).map(Arc::from)
}

/// A step in flight.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) plan: Arc<StepPlan>,
    pub(crate) record: StepRecord,
}

/// See the module's documentation. Bounded; buffers are reused.
#[derive(Debug)]
pub(crate) struct Journal {
    max_records: usize,
    max_digests: usize,
    in_flight: VecDeque<Begun>,
    done: VecDeque<StepRecord>,
    digests: VecDeque<(StepId, u32)>,
    scratch: Vec<u8>,
}

impl Journal {
    /// Keeps records of the last steps, and digests of the last plans.
    pub(crate) fn new(max_records: usize, max_digests: usize) -> Self {
        Self {
            max_records,
            max_digests,
            in_flight: VecDeque::new(),
            done: VecDeque::new(),
            digests: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    /// A step is about to be submitted; `describe` knows its sequences.
    pub(crate) fn begin(
        &mut self,
        plan: &Arc<StepPlan>,
        now: Micros,
        stats: &Stats,
        describe: impl Fn(&SeqPlan) -> Option<StepPart>,
    ) {
        self.note_digest(plan);
        let oldest = if self.done.len() >= self.max_records {
            self.done.pop_front()
        } else {
            None
        };
        let mut seqs = oldest.unwrap_or_default().seqs;
        seqs.clear();
        seqs.extend(plan.seqs.iter().filter_map(describe));
        let num_prompt_tokens = seqs.iter().map(|part| part.num_prompt_tokens).sum();
        let record = StepRecord {
            step: plan.step.0,
            planned_us: now.0,
            seqs,
            num_prompt_tokens,
            num_output_tokens: plan.num_tokens() as u32 - num_prompt_tokens,
            num_running: stats.num_running,
            num_waiting: stats.num_waiting,
            num_queued_tokens: stats.num_queued_tokens,
            num_free_blocks: stats.num_free_blocks,
            ..StepRecord::default()
        };
        self.in_flight.push_back(Begun {
            plan: Arc::clone(plan),
            record,
        });
    }

    /// The oldest step in flight has ended.
    pub(crate) fn end(&mut self, step: StepId, time: StepTime, failure: Option<ExecError>) {
        let Some(Begun { record, .. }) = self.in_flight.pop_front() else {
            return;
        };
        debug_assert_eq!(record.step, step.0, "steps end in order");
        let us = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let record = StepRecord {
            schedule_us: us(time.schedule),
            launch_us: us(time.launch),
            execute_us: us(time.execute),
            wait_us: us(time.wait),
            complete_us: us(time.complete),
            deliver_us: us(time.deliver),
            failure: failure.map(|error| error.to_string()),
            ..record
        };
        record.log();
        if self.max_records > 0 {
            // With several steps in flight not every one of them found an old record to replace.
            let excess = (self.done.len() + 1).saturating_sub(self.max_records);
            self.done.drain(..excess);
            self.done.push_back(record);
        }
    }

    /// Oldest first.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &Begun> {
        self.in_flight.iter()
    }

    /// The sequences of the steps in flight.
    pub(crate) fn seqs_in_flight(&self) -> Vec<SeqId> {
        let plans = self.in_flight.iter().flat_map(|begun| &begun.plan.seqs);
        plans.map(|planned| planned.seq).collect()
    }

    /// The last steps that ended, oldest first.
    pub(crate) fn done(&self) -> impl Iterator<Item = &StepRecord> {
        self.done.iter()
    }

    /// Digests of the last plans, oldest first.
    pub(crate) fn digests(&self) -> impl Iterator<Item = (StepId, u32)> {
        self.digests.iter().copied()
    }

    fn note_digest(&mut self, plan: &StepPlan) {
        if self.max_digests == 0 {
            return;
        }
        if self.digests.len() >= self.max_digests {
            self.digests.pop_front();
        }
        let digest = plan_digest(plan, &mut self.scratch);
        self.digests.push_back((plan.step, digest));
    }
}

impl StepRecord {
    fn log(&self) {
        tracing::debug!(
            target: "kvasir::step",
            step = self.step,
            sequences = self.seqs.len(),
            prompt_tokens = self.num_prompt_tokens,
            output_tokens = self.num_output_tokens,
            running = self.num_running,
            waiting = self.num_waiting,
            queued_tokens = self.num_queued_tokens,
            free_blocks = self.num_free_blocks,
            schedule_us = self.schedule_us,
            launch_us = self.launch_us,
            execute_us = self.execute_us,
            wait_us = self.wait_us,
            complete_us = self.complete_us,
            deliver_us = self.deliver_us,
            failure = self.failure.as_deref(),
            parts = %Parts(&self.seqs),
            "step"
        );
    }
}

/// `request[index]@position+tokens`, one per sequence.
struct Parts<'a>(&'a [StepPart]);

impl std::fmt::Display for Parts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (place, part) in self.0.iter().enumerate() {
            let space = if place > 0 { " " } else { "" };
            write!(
                f,
                "{space}{}[{}]@{}+{}",
                part.request_id, part.index, part.first_position, part.num_tokens
            )?;
        }
        Ok(())
    }
}

/// CRC-32 of a plan's content: enough to notice that a replay went another way, and cheap enough for every step.
pub(crate) fn plan_digest(plan: &StepPlan, scratch: &mut Vec<u8>) -> u32 {
    let StepPlan {
        step,
        seqs,
        tokens,
        num_groups,
        blocks,
        copies,
    } = plan;
    scratch.clear();
    let mut put = |number: u64| scratch.extend(number.to_le_bytes());
    put(step.0);
    put(seqs.len() as u64 | u64::from(*num_groups) << 32);
    for planned in seqs {
        let SeqPlan {
            seq,
            first_position,
            tokens,
            blocks_from,
            blocks,
            samples,
            output_index,
        } = planned;
        put(seq.0);
        put(u64::from(*first_position) | u64::from(*blocks_from) << 32);
        put(tokens.len() as u64 | (blocks.len() as u64) << 32);
        put(u64::from(*output_index) << 1 | u64::from(*samples));
    }
    for copy in copies {
        put(copy.seq.0);
        put(u64::from(copy.from.0) | u64::from(copy.to.0) << 32);
        put(u64::from(copy.num_positions) | u64::from(copy.group.0) << 32);
    }
    scratch.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    scratch.extend(blocks.iter().flat_map(|block| block.0.to_le_bytes()));
    crc32fast::hash(scratch)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
