//! The deltas of a running request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures::Stream;
use kvasir_api::{ApiError, ErrorKind, FinishReason};
use kvasir_client::OutputStream;
use kvasir_client::types::{SequenceOutput, Timeline};
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::prepare::Prepared;
use super::sequence::Sequence;
use super::{Pipeline, TextDelta, engine_error, wire};
use crate::gate::SHUTTING_DOWN;
use crate::metrics::Finished;
use crate::spans::Request;

/// The code in logs of a stream without its end.
const ENDED_EARLY: &str = "engine_ended_early";

/// The deltas of a running request, all of its sequences interleaved in the order the engine made them.
///
/// Ends after every sequence has sent its finish, or after the first error. Dropping it aborts what still runs.
pub struct TextStream {
    pipeline: Pipeline,
    prepared: Prepared,
    /// None once nothing more will come; dropping it aborts the request in the engine.
    outputs: Option<OutputStream>,
    sequences: Vec<Running>,
    deadline: Option<Pin<Box<Sleep>>>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

struct Running {
    sequence: Sequence,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// How it ended, and what the engine said of it.
    ended: Option<(FinishReason, Option<Timeline>)>,
}

impl TextStream {
    pub(super) fn new(pipeline: Pipeline, prepared: Prepared, outputs: OutputStream) -> Self {
        let running = || Running {
            sequence: Sequence::new(&pipeline.inner.text, &prepared),
            first_token: None,
            last_token: None,
            ended: None,
        };
        let sequences = (0..prepared.request.n.max(1)).map(|_| running()).collect();
        let deadline = prepared
            .deadline
            .map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
        Self {
            cut: Box::pin(pipeline.cut.clone().cancelled_owned()),
            pipeline,
            prepared,
            outputs: Some(outputs),
            sequences,
            deadline,
        }
    }

    /// The prompt's token ids.
    pub fn prompt_token_ids(&self) -> &[u32] {
        self.prepared.prompt_token_ids()
    }

    /// The prompt's text; none if it came as token ids.
    pub fn prompt_text(&self) -> Option<&str> {
        self.prepared.prompt_text()
    }

    /// How many sequences it has.
    pub fn num_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Takes an output; none comes of it if its sequence ended before, or the index is none of ours.
    fn feed(&mut self, output: SequenceOutput) -> Option<Result<TextDelta, ApiError>> {
        let index = output.index as usize;
        let now = Instant::now();
        let mut step = self.sequences.get_mut(index)?.sequence.feed(output)?;
        if step.abort {
            self.pipeline
                .source
                .abort(self.prepared.request_id(), Some(index as u32));
        }
        self.observe(index, &step.delta, step.timeline.as_ref(), now);
        if let Some(error) = step.error {
            return Some(Err(engine_error(&error)));
        }
        if step
            .delta
            .finish
            .as_ref()
            .is_some_and(|finish| finish.reason == FinishReason::Error)
        {
            return Some(Err(ApiError::new(
                ErrorKind::Internal,
                "the engine failed on this request",
            )));
        }
        let timeline = step.timeline.filter(|_| self.prepared.request.timeline);
        step.delta.timeline = timeline.map(|timeline| wire::timeline(self.prepared.request_id(), timeline));
        Some(Ok(step.delta))
    }

    /// Ends the request with an error of the edge's own.
    fn give_up(&mut self, error: ApiError) -> Poll<Option<Result<TextDelta, ApiError>>> {
        self.pipeline.source.given_up(&error);
        self.outputs = None;
        Poll::Ready(Some(Err(error)))
    }

    fn observe(&mut self, index: usize, delta: &TextDelta, timeline: Option<&Timeline>, now: Instant) {
        let metrics = &self.pipeline.inner.figures;
        let prompt_tokens = self.prepared.prompt_token_ids().len() as u64;
        let running = &mut self.sequences[index];
        if !delta.token_ids.is_empty() {
            metrics.generated(delta.token_ids.len() as u64);
            if let Some(last) = running.last_token.replace(now) {
                metrics.more_tokens(now - last);
            } else {
                running.first_token = Some(now);
                let cached = u64::from(delta.cached_tokens.unwrap_or(0));
                metrics.first_token(now - self.prepared.arrival, prompt_tokens, cached);
            }
        }
        if let Some(finish) = &delta.finish {
            self.observe_finish(index, finish.reason, timeline, now);
        }
    }

    fn observe_finish(
        &mut self,
        index: usize,
        reason: FinishReason,
        timeline: Option<&Timeline>,
        now: Instant,
    ) {
        let running = &mut self.sequences[index];
        running.ended = Some((reason, timeline.cloned()));
        let decode = running
            .first_token
            .zip(running.last_token)
            .map(|(first, last)| last - first);
        self.pipeline.inner.figures.finished(&Finished {
            reason,
            prompt_tokens: self.prepared.prompt_token_ids().len() as u64,
            generation_tokens: running.sequence.num_tokens(),
            e2e: now - self.prepared.arrival,
            decode: decode.unwrap_or_default(),
            timeline,
        });
        if self.sequences.iter().all(|running| running.sequence.is_done()) {
            let most = self
                .sequences
                .iter()
                .map(|running| running.sequence.num_tokens())
                .max();
            self.pipeline.inner.figures.request_finished(most.unwrap_or(0));
        }
    }
}

impl TextStream {
    /// When it is over, whatever ended it.
    fn record(&self, now: Instant) {
        let Some(spans) = &self.pipeline.inner.spans else {
            return;
        };
        let first = self.sequences.first();
        let ended = |running: &Running| running.ended.as_ref().map(|(reason, _)| *reason);
        spans.record(&Request {
            id: self.prepared.request_id(),
            model: &self.pipeline.inner.info.model,
            traceparent: &self.prepared.request.traceparent,
            arrival: self.prepared.arrival,
            first_token: first.and_then(|running| running.first_token),
            end: now,
            prompt_tokens: self.prepared.prompt_token_ids().len() as u64,
            generation_tokens: self
                .sequences
                .iter()
                .map(|running| running.sequence.num_tokens())
                .sum(),
            max_tokens: self.prepared.max_tokens().into(),
            reasons: self.sequences.iter().filter_map(ended).collect(),
            timeline: first.and_then(|running| running.ended.as_ref()?.1.as_ref()),
        });
    }
}

impl Stream for TextStream {
    type Item = Result<TextDelta, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            let Some(outputs) = &mut this.outputs else {
                return Poll::Ready(None);
            };
            if let Some(deadline) = &mut this.deadline
                && deadline.as_mut().poll(cx).is_ready()
            {
                return this.give_up(out_of_time());
            }
            if this.cut.as_mut().poll(cx).is_ready() {
                let message = "the server shut down before the answer was complete; ask again";
                return this.give_up(ApiError::new(ErrorKind::Unavailable, message).because(SHUTTING_DOWN));
            }
            let Some(output) = ready!(outputs.as_mut().poll_next(cx)) else {
                let message = "the engine ended the request early";
                return this.give_up(ApiError::new(ErrorKind::Unavailable, message).because(ENDED_EARLY));
            };
            let Some(item) = this.feed(output) else { continue };
            if item.is_err() || this.sequences.iter().all(|running| running.sequence.is_done()) {
                this.outputs = None;
            }
            return Poll::Ready(Some(item));
        }
    }
}

/// The end of a request whose time is over.
pub(super) fn out_of_time() -> ApiError {
    ApiError::new(
        ErrorKind::Timeout,
        "the request ran longer than this server allows",
    )
}

impl Drop for TextStream {
    fn drop(&mut self) {
        let now = Instant::now();
        for index in 0..self.sequences.len() {
            if !self.sequences[index].sequence.is_done() {
                self.observe_finish(index, FinishReason::Abort, None, now);
            }
        }
        self.record(now);
    }
}
