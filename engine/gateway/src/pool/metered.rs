//! The outputs of a running request, counted when its engine makes them, however slowly its client reads: an unread answer must keep neither
//! its engine's seat from others, nor its tenant's place among its own requests.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures::future::poll_fn;
use futures::{FutureExt, Stream, StreamExt, stream};
use kvasir_client::types::{Error, ErrorCode, FinishReason, SequenceOutput};
use kvasir_client::{Delivery, GrpcClientOptions, OutputReceiver, OutputSender, OutputStream, output_buffer};
use kvasir_gateway_core::routing::Outcome;
use tokio::task::unconstrained;
use tokio_util::task::AbortOnDropHandle;

use super::dispatch::{Begun, Running};
use super::failed::for_the_client;

/// What a request came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Tokens that the engine made.
    pub(crate) output_tokens: u64,
    /// Tokens of the prompt that it had cached.
    pub(crate) cached_tokens: u32,
    /// What ended it early, if it didn't end by itself.
    pub(crate) error: Option<Error>,
    /// Its sequences that haven't ended, by their indices.
    pub(crate) open: BTreeSet<u32>,
}

/// Outputs of a request. Dropped, its client has left, and the engine gives up what it hasn't made.
pub(crate) struct Metered<P: Place> {
    /// What the meter has passed on.
    outputs: OutputReceiver,
    meter: Arc<Mutex<Meter<P>>>,
    _pump: AbortOnDropHandle<()>,
}

/// What a request holds at its engine until it has ended.
pub(crate) trait Place: Send + 'static {
    /// The request has ended so; called once.
    fn ended(&mut self, tally: &Tally);
}

/// A place at an engine, and who else hears of the request's end.
pub(crate) struct Seat<F> {
    place: Running,
    on_end: Option<F>,
}

struct Meter<P> {
    outputs: OutputStream,
    tally: Tally,
    /// Until it has ended.
    at_work: Option<(OutputSender, P)>,
}

impl<F: FnOnce(&Tally) + Send + Unpin + 'static> Metered<Seat<F>> {
    /// What has begun of `n` sequences; `on_end` hears what it came to, once, when its engine has ended it or its client has left.
    pub(crate) fn begun(begun: Begun, (request_id, n): (&str, u32), on_end: F) -> Self {
        let Begun { first, rest, place } = begun;
        let outputs = Box::pin(stream::iter([first]).chain(rest));
        let on_end = Some(on_end);
        let limit = GrpcClientOptions::default().output_buffer;
        Self::new(outputs, (request_id, n, limit), Seat { place, on_end })
    }
}

impl<P: Place> Metered<P> {
    /// The outputs of a request of `n` sequences, of which the client may leave `limit` unread.
    fn new(outputs: OutputStream, (request_id, n, limit): (&str, u32, usize), place: P) -> Self {
        let n = n.max(1);
        let (reader, read) = output_buffer(request_id, n, limit, || ());
        let meter = Arc::new(Mutex::new(Meter {
            outputs,
            tally: Tally {
                open: (0..n).collect(),
                ..Tally::default()
            },
            at_work: Some((reader, place)),
        }));
        let pumped = Arc::clone(&meter);
        let pump = tokio::spawn(poll_fn(move |cx| lock(&pumped).poll(cx)));
        Self {
            outputs: read,
            meter,
            _pump: AbortOnDropHandle::new(pump),
        }
    }
}

fn lock<P>(meter: &Mutex<Meter<P>>) -> std::sync::MutexGuard<'_, Meter<P>> {
    meter.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P: Place> Meter<P> {
    /// Passes on what has come, until all has.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.at_work.is_some() {
            match ready!(self.outputs.poll_next_unpin(cx)) {
                Some(output) => self.pass_on(output),
                None => self.give_up(ErrorCode::Unavailable, "the engine ended the request early"),
            }
        }
        Poll::Ready(())
    }

    fn pass_on(&mut self, mut output: SequenceOutput) {
        self.count(&output);
        if let Some(error) = output.finish.as_mut().and_then(|finish| finish.error.as_mut()) {
            *error = for_the_client(error);
        }
        let Some((reader, _)) = &mut self.at_work else {
            return;
        };
        if reader.send(output) == Delivery::Full {
            self.give_up(
                ErrorCode::SlowClient,
                "the client read this stream too slowly and its buffer is full",
            );
        } else if self.tally.open.is_empty() {
            self.end();
        }
    }

    fn count(&mut self, output: &SequenceOutput) {
        let tally = &mut self.tally;
        tally.output_tokens += output.token_ids.len() as u64;
        tally.cached_tokens = tally.cached_tokens.max(output.cached_tokens.unwrap_or(0));
        let Some(finish) = &output.finish else {
            return;
        };
        tally.open.remove(&output.index);
        if tally.error.is_none() {
            let is_error = finish.reason() == FinishReason::Error;
            tally.error = finish.error.clone().or_else(|| is_error.then(Error::default));
        }
    }

    fn give_up(&mut self, code: ErrorCode, message: &str) {
        let error = kvasir_client::refusal(code, message);
        if let Some((reader, _)) = &mut self.at_work {
            reader.fail(&error);
        }
        self.tally.error.get_or_insert(error);
        self.end();
    }

    fn end(&mut self) {
        if let Some((_reader, mut place)) = self.at_work.take() {
            // The engine needn't go on for nobody.
            self.outputs = Box::pin(stream::empty());
            place.ended(&self.tally);
        }
    }
}

impl<F: FnOnce(&Tally) + Send + Unpin + 'static> Place for Seat<F> {
    fn ended(&mut self, tally: &Tally) {
        if let Some(on_end) = self.on_end.take() {
            on_end(tally);
        }
        match &tally.error {
            Some(error) => self.place.fail(error),
            None if tally.open.is_empty() => self.place.finish(Outcome::Completed),
            None => self.place.finish(Outcome::ClientLeft),
        }
    }
}

impl<P: Place> Stream for Metered<P> {
    type Item = SequenceOutput;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SequenceOutput>> {
        self.outputs.poll_next_unpin(cx)
    }
}

impl<P: Place> Drop for Metered<P> {
    fn drop(&mut self) {
        let mut meter = lock(&self.meter);
        // What came and wasn't read was made all the same. The runtime's budget for a task would hide all but the first hundred.
        while meter.at_work.is_some()
            && let Some(Some(output)) = unconstrained(meter.outputs.next()).now_or_never()
        {
            meter.count(&output);
            if meter.tally.open.is_empty() {
                break;
            }
        }
        meter.end();
    }
}

#[cfg(test)]
mod tests {
    use kvasir_client::types::Finish;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio::sync::oneshot;

    use super::*;

    struct Watched(Option<oneshot::Sender<Tally>>);

    impl Place for Watched {
        fn ended(&mut self, tally: &Tally) {
            self.0.take().expect("it ends once").send(tally.clone()).unwrap();
        }
    }

    fn token() -> SequenceOutput {
        SequenceOutput {
            token_ids: vec![7],
            ..SequenceOutput::default()
        }
    }

    fn end() -> SequenceOutput {
        let finish = Finish {
            reason: FinishReason::Length.into(),
            ..Finish::default()
        };
        SequenceOutput {
            finish: Some(finish),
            ..token()
        }
    }

    type Parts = (
        UnboundedSender<SequenceOutput>,
        Metered<Watched>,
        oneshot::Receiver<Tally>,
    );

    /// Where an engine sends, what its client reads, and what is told at the end.
    fn running(limit: usize) -> Parts {
        let (engine, mut outputs) = unbounded_channel();
        let outputs = stream::poll_fn(move |cx| outputs.poll_recv(cx));
        let (ended, tally) = oneshot::channel();
        let metered = Metered::new(Box::pin(outputs), ("r", 1, limit), Watched(Some(ended)));
        (engine, metered, tally)
    }

    #[tokio::test]
    async fn a_request_has_ended_when_its_engine_has_however_little_its_client_reads() {
        let (engine, metered, tally) = running(1000);
        for _ in 0..500 {
            engine.send(token()).unwrap();
        }
        engine.send(end()).unwrap();
        let tally = tally.await.unwrap();
        assert_eq!((tally.output_tokens, tally.open.len()), (501, 0));
        assert!(tally.error.is_none() && engine.is_closed());
        // All of it is there when somebody reads.
        assert_eq!(metered.collect::<Vec<_>>().await.len(), 501);
    }

    #[tokio::test]
    async fn every_token_that_came_is_counted_when_the_client_leaves() {
        let (engine, metered, tally) = running(1000);
        // The pump has had no turn yet: this is more than the runtime gives a task at once.
        for _ in 0..700 {
            engine.send(token()).unwrap();
        }
        drop(metered);
        let tally = tally.await.unwrap();
        assert_eq!((tally.output_tokens, tally.open.len()), (700, 1));
        assert!(engine.is_closed());
    }

    #[tokio::test]
    async fn a_client_that_leaves_too_much_unread_loses_the_rest() {
        let (engine, metered, tally) = running(3);
        for _ in 0..10 {
            engine.send(token()).unwrap();
        }
        let error = tally.await.unwrap().error.unwrap();
        assert_eq!(error.code(), ErrorCode::SlowClient);
        assert!(engine.is_closed());
        let outputs: Vec<_> = metered.collect().await;
        assert_eq!(
            outputs.last().unwrap().finish.as_ref().unwrap().reason(),
            FinishReason::Error
        );
    }

    #[tokio::test]
    async fn outputs_that_break_off_end_with_an_error() {
        let (engine, metered, tally) = running(3);
        engine.send(token()).unwrap();
        drop(engine);
        assert_eq!(metered.collect::<Vec<_>>().await.len(), 2);
        assert_eq!(tally.await.unwrap().error.unwrap().code(), ErrorCode::Unavailable);
    }
}
