//! The time between two outputs of a request that has begun: an engine whose connection lives and whose work stands still would otherwise keep
//! clients for ever, because pings are answered beside the work.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{Stream, stream};
use kvasir_client::OutputStream;
use kvasir_client::types::{Finish, FinishReason, SequenceOutput};
use tokio::time::{Instant, Sleep};

use super::failed::no_next_token;

/// The outputs of a request after its first one, ended with an error once the engine has given none for too long. What a client doesn't
/// fetch isn't the engine's delay: time counts from when somebody asked and nothing was there.
pub(super) struct Unbroken {
    /// Dropped at the error, so that the engine gives up the request.
    outputs: OutputStream,
    longest: Duration,
    /// Which of its sequences go on.
    is_open: Vec<bool>,
    deadline: Pin<Box<Sleep>>,
    /// Whether the deadline is about the wait that goes on now.
    is_waiting: bool,
}

impl Unbroken {
    /// What follows the first output of a request of `n` sequences, with at most `longest` between two outputs.
    pub(super) fn new(first: &SequenceOutput, outputs: OutputStream, n: u32, longest: Duration) -> Self {
        let mut unbroken = Self {
            outputs,
            longest,
            is_open: vec![true; n.max(1) as usize],
            deadline: Box::pin(tokio::time::sleep(longest)),
            is_waiting: false,
        };
        unbroken.see(first);
        unbroken
    }

    fn see(&mut self, output: &SequenceOutput) {
        if output.finish.is_some()
            && let Some(is_open) = self.is_open.get_mut(output.index as usize)
        {
            *is_open = false;
        }
    }

    /// The error, as the end of a sequence that goes on.
    fn give_up(&mut self, index: usize) -> SequenceOutput {
        self.outputs = Box::pin(stream::empty());
        self.is_open.clear();
        SequenceOutput {
            index: index as u32,
            finish: Some(Finish {
                reason: FinishReason::Error.into(),
                error: Some(no_next_token(self.longest)),
                ..Finish::default()
            }),
            ..SequenceOutput::default()
        }
    }
}

impl Stream for Unbroken {
    type Item = SequenceOutput;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SequenceOutput>> {
        let this = &mut *self;
        if let Poll::Ready(output) = this.outputs.as_mut().poll_next(cx) {
            this.is_waiting = false;
            if let Some(output) = &output {
                this.see(output);
            }
            return Poll::Ready(output);
        }
        let Some(open) = this.is_open.iter().position(|is_open| *is_open) else {
            return Poll::Pending;
        };
        if !this.is_waiting {
            this.is_waiting = true;
            this.deadline.as_mut().reset(Instant::now() + this.longest);
        }
        ready!(this.deadline.as_mut().poll(cx));
        Poll::Ready(Some(this.give_up(open)))
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;

    const LONGEST: Duration = Duration::from_mins(1);
    const SLOW: Duration = Duration::from_secs(59);

    fn token(index: u32) -> SequenceOutput {
        SequenceOutput {
            index,
            token_ids: vec![7],
            ..SequenceOutput::default()
        }
    }

    fn end(index: u32) -> SequenceOutput {
        SequenceOutput {
            finish: Some(Finish {
                reason: FinishReason::Length.into(),
                ..Finish::default()
            }),
            ..token(index)
        }
    }

    /// A request of two sequences, and where its engine sends.
    fn running() -> (UnboundedSender<SequenceOutput>, Unbroken) {
        let (sender, mut outputs) = unbounded_channel();
        let outputs = stream::poll_fn(move |cx| outputs.poll_recv(cx));
        (sender, Unbroken::new(&token(0), Box::pin(outputs), 2, LONGEST))
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_stands_still_ends_the_request_with_an_error_and_is_told_to_give_it_up() {
        let (engine, mut outputs) = running();
        engine.send(end(0)).unwrap();
        outputs.next().await.unwrap();
        let began = Instant::now();
        let last = outputs.next().await.unwrap();
        assert_eq!(began.elapsed(), LONGEST);
        let finish = last.finish.unwrap();
        // The first sequence has had its end.
        assert_eq!((last.index, finish.reason()), (1, FinishReason::Error));
        assert!(finish.error.unwrap().message.contains("60s"));
        assert!(engine.is_closed());
        assert!(outputs.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_is_slow_but_goes_on_is_left_alone() {
        let (engine, mut outputs) = running();
        let sending = async {
            for _ in 0..10 {
                tokio::time::sleep(SLOW).await;
                engine.send(token(1)).unwrap();
            }
        };
        let reading = async {
            for _ in 0..10 {
                assert_eq!(outputs.next().await, Some(token(1)));
            }
        };
        tokio::join!(sending, reading);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_not_the_engines_delay() {
        let (engine, mut outputs) = running();
        assert!(futures::poll!(outputs.next()).is_pending());
        engine.send(token(0)).unwrap();
        tokio::time::sleep(LONGEST * 3).await;
        assert_eq!(outputs.next().await, Some(token(0)));
        // The next wait begins when it's asked for.
        tokio::time::sleep(LONGEST * 3).await;
        assert!(futures::poll!(outputs.next()).is_pending());
        engine.send(token(0)).unwrap();
        assert_eq!(outputs.next().await, Some(token(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_missed_once_every_sequence_has_ended() {
        let (engine, mut outputs) = running();
        for index in [0, 1] {
            engine.send(end(index)).unwrap();
            outputs.next().await.unwrap();
        }
        assert!(tokio::time::timeout(LONGEST * 3, outputs.next()).await.is_err());
        drop(engine);
        assert!(outputs.next().await.is_none());
    }
}
