//! Streams events: deltas in, frames out, in the order of vLLM: data, usage, `[DONE]`; after an error `[DONE]` too.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{SelectAll, select_all};
use futures::{FutureExt, StreamExt};
use kvasir_api::{ApiError, sse};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::pipeline::{TextDelta, TextStream};
use crate::reply::event_stream;

/// Frames that are ready at the same time go out together, up to about this many bytes.
const MAX_BATCH_BYTES: usize = 16 << 10;

/// Turns deltas into frames.
pub(super) trait EventWriter: Send + 'static {
    /// Appends the frames for a delta of prompt number `prompt`.
    fn delta(&mut self, prompt: usize, delta: TextDelta, out: &mut String);
    /// Appends the frames between the last delta and `[DONE]`.
    fn end(&mut self, out: &mut String);
}

type Deltas = SelectAll<futures::stream::BoxStream<'static, (usize, Result<TextDelta, ApiError>)>>;

struct Events<W> {
    deltas: Deltas,
    writer: W,
    keep_alive: Option<Duration>,
    /// Keeps the server from shutting down before the last frame is out.
    _token: Arc<TaskTrackerToken>,
}

/// Streams the deltas of all prompts. Dropping the response's body aborts what still runs.
pub(super) fn respond(
    streams: Vec<TextStream>,
    writer: impl EventWriter,
    keep_alive: Option<Duration>,
    token: Arc<TaskTrackerToken>,
) -> Response {
    let events = Events {
        deltas: merge(streams),
        writer,
        keep_alive,
        _token: token,
    };
    let frames = futures::stream::unfold(Some(events), |events| async {
        let (frames, events) = events?.next_frames().await;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(frames)), events))
    });
    event_stream(Body::from_stream(frames))
}

/// The deltas of all prompts, with the number of their prompt, in the order they come.
pub(super) fn merge(streams: Vec<TextStream>) -> Deltas {
    let numbered = |(prompt, stream): (usize, TextStream)| stream.map(move |delta| (prompt, delta)).boxed();
    select_all(streams.into_iter().enumerate().map(numbered))
}

impl<W: EventWriter> Events<W> {
    /// At least one frame, and the rest of the stream if it goes on.
    async fn next_frames(mut self) -> (String, Option<Self>) {
        let mut out = String::new();
        while out.is_empty() {
            let next = self.deltas.next();
            let item = match self.keep_alive {
                None => next.await,
                Some(silence) => match tokio::time::timeout(silence, next).await {
                    Ok(item) => item,
                    Err(_) => return (sse::KEEP_ALIVE.to_owned(), Some(self)),
                },
            };
            if self.write(item, &mut out).is_break() {
                return (out, None);
            }
            // Deltas that wait already share a write.
            while out.len() < MAX_BATCH_BYTES
                && let Some(item) = self.deltas.next().now_or_never()
            {
                if self.write(item, &mut out).is_break() {
                    return (out, None);
                }
            }
        }
        (out, Some(self))
    }

    fn write(
        &mut self,
        item: Option<(usize, Result<TextDelta, ApiError>)>,
        out: &mut String,
    ) -> std::ops::ControlFlow<()> {
        match item {
            Some((prompt, Ok(delta))) => {
                self.writer.delta(prompt, delta, out);
                return std::ops::ControlFlow::Continue(());
            }
            Some((_, Err(error))) => out.push_str(&sse::error(&error)),
            None => self.writer.end(out),
        }
        out.push_str(sse::DONE);
        std::ops::ControlFlow::Break(())
    }
}
