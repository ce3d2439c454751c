//! The bounded buffer between whoever makes a request's outputs and whoever reads them.
//!
//! Invariants, which both clients rely on:
//! 1. Sending never waits: a full buffer is reported, and the sender ends the request.
//! 2. Each sequence's `finish` has a reserved place, so a full buffer still ends properly.
//! 3. A reader sees exactly one `finish` per sequence and nothing of that sequence after it, whatever is sent, also when the sender
//!    disappears.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::sync::mpsc;

use crate::error::refusal;
use crate::types::{Error, ErrorCode, Finish, FinishReason, SequenceOutput};

/// A buffer for a request of `n` sequences that holds `limit` outputs and every sequence's finish.
///
/// `on_drop` runs when the reader is dropped; it must not block.
pub fn output_buffer(
    request_id: &str,
    n: u32,
    limit: usize,
    on_drop: impl FnOnce() + Send + 'static,
) -> (OutputSender, OutputReceiver) {
    let n = n as usize;
    let (outputs, receiver) = mpsc::channel((limit + n).max(1));
    let sender = OutputSender {
        request_id: request_id.to_owned(),
        outputs,
        open: vec![true; n],
        num_open: n,
    };
    (
        sender,
        OutputReceiver {
            receiver,
            on_drop: Some(Box::new(on_drop)),
        },
    )
}

/// What became of an output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Delivery {
    /// Taken. More may follow.
    Taken,
    /// Taken, and all sequences have finished.
    Done,
    /// The buffer is full: the request has to end, with [`OutputSender::fail`].
    Full,
    /// Nobody reads any more.
    Closed,
}

/// Writes outputs. Dropped before all sequences finished, it fails the others.
#[derive(Debug)]
pub struct OutputSender {
    request_id: String,
    outputs: mpsc::Sender<SequenceOutput>,
    open: Vec<bool>,
    num_open: usize,
}

impl OutputSender {
    /// Passes an output on, under this request's id. Outputs of unknown or finished sequences are ignored.
    pub fn send(&mut self, mut output: SequenceOutput) -> Delivery {
        let index = output.index as usize;
        if !self.is_open(output.index) {
            return self.status();
        }
        if output.finish.is_some() {
            self.open[index] = false;
            self.num_open -= 1;
        } else if self.outputs.capacity() <= self.num_open && !self.outputs.is_closed() {
            return Delivery::Full;
        }
        output.request_id.clone_from(&self.request_id);
        match self.outputs.try_send(output) {
            Ok(()) => self.status(),
            Err(mpsc::error::TrySendError::Closed(_)) => Delivery::Closed,
            Err(mpsc::error::TrySendError::Full(_)) => Delivery::Full,
        }
    }

    /// Ends every sequence that hasn't ended with this error.
    pub fn fail(&mut self, error: &Error) {
        for index in 0..self.open.len() as u32 {
            let finish = Finish {
                reason: FinishReason::Error.into(),
                error: Some(error.clone()),
                ..Finish::default()
            };
            self.send(SequenceOutput {
                index,
                finish: Some(finish),
                ..SequenceOutput::default()
            });
        }
    }

    /// Whether this sequence exists and hasn't finished.
    pub fn is_open(&self, index: u32) -> bool {
        self.open.get(index as usize).copied().unwrap_or(false)
    }

    /// Sequences that haven't finished.
    pub fn num_open(&self) -> usize {
        self.num_open
    }

    fn status(&self) -> Delivery {
        if self.num_open == 0 {
            Delivery::Done
        } else {
            Delivery::Taken
        }
    }
}

impl Drop for OutputSender {
    fn drop(&mut self) {
        if self.num_open > 0 {
            self.fail(&refusal(
                ErrorCode::Internal,
                "the engine dropped the request without finishing it",
            ));
        }
    }
}

/// Reads the outputs of one request. Dropping it ends the request.
pub struct OutputReceiver {
    receiver: mpsc::Receiver<SequenceOutput>,
    on_drop: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for OutputReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputReceiver")
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}

impl Stream for OutputReceiver {
    type Item = SequenceOutput;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<SequenceOutput>> {
        self.receiver.poll_recv(context)
    }
}

impl Drop for OutputReceiver {
    fn drop(&mut self) {
        if let Some(on_drop) = self.on_drop.take() {
            on_drop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::StreamExt;
    use futures::executor::block_on;

    use super::*;

    fn token(index: u32, token: u32) -> SequenceOutput {
        SequenceOutput {
            index,
            token_ids: vec![token],
            ..SequenceOutput::default()
        }
    }

    fn last(index: u32) -> SequenceOutput {
        let finish = Finish {
            reason: FinishReason::Stop.into(),
            ..Finish::default()
        };
        SequenceOutput {
            finish: Some(finish),
            ..token(index, 9)
        }
    }

    fn collect(receiver: OutputReceiver) -> Vec<SequenceOutput> {
        block_on(receiver.collect())
    }

    #[test]
    fn outputs_arrive_in_order_under_the_requests_id() {
        let (mut sender, receiver) = output_buffer("mine", 1, 4, || ());
        assert_eq!(
            sender.send(SequenceOutput {
                request_id: "wire".into(),
                ..token(0, 1)
            }),
            Delivery::Taken
        );
        assert_eq!(sender.send(last(0)), Delivery::Done);
        drop(sender);
        let outputs = collect(receiver);
        assert_eq!(outputs.iter().map(|o| o.token_ids[0]).collect::<Vec<_>>(), [1, 9]);
        assert!(outputs.iter().all(|o| o.request_id == "mine"));
    }

    #[test]
    fn a_full_buffer_still_takes_every_finish() {
        let (mut sender, receiver) = output_buffer("r", 2, 3, || ());
        for i in 0..3 {
            assert_eq!(sender.send(token(i % 2, i)), Delivery::Taken);
        }
        assert_eq!(sender.send(token(0, 3)), Delivery::Full);
        assert_eq!(sender.send(token(1, 3)), Delivery::Full);
        sender.fail(&refusal(ErrorCode::SlowClient, "slow"));
        let outputs = collect_after(sender, receiver);
        assert_eq!(outputs.len(), 5);
        let finishes: Vec<_> = outputs[3..].iter().map(|o| o.finish.as_ref().unwrap()).collect();
        assert!(
            finishes
                .iter()
                .all(|f| f.error.as_ref().unwrap().code() == ErrorCode::SlowClient)
        );
    }

    fn collect_after(sender: OutputSender, receiver: OutputReceiver) -> Vec<SequenceOutput> {
        drop(sender);
        collect(receiver)
    }

    #[test]
    fn reading_makes_room() {
        let (mut sender, mut receiver) = output_buffer("r", 1, 1, || ());
        assert_eq!(sender.send(token(0, 1)), Delivery::Taken);
        assert_eq!(sender.send(token(0, 2)), Delivery::Full);
        block_on(receiver.next()).unwrap();
        assert_eq!(sender.send(token(0, 2)), Delivery::Taken);
    }

    #[test]
    fn nothing_follows_a_finish() {
        let (mut sender, receiver) = output_buffer("r", 2, 8, || ());
        sender.send(last(0));
        assert_eq!(sender.send(token(0, 1)), Delivery::Taken);
        assert_eq!(sender.send(last(0)), Delivery::Taken);
        assert_eq!(sender.send(token(2, 1)), Delivery::Taken);
        assert_eq!(sender.send(last(1)), Delivery::Done);
        assert_eq!(collect_after(sender, receiver).len(), 2);
    }

    #[test]
    fn a_vanished_sender_fails_what_was_open() {
        let (mut sender, receiver) = output_buffer("r", 2, 8, || ());
        sender.send(last(0));
        let outputs = collect_after(sender, receiver);
        assert_eq!(outputs.len(), 2);
        let finish = outputs[1].finish.as_ref().unwrap();
        assert_eq!((outputs[1].index, finish.reason()), (1, FinishReason::Error));
    }

    #[test]
    fn a_dropped_reader_is_noticed() {
        let dropped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&dropped);
        let (mut sender, receiver) = output_buffer("r", 1, 1, move || flag.store(true, Ordering::SeqCst));
        sender.send(token(0, 1));
        drop(receiver);
        assert!(dropped.load(Ordering::SeqCst));
        assert_eq!(sender.send(token(0, 2)), Delivery::Closed);
    }
}
