//! What one gRPC session will be told: outputs are gathered while a step is routed and leave in one message.
//!
//! The scheduler thread writes and never waits. A request whose outputs aren't taken is limited by count; a request stays
//! counted until its last output is taken, and the session reads no more requests while too many are counted, so a peer that sends
//! and never reads can't make this grow.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use kvasir_client::Delivery;
use kvasir_client::types::{Admission, SequenceOutput, StepOutputs};
use prost::Message as _;
use tokio::sync::Notify;
use tonic::Status;

use crate::names::RequestKey;

/// A message that grew to this is sent on its own; log probabilities are what makes messages large.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// The queue of one session.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Outputs of one request.
    max_unread_outputs: usize,
    /// Requests with unread outputs or answers.
    max_unread_requests: usize,
    state: Mutex<State>,
    filled: Notify,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Message>,
    /// The outputs of the step that is being routed.
    staged: Message,
    unread_outputs: BTreeMap<RequestKey, usize>,
    unread_answers: usize,
    end: End,
}

/// Whether anything follows the queue.
#[derive(Debug, Default)]
enum End {
    #[default]
    Open,
    /// A status, then nothing.
    Status(Status),
    /// Nothing.
    Closed,
}

#[derive(Debug, Default)]
struct Message {
    content: StepOutputs,
    /// The request of each output.
    keys: Vec<RequestKey>,
    /// Of log probabilities.
    num_bytes: usize,
}

impl Outbox {
    pub(crate) fn new(max_unread_outputs: usize, max_unread_requests: usize) -> Self {
        Self {
            max_unread_outputs: max_unread_outputs.max(1),
            max_unread_requests: max_unread_requests.max(1),
            state: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
        }
    }

    /// Adds an output to the step's message. A finish always has room.
    pub(crate) fn stage(&self, key: RequestKey, output: SequenceOutput) -> Delivery {
        let mut state = self.lock();
        let unread = state.unread_outputs.entry(key).or_insert(0);
        if *unread >= self.max_unread_outputs && output.finish.is_none() {
            return Delivery::Full;
        }
        *unread += 1;
        let num_bytes = if output.logprobs.is_empty() && output.prompt_logprobs.is_empty() {
            0
        } else {
            output.encoded_len()
        };
        if state.staged.num_bytes + num_bytes > MAX_MESSAGE_BYTES {
            state.commit();
        }
        state.staged.num_bytes += num_bytes;
        state.staged.keys.push(key);
        state.staged.content.outputs.push(output);
        Delivery::Taken
    }

    /// Sends the step's message, if it has any outputs.
    pub(crate) fn commit(&self) {
        self.lock().commit();
        self.filled.notify_one();
    }

    /// Answers a request. Answers that wait share a message.
    pub(crate) fn answer(&self, answer: Admission) {
        let mut state = self.lock();
        state.unread_answers += 1;
        match state.queue.back_mut() {
            Some(last) if last.keys.is_empty() => last.content.admissions.push(answer),
            _ => {
                let content = StepOutputs {
                    admissions: vec![answer],
                    outputs: Vec::new(),
                };
                state.queue.push_back(Message {
                    content,
                    ..Message::default()
                });
            }
        }
        drop(state);
        self.filled.notify_one();
    }

    /// Ends the session after what is queued, with a status or properly. The first call counts.
    pub(crate) fn end(&self, status: Option<Status>) {
        let mut state = self.lock();
        if matches!(state.end, End::Open) {
            state.end = status.map_or(End::Closed, End::Status);
        }
        drop(state);
        self.filled.notify_one();
    }

    /// The next message. For one reader.
    pub(crate) async fn next(&self) -> Option<Result<StepOutputs, Status>> {
        loop {
            if let Poll::Ready(next) = self.pop() {
                return next;
            }
            self.filled.notified().await;
        }
    }

    /// Waits until another request may be read. For one waiter.
    pub(crate) async fn room(&self) {
        while !self.has_room() {
            self.emptied.notified().await;
        }
    }

    fn has_room(&self) -> bool {
        let state = self.lock();
        state.unread_outputs.len() < self.max_unread_requests
            && state.unread_answers < self.max_unread_requests
    }

    fn pop(&self) -> Poll<Option<Result<StepOutputs, Status>>> {
        let mut state = self.lock();
        let Some(message) = state.queue.pop_front() else {
            return match std::mem::replace(&mut state.end, End::Closed) {
                End::Open => {
                    state.end = End::Open;
                    Poll::Pending
                }
                End::Status(status) => Poll::Ready(Some(Err(status))),
                End::Closed => Poll::Ready(None),
            };
        };
        state.unread_answers -= message.content.admissions.len();
        for key in message.keys {
            if let Some(unread) = state.unread_outputs.get_mut(&key) {
                *unread -= 1;
                if *unread == 0 {
                    state.unread_outputs.remove(&key);
                }
            }
        }
        drop(state);
        self.emptied.notify_one();
        Poll::Ready(Some(Ok(message.content)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn commit(&mut self) {
        if !self.staged.keys.is_empty() {
            let message = std::mem::take(&mut self.staged);
            self.queue.push_back(message);
        }
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
