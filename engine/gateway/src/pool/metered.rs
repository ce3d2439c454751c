//! The outputs of a running request, counted.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{FutureExt, Stream, StreamExt};
use kvasir_client::OutputStream;
use kvasir_client::types::{Error, FinishReason, SequenceOutput};
use kvasir_gateway_core::routing::Outcome;

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

/// Outputs of a request; `on_end` hears what it came to, once, also when it's dropped early.
pub(crate) struct Metered<F: FnOnce(&Tally, &Running) + Unpin> {
    first: Option<SequenceOutput>,
    rest: OutputStream,
    place: Running,
    tally: Tally,
    on_end: Option<F>,
}

impl<F: FnOnce(&Tally, &Running) + Unpin> Metered<F> {
    pub(crate) fn new(begun: Begun, n: u32, on_end: F) -> Self {
        let Begun { first, rest, place } = begun;
        Self {
            first: Some(first),
            rest,
            place,
            tally: Tally {
                open: (0..n.max(1)).collect(),
                ..Tally::default()
            },
            on_end: Some(on_end),
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
        if let Some(error) = &finish.error
            && tally.error.is_none()
        {
            tally.error = Some(error.clone());
        }
        if finish.reason() == FinishReason::Error && tally.error.is_none() {
            tally.error = Some(Error::default());
        }
        if tally.open.is_empty() {
            self.end();
        }
    }

    fn end(&mut self) {
        let Some(on_end) = self.on_end.take() else {
            return;
        };
        on_end(&self.tally, &self.place);
        match &self.tally.error {
            Some(error) => self.place.fail(error),
            None if self.tally.open.is_empty() => self.place.finish(Outcome::Completed),
            None => self.place.finish(Outcome::ClientLeft),
        }
    }
}

impl<F: FnOnce(&Tally, &Running) + Unpin> Stream for Metered<F> {
    type Item = SequenceOutput;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SequenceOutput>> {
        let this = &mut *self;
        let output = match this.first.take() {
            Some(first) => Some(first),
            None => match this.rest.as_mut().poll_next(cx) {
                Poll::Ready(output) => output,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(output.map(|mut output| {
            this.count(&output);
            if let Some(error) = output.finish.as_mut().and_then(|finish| finish.error.as_mut()) {
                *error = for_the_client(error);
            }
            output
        }))
    }
}

impl<F: FnOnce(&Tally, &Running) + Unpin> Drop for Metered<F> {
    fn drop(&mut self) {
        // What came and wasn't read was made all the same.
        if let Some(first) = self.first.take() {
            self.count(&first);
        }
        while self.on_end.is_some()
            && let Some(Some(output)) = self.rest.next().now_or_never()
        {
            self.count(&output);
        }
        self.end();
    }
}
