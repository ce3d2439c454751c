//! The requests that haven't ended, their sequences, and what they will be told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kvasir_client::types::{Error, ErrorCode, Finish, FinishReason as Ending, SequenceOutput};
use kvasir_client::{Delivery, refusal};
use kvasir_engine_core::{Event, FinishReason, SeqId, SeqPlan, StepPlan};
use kvasir_sampling::TokenLogprobs;

use super::records::SeqRecord;
use super::timeline::Clock;
use crate::dump::LiveSequence;
use crate::journal::StepPart;
use crate::names::RequestKey;
use crate::outbox::Outbox;
use crate::sink::{Place, Sink, Submission};

/// The table.
#[derive(Debug, Default)]
pub(crate) struct LiveRequests {
    requests: BTreeMap<RequestKey, RequestRecord>,
    seqs: BTreeMap<SeqId, SeqRecord>,
    /// Sequences with something to send, in the order it happened.
    touched: Vec<SeqId>,
    outcomes: Outcomes,
}

/// How sequences ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcomes {
    /// All but those that their client ended, by leaving, reading nothing or setting a deadline.
    pub(crate) finished: u64,
    /// Those of them that the engine failed.
    pub(crate) failed: u64,
}

impl Outcomes {
    fn count(&mut self, finish: &Finish) {
        let code = finish.error.as_ref().map(Error::code);
        let by_client = finish.reason() == Ending::Abort
            || matches!(code, Some(ErrorCode::SlowClient | ErrorCode::Deadline));
        self.finished += u64::from(!by_client);
        self.failed += u64::from(!by_client && code.is_some());
    }
}

#[derive(Debug)]
struct RequestRecord {
    sink: Sink,
    place: Place,
    /// By index; those that ended stay listed.
    seqs: Vec<SeqId>,
    num_open: usize,
}

/// What a round of sending leaves to be done.
#[derive(Debug, Default)]
struct Sent {
    outboxes: Vec<Arc<Outbox>>,
    /// They stop counting as live when everything they were told is on its way, so that a drain waits for it.
    ended: Vec<RequestRecord>,
}

impl Sent {
    fn commit(self) {
        for outbox in &self.outboxes {
            outbox.commit();
        }
        drop(self.ended);
    }
}

impl LiveRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// How sequences have ended so far.
    pub(crate) fn outcomes(&self) -> Outcomes {
        self.outcomes
    }

    /// The sequences, in the order they came.
    pub(crate) fn list(&self) -> Vec<LiveSequence> {
        let now = Instant::now();
        let seqs = self.seqs.iter();
        seqs.map(|(&seq, record)| record.describe(seq, now)).collect()
    }

    /// A sequence's part in a plan, for people.
    pub(super) fn describe(&self, planned: &SeqPlan) -> Option<StepPart> {
        Some(self.seqs.get(&planned.seq)?.describe_part(planned))
    }

    pub(super) fn insert(&mut self, submission: Submission, seqs: &[SeqId]) {
        let Submission {
            request,
            received,
            sink,
            place,
        } = submission;
        let request_id: Arc<str> = place.request_id.as_str().into();
        let now = Instant::now();
        for (index, &seq) in seqs.iter().enumerate() {
            let wants_prompt_logprobs = index == 0 && request.prompt_logprobs.is_some();
            let record = SeqRecord::new(
                place.key,
                Arc::clone(&request_id),
                index as u32,
                Clock::new(received, request.timeline, now),
                &request.prompt,
                wants_prompt_logprobs,
            );
            self.seqs.insert(seq, record);
        }
        let record = RequestRecord {
            sink,
            num_open: seqs.len(),
            seqs: seqs.to_vec(),
            place,
        };
        self.requests.insert(record.place.key, record);
    }

    /// The sequences of a request that still run: one, or all.
    pub(super) fn open_seqs(&self, key: RequestKey, index: Option<u32>) -> Vec<SeqId> {
        let Some(request) = self.requests.get(&key) else {
            return Vec::new();
        };
        let named = match index {
            None => &request.seqs[..],
            Some(index) => request
                .seqs
                .get(index as usize)
                .map_or(&[][..], std::slice::from_ref),
        };
        named
            .iter()
            .copied()
            .filter(|seq| self.seqs.contains_key(seq))
            .collect()
    }

    pub(super) fn answer_admitted(&mut self, key: RequestKey) {
        if let Some(request) = self.requests.get_mut(&key) {
            request.sink.answer(&request.place.request_id, Ok(()));
        }
    }

    /// The request and the index of a sequence; empty for one that has ended.
    pub(super) fn name_of(&self, seq: SeqId) -> (&str, u32) {
        let record = self.seqs.get(&seq);
        let request = record.and_then(|record| self.requests.get(&record.key));
        match (record, request) {
            (Some(record), Some(request)) => (&request.place.request_id, record.index),
            _ => ("", 0),
        }
    }

    pub(super) fn note_step(&mut self, plan: &StepPlan, now: Instant) {
        let is_logged = tracing::enabled!(tracing::Level::DEBUG);
        for planned in &plan.seqs {
            let Some(record) = self.seqs.get_mut(&planned.seq) else {
                continue;
            };
            let is_chunk = record.note_step(plan.step, planned, now);
            if is_logged {
                let (step, tokens) = (plan.step.0, planned.tokens.len());
                let (request_id, sequence) = self.name_of(planned.seq);
                tracing::debug!(request_id, sequence, step, tokens, is_chunk, "computed");
            }
        }
    }

    pub(super) fn note_prompt_logprobs(&mut self, plan: &StepPlan, seq: SeqId, logprobs: Vec<TokenLogprobs>) {
        let planned = plan.seqs.iter().find(|planned| planned.seq == seq);
        if let (Some(planned), Some(record)) = (planned, self.seqs.get_mut(&seq)) {
            record.note_prompt_logprobs(planned, logprobs);
        }
    }

    pub(super) fn note_logprobs(&mut self, seq: SeqId, logprobs: Option<TokenLogprobs>) {
        if let Some(record) = self.seqs.get_mut(&seq) {
            record.note_logprobs(logprobs);
        }
    }

    /// Sets the error that a sequence will end with.
    pub(super) fn blame(&mut self, seq: SeqId, fault: &Error) {
        if let Some(record) = self.seqs.get_mut(&seq) {
            record.blame(fault);
        }
    }

    pub(super) fn note_event(&mut self, event: Event, now: Instant) {
        let (Event::Scheduled { seq, .. }
        | Event::Preempted { seq }
        | Event::Token { seq, .. }
        | Event::Finished { seq, .. }) = event;
        let Some(record) = self.seqs.get_mut(&seq) else {
            return;
        };
        let key = record.key;
        match event {
            Event::Scheduled {
                cached_tokens,
                resumed,
                ..
            } => record.note_scheduled(cached_tokens, resumed, now),
            Event::Preempted { .. } => record.note_preempted(now),
            Event::Token { token, .. } => {
                record.note_token(token, now);
                self.touched.push(seq);
            }
            Event::Finished { reason, .. } => {
                record.note_finished(reason, now);
                self.touched.push(seq);
            }
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            self.log(&event, key);
        }
    }

    /// Says what happened, on behalf of which request.
    fn log(&self, event: &Event, key: RequestKey) {
        let request_id = self
            .requests
            .get(&key)
            .map_or("", |request| &request.place.request_id);
        match *event {
            Event::Scheduled {
                seq,
                cached_tokens,
                resumed,
            } => {
                let (_, sequence) = self.name_of(seq);
                tracing::debug!(request_id, sequence, cached_tokens, resumed, "scheduled");
            }
            Event::Preempted { seq } => {
                let (_, sequence) = self.name_of(seq);
                tracing::debug!(request_id, sequence, "preempted");
            }
            // One per output token would say nothing that the steps don't say.
            Event::Token { .. } => {}
            Event::Finished { seq, reason } => {
                let (_, sequence) = self.name_of(seq);
                tracing::debug!(request_id, sequence, ?reason, "finished");
            }
        }
    }

    /// Sends what happened, one output per sequence. Returns the sequences that have to end because nobody reads them, or too
    /// slowly.
    pub(super) fn flush(&mut self) -> Vec<SeqId> {
        let mut to_end = Vec::new();
        let mut sent = Sent::default();
        for seq in std::mem::take(&mut self.touched) {
            let Some(record) = self.seqs.get_mut(&seq) else {
                continue;
            };
            let Some(output) = record.take_pending() else {
                continue;
            };
            let key = record.key;
            match self.send(key, seq, output, &mut sent) {
                Delivery::Taken | Delivery::Done => {}
                Delivery::Closed => to_end.extend(self.open_seqs(key, None)),
                Delivery::Full => {
                    let fault = refusal(
                        ErrorCode::SlowClient,
                        "the client read this stream too slowly and its buffer is full",
                    );
                    for seq in self.open_seqs(key, None) {
                        self.blame(seq, &fault);
                        to_end.push(seq);
                    }
                }
            }
        }
        sent.commit();
        to_end
    }

    /// Ends these sequences with this error, after what they haven't been told yet. Gives those that were there.
    pub(crate) fn fail(&mut self, seqs: &[SeqId], error: &Error) -> Vec<SeqId> {
        let mut sent = Sent::default();
        let mut failed = Vec::new();
        for &seq in seqs {
            let Some(record) = self.seqs.get_mut(&seq) else {
                continue;
            };
            record.blame(error);
            record.note_finished(FinishReason::Error, Instant::now());
            let key = record.key;
            if let Some(output) = record.take_pending() {
                self.send(key, seq, output, &mut sent);
                failed.push(seq);
            }
        }
        sent.commit();
        failed
    }

    /// Ends every sequence with this error.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Vec<SeqId> {
        let seqs: Vec<_> = self.seqs.keys().copied().collect();
        self.fail(&seqs, error)
    }

    /// Sends one output. With the last finish of a request, its id is free first, and its record goes.
    fn send(&mut self, key: RequestKey, seq: SeqId, mut output: SequenceOutput, sent: &mut Sent) -> Delivery {
        let Some(request) = self.requests.get_mut(&key) else {
            return Delivery::Closed;
        };
        let finished = output.finish.is_some();
        if let Some(finish) = &output.finish {
            self.outcomes.count(finish);
            self.seqs.remove(&seq);
            request.num_open -= 1;
            if request.num_open == 0 {
                request.place.free_name();
            }
        }
        if let Sink::Session { outbox } = &request.sink {
            output.request_id.clone_from(&request.place.request_id);
            if !sent.outboxes.iter().any(|known| Arc::ptr_eq(known, outbox)) {
                sent.outboxes.push(Arc::clone(outbox));
            }
        }
        let delivery = request.sink.send(key, output);
        if finished && request.num_open == 0 {
            sent.ended.extend(self.requests.remove(&key));
        }
        delivery
    }
}
