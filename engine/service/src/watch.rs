//! Readers of an engine's news: what its prefix cache holds, and its load.
//!
//! A reader pulls. Between two pulls nothing is kept for it but its place, so it can be as slow as it likes; the worker only notes what
//! changed, under a lock that nobody holds for longer than that.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::Stream;
use kvasir_client::refusal;
use kvasir_client::types::{
    Error, ErrorCode, KvCachePosition, KvCacheSource, KvCacheUpdate, LoadReport, RankAddress,
};
use kvasir_engine_core::BlockEvent;
use tokio::sync::watch;

use crate::kv_feed::{Cursor, FeedLimits, Gather, KvLog, Pending};
use crate::load_feed::LoadTeller;
use crate::mailbox::Command;
use crate::pace::Pacer;
use crate::shared::{EngineState, Shared};

/// Ten times a second, as the gateway's design says.
pub(crate) const NEWS_INTERVAL: Duration = Duration::from_millis(100);

/// For this long a log goes on without readers, for one that lost its stream and comes back.
const LINGER: Duration = Duration::from_mins(1);

/// The part that worker and readers share.
#[derive(Debug)]
pub(crate) struct KvFeed {
    block_size: u32,
    pending: Mutex<Pending>,
    state: Mutex<State>,
    /// Whether the worker has to look at the contents.
    needs_contents: AtomicBool,
    num_readers: AtomicUsize,
    /// Says that something has changed.
    news: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    address: RankAddress,
    next_log_id: u64,
    log: Option<KvLog>,
    pacer: Pacer,
    /// When the last reader left.
    unread_since: Option<Instant>,
}

impl KvFeed {
    /// A feed without readers. Log ids count up from `first_log_id`, which no earlier process with this address may have reached.
    pub(crate) fn new(address: RankAddress, first_log_id: u64, block_size: u32) -> Self {
        Self {
            block_size,
            pending: Mutex::default(),
            state: Mutex::new(State {
                address,
                next_log_id: first_log_id,
                log: None,
                pacer: Pacer::new(NEWS_INTERVAL),
                unread_since: None,
            }),
            needs_contents: AtomicBool::new(false),
            num_readers: AtomicUsize::new(0),
            news: watch::Sender::new(()),
        }
    }

    pub(crate) fn address(&self) -> RankAddress {
        self.state().address.clone()
    }

    /// For the worker: whether it has to begin to gather contents. Once per wish.
    pub(crate) fn take_wish(&self) -> bool {
        self.needs_contents.load(Ordering::Relaxed) && self.needs_contents.swap(false, Ordering::AcqRel)
    }

    /// For the worker: whether nobody has read for so long that the log ends. It has ended then.
    pub(crate) fn end_if_unread(&self, now: Instant) -> bool {
        if self.num_readers.load(Ordering::Acquire) > 0 {
            return false;
        }
        let mut state = self.state();
        let is_over = state.unread_since.is_some_and(|since| now >= since + LINGER)
            && self.num_readers.load(Ordering::Acquire) == 0;
        if is_over {
            state.log = None;
            *self.pending() = Pending::default();
        }
        is_over
    }

    /// For the worker: what it gathered; from now on it applies every event.
    pub(crate) fn begin(&self, gathered: Gather) {
        let contents = gathered.into_contents();
        let mut state = self.state();
        let source = KvCacheSource {
            address: Some(state.address.clone()),
            log_id: state.next_log_id,
        };
        state.next_log_id += 1;
        *self.pending() = Pending::default();
        state.log = Some(KvLog::new(
            source,
            self.block_size,
            FeedLimits::default(),
            contents,
        ));
        drop(state);
        self.news.send_replace(());
    }

    /// For the worker: what happened in a step.
    pub(crate) fn apply(&self, events: &[BlockEvent]) {
        if events.is_empty() {
            return;
        }
        let mut pending = self.pending();
        for event in events {
            pending.apply(event);
        }
        drop(pending);
        self.news.send_replace(());
    }

    /// Begins an epoch: every reader starts over under the new address.
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        let mut state = self.state();
        state.address.epoch = epoch;
        state.log = None;
        drop(state);
        if self.num_readers.load(Ordering::Acquire) > 0 {
            self.needs_contents.store(true, Ordering::Release);
        }
    }

    fn enter(&self) {
        let mut state = self.state();
        self.num_readers.fetch_add(1, Ordering::AcqRel);
        state.unread_since = None;
        if state.log.is_none() {
            self.needs_contents.store(true, Ordering::Release);
        }
    }

    fn leave(&self) {
        let mut state = self.state();
        if self.num_readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            state.unread_since = Some(Instant::now());
        }
    }

    /// What a reader has to be told, or when to ask again: at that time, or else at the next news.
    fn poll(&self, cursor: &mut Cursor, now: Instant) -> Result<KvCacheUpdate, Option<Instant>> {
        let mut state = self.state();
        let State { log, pacer, .. } = &mut *state;
        let Some(log) = log else { return Err(None) };
        let mut again = None;
        let mut pending = self.pending();
        if !pending.is_empty() {
            if pacer.pass(now) {
                let changes = std::mem::take(&mut *pending);
                drop(pending);
                log.publish(changes);
            } else {
                again = pacer.next();
            }
        }
        log.next(cursor).ok_or(again)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock ends the reader it happened to; the worker and other readers find whole sets.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader's place among those that the limit allows.
#[derive(Debug)]
struct Place {
    shared: Arc<Shared>,
    reads_kv: bool,
}

impl Place {
    fn claim(shared: &Arc<Shared>, reads_kv: bool) -> Result<Self, Error> {
        let limit = shared.limits.max_watches;
        let claimed = shared
            .watches
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |watches| {
                (watches < limit).then_some(watches + 1)
            });
        if claimed.is_err() {
            let message = format!("{limit} readers watch this engine, which is the limit; end one of them");
            return Err(refusal(ErrorCode::QueueFull, message));
        }
        if reads_kv {
            shared.kv_feed.enter();
        }
        Ok(Self {
            shared: Arc::clone(shared),
            reads_kv,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.reads_kv {
            self.shared.kv_feed.leave();
        }
        self.shared.watches.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    /// What the prefix cache holds, see `WatchKvCache` in the .proto. Ends with the engine.
    ///
    /// # Errors
    /// If there are too many readers.
    pub(crate) fn watch_kv_cache(
        self: &Arc<Self>,
        resume_after: Option<KvCachePosition>,
    ) -> Result<impl Stream<Item = KvCacheUpdate> + Send + use<>, Error> {
        let place = Place::claim(self, true)?;
        // An idle worker has to look at the contents.
        if self.mailbox.post(Command::Look).is_err() {
            tracing::trace!("a reader came after the end of the engine");
        }
        let reader = (place, Cursor::new(resume_after));
        Ok(futures::stream::unfold(
            reader,
            |(place, mut cursor)| async move {
                let shared = Arc::clone(&place.shared);
                let mut news = shared.kv_feed.news.subscribe();
                loop {
                    news.mark_unchanged();
                    match shared.kv_feed.poll(&mut cursor, now()) {
                        Ok(update) => return Some((update, (place, cursor))),
                        Err(again) => {
                            if shared.wait(&mut news, again).await.is_break() {
                                return None;
                            }
                        }
                    }
                }
            },
        ))
    }

    /// The load report whenever it has changed, see `WatchLoad` in the .proto. Ends with the engine.
    ///
    /// # Errors
    /// If there are too many readers.
    pub(crate) fn watch_load(
        self: &Arc<Self>,
    ) -> Result<impl Stream<Item = LoadReport> + Send + use<>, Error> {
        let place = Place::claim(self, false)?;
        let reader = (place, LoadTeller::new(NEWS_INTERVAL));
        Ok(futures::stream::unfold(
            reader,
            |(place, mut teller)| async move {
                let shared = Arc::clone(&place.shared);
                let mut news = shared.load_news.subscribe();
                loop {
                    news.mark_unchanged();
                    match teller.next(now(), shared.load_report()) {
                        Ok(report) => return Some((report, (place, teller))),
                        Err(again) => {
                            if shared.wait(&mut news, again).await.is_break() {
                                return None;
                            }
                        }
                    }
                }
            },
        ))
    }

    /// Waits for news or a time. Breaks when the engine has ended.
    async fn wait(
        &self,
        news: &mut watch::Receiver<()>,
        until: Option<Instant>,
    ) -> std::ops::ControlFlow<()> {
        let mut state = self.state.subscribe();
        let ended = state.wait_for(|state| matches!(state, EngineState::Stopped | EngineState::Failed(_)));
        let time = async {
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = ended => std::ops::ControlFlow::Break(()),
            // It fails only when the sender is gone, and `self` holds it.
            _ = news.changed() => std::ops::ControlFlow::Continue(()),
            () = time => std::ops::ControlFlow::Continue(()),
        }
    }
}

/// The time that timers go by, which tests can stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
