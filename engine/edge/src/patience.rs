//! Answers that must get on: a client that stops reading would otherwise keep its sequences, its place among the connections and the
//! server's clean end for as long as it likes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::idle::{Activity, Running};

/// A stream whose writes fail once none has taken a byte for a while.
pub(crate) struct PatientWrites<S> {
    stream: S,
    patience: Duration,
    activity: Arc<Activity>,
    /// Runs while a write waits; its connection isn't idle then.
    deadline: Option<(Pin<Box<Sleep>>, Running)>,
}

/// An answer over HTTP/2, given up once its client has let nothing of it pass for a while. There a client stops one answer by its flow
/// control, which no write ever shows, and the connection may have others that get on.
///
/// Its connection isn't idle until it's dropped.
pub(crate) struct PatientBody {
    shared: Arc<Mutex<Watched>>,
    _watch: AbortOnDropHandle<()>,
    _running: Running,
}

struct Watched {
    /// None once it was given up.
    body: Option<Body>,
    /// Since when the client could take what is there; none while the answer itself isn't ready.
    offered_since: Option<Instant>,
}

impl<S> PatientWrites<S> {
    pub(crate) fn new(stream: S, patience: Duration, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            patience,
            activity,
            deadline: None,
        }
    }

    fn watch<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let patience = self.patience;
        let (deadline, _) = self
            .deadline
            .get_or_insert_with(|| (Box::pin(tokio::time::sleep(patience)), self.activity.run()));
        ready!(deadline.as_mut().poll(cx));
        let message = format!("the client read nothing for {patience:?}");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PatientWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PatientWrites<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl PatientBody {
    pub(crate) fn new(body: Body, patience: Duration, running: Running) -> Self {
        let shared = Arc::new(Mutex::new(Watched {
            body: Some(body),
            offered_since: Some(Instant::now()),
        }));
        let watch = tokio::spawn(give_up_after(patience, Arc::downgrade(&shared)));
        Self {
            shared,
            _watch: AbortOnDropHandle::new(watch),
            _running: running,
        }
    }
}

async fn give_up_after(patience: Duration, watched: Weak<Mutex<Watched>>) {
    let mut pause = patience;
    loop {
        tokio::time::sleep(pause).await;
        let Some(shared) = watched.upgrade() else { return };
        let mut watched = lock(&shared);
        let waited = watched
            .offered_since
            .map_or(Duration::ZERO, |since| since.elapsed());
        pause = patience.saturating_sub(waited);
        if pause.is_zero() {
            tracing::debug!("an answer is given up: its client took nothing of it for {patience:?}");
            watched.body = None;
            return;
        }
    }
}

fn lock(shared: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpBody for PatientBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut watched = lock(&self.shared);
        let Some(body) = &mut watched.body else {
            let error = io::Error::new(io::ErrorKind::TimedOut, "the client took nothing of the answer");
            return Poll::Ready(Some(Err(axum::Error::new(error))));
        };
        let polled = Pin::new(body).poll_frame(cx);
        watched.offered_since = polled.is_ready().then(Instant::now);
        polled
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.shared)
            .body
            .as_ref()
            .is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.shared)
            .body
            .as_ref()
            .map(HttpBody::size_hint)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::idle::Open;

    const PATIENCE: Duration = Duration::from_mins(1);

    /// An answer with this many parts, each a while after it was asked for.
    fn answer(number: u32, pause: Duration) -> (PatientBody, Arc<()>) {
        let held = Arc::new(());
        let parts = futures::stream::unfold((number, Arc::clone(&held)), move |(left, kept)| async move {
            tokio::time::sleep(pause).await;
            (left > 0).then(|| (Ok::<_, io::Error>("x"), (left - 1, kept)))
        });
        let running = Open::default().begin().run();
        (
            PatientBody::new(Body::from_stream(parts), PATIENCE, running),
            held,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn answer_that_nobody_takes_is_given_up() {
        for taken in [0, 1] {
            let (mut body, held) = answer(3, Duration::ZERO);
            for _ in 0..taken {
                body.frame().await.unwrap().unwrap();
            }
            tokio::time::sleep(PATIENCE / 2).await;
            assert_eq!(Arc::strong_count(&held), 2, "not yet");
            tokio::time::sleep(PATIENCE * 2).await;
            assert_eq!(Arc::strong_count(&held), 1, "after {taken} parts");
            assert!(body.frame().await.unwrap().is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answer_that_is_slow_itself_goes_on() {
        let (body, _held) = answer(5, PATIENCE * 10);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "xxxxx");
    }

    #[tokio::test]
    async fn write_that_nobody_reads_fails() {
        let (ours, _theirs) = duplex(8);
        let mut writes = PatientWrites::new(ours, Duration::from_millis(20), Open::default().begin());
        writes.write_all(&[0; 8]).await.unwrap();
        let error = writes.write_all(&[0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn write_that_gets_on_slowly_is_left_alone() {
        let (ours, mut theirs) = duplex(1);
        let mut writes = PatientWrites::new(ours, PATIENCE, Open::default().begin());
        let reading = async {
            let mut byte = [0];
            for _ in 0..100 {
                theirs.read_exact(&mut byte).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(writes.write_all(&[0; 100]), reading);
        written.unwrap();
        assert!(writes.deadline.is_none());
    }
}
