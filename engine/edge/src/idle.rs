//! Whom to close when the house is full: the connection that has been without a request for the longest time. Without this a client that
//! opens connections and asks nothing keeps everybody else out.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;

/// A connection is left alone this long after its start and its last answer: time for a handshake and a first request.
const GRACE: Duration = Duration::from_secs(1);

/// What one connection is at.
#[derive(Debug)]
pub(crate) struct Activity {
    state: Mutex<State>,
    ended: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    num_running: u32,
    idle_since: Instant,
}

/// Something that its connection mustn't be closed for; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Running(Arc<Activity>);

/// The body of an answer over HTTP/1: while it lives, its connection isn't idle.
pub(crate) struct Held {
    body: Body,
    _running: Running,
}

/// All open connections that weren't told to go.
#[derive(Debug, Default)]
pub(crate) struct Open {
    connections: HashMap<Id, (Arc<Activity>, AbortHandle)>,
    ended: Arc<Notify>,
}

impl Open {
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// The activity of a connection that begins; [`Open::insert`] follows.
    pub(crate) fn begin(&self) -> Arc<Activity> {
        Arc::new(Activity::new(Arc::clone(&self.ended)))
    }

    pub(crate) fn insert(&mut self, activity: Arc<Activity>, task: AbortHandle) {
        self.connections.insert(task.id(), (activity, task));
    }

    pub(crate) fn forget(&mut self, id: Id) {
        self.connections.remove(&id);
    }

    /// Closes the one that has idled for the longest time, if one has for long enough.
    pub(crate) fn close_idlest(&mut self) {
        let Some((since, id)) = self.idlest() else { return };
        if since.elapsed() < GRACE {
            return;
        }
        if let Some((_, task)) = self.connections.remove(&id) {
            tracing::debug!("an idle connection is closed: others wait for its place");
            task.abort();
        }
    }

    /// Waits until there is one to close.
    pub(crate) async fn someone_idles(&self) {
        loop {
            match self.idlest() {
                Some((since, _)) if since.elapsed() >= GRACE => return,
                Some((since, _)) => tokio::time::sleep_until(since + GRACE).await,
                None => self.ended.notified().await,
            }
        }
    }

    fn idlest(&self) -> Option<(Instant, Id)> {
        self.connections
            .iter()
            .filter_map(|(id, (activity, _))| Some((activity.idle_since()?, *id)))
            .min_by_key(|(since, _)| *since)
    }
}

impl Activity {
    fn new(ended: Arc<Notify>) -> Self {
        Self {
            state: Mutex::new(State {
                num_running: 0,
                idle_since: Instant::now(),
            }),
            ended,
        }
    }

    /// Keeps the connection open for as long as the answer lives.
    pub(crate) fn run(self: &Arc<Self>) -> Running {
        self.with(|state| state.num_running += 1);
        Running(Arc::clone(self))
    }

    fn idle_since(&self) -> Option<Instant> {
        self.with(|state| (state.num_running == 0).then_some(state.idle_since))
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let is_idle = self.0.with(|state| {
            state.num_running -= 1;
            state.idle_since = Instant::now();
            state.num_running == 0
        });
        if is_idle {
            self.0.ended.notify_one();
        }
    }
}

impl Held {
    pub(crate) fn new(body: Body, running: Running) -> Self {
        Self {
            body,
            _running: running,
        }
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that began a second apart.
    async fn open(number: usize) -> (Open, Vec<Arc<Activity>>) {
        let mut open = Open::default();
        let mut activities = Vec::new();
        for _ in 0..number {
            let activity = open.begin();
            let task = tokio::spawn(std::future::pending::<()>());
            open.insert(Arc::clone(&activity), task.abort_handle());
            activities.push(activity);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        (open, activities)
    }

    fn is_open(open: &Open, activity: &Arc<Activity>) -> bool {
        open.connections
            .values()
            .any(|(other, _)| Arc::ptr_eq(other, activity))
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_idled_longest_is_closed_first() {
        let (mut open, all) = open(3).await;
        drop(all[0].run());
        open.close_idlest();
        assert!(
            !is_open(&open, &all[1]),
            "it idled longer than the one that just answered"
        );
        open.close_idlest();
        assert!(!is_open(&open, &all[2]));
        open.close_idlest();
        assert!(is_open(&open, &all[0]), "it is left alone for a while");
        tokio::time::advance(GRACE).await;
        open.close_idlest();
        assert_eq!(open.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_answers_is_not_closed() {
        let (mut open, all) = open(1).await;
        let (first, second) = (all[0].run(), all[0].run());
        tokio::time::advance(GRACE).await;
        drop(first);
        open.close_idlest();
        assert!(is_open(&open, &all[0]));
        let ended = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(second);
        };
        tokio::join!(open.someone_idles(), ended);
        open.close_idlest();
        assert!(!is_open(&open, &all[0]));
    }
}
