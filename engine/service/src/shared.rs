//! What the worker thread and everybody else share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kvasir_client::types::{
    Error, ErrorCode, GenerateRequest, LoadReport, ModelInfo, RankAddress, TextAssetsChunk, Watchdog,
};
use kvasir_client::{invalid, refusal};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

use crate::dump;
use crate::host::Host;
use crate::mailbox::{Command, Mailbox, PostError};
use crate::names::{Names, RequestKey};
use crate::setup::{CacheParts, Diagnostics, EngineIdentity, ServiceLimits};
use crate::sink::{Place, Sink, Submission};
use crate::validate::{self, ValidRequest};
use crate::watch::KvFeed;
use crate::worker::Counters;

/// Where an engine is in its life. It only moves down this list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum EngineState {
    /// Takes requests.
    Ready,
    /// Finishes what it has.
    Draining,
    /// Was told to end.
    Stopped,
    /// The scheduler thread panicked with this message.
    Failed(String),
}

/// What the watchdog thinks of the worker thread.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Health {
    /// Nothing.
    Fine,
    /// Requests were failed for this reason; there may be progress again.
    Stalled(String),
    /// That didn't help: no requests are taken for this reason.
    Broken(String),
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) model: ModelInfo,
    pub(crate) assets: Vec<TextAssetsChunk>,
    pub(crate) limits: ServiceLimits,
    pub(crate) diagnostics: Diagnostics,
    pub(crate) host: Host,
    pub(crate) mailbox: Mailbox,
    pub(crate) state: watch::Sender<EngineState>,
    /// Requests that haven't ended, untaken ones included.
    pub(crate) live: watch::Sender<u32>,
    pub(crate) health: watch::Sender<Health>,
    /// Whether the worker thread is gone.
    pub(crate) ended: watch::Sender<bool>,
    pub(crate) kv_feed: KvFeed,
    /// Says that the load has changed.
    pub(crate) load_news: watch::Sender<()>,
    /// Readers of cache and load news.
    pub(crate) watches: AtomicUsize,
    cache: CacheParts,
    next_key: AtomicU64,
    load: Mutex<Load>,
    num_stalls: AtomicU64,
    num_failed: AtomicU64,
    stall_dump: Mutex<Option<Bytes>>,
}

#[derive(Debug, Default)]
struct Load {
    counters: Counters,
    /// When the last step completed, or work came to an idle engine. None while idle.
    progress: Option<Instant>,
}

impl Shared {
    pub(crate) fn new(
        model: ModelInfo,
        assets: Vec<TextAssetsChunk>,
        cache: CacheParts,
        identity: EngineIdentity,
        limits: ServiceLimits,
        diagnostics: Diagnostics,
        host: Host,
    ) -> Self {
        let EngineIdentity {
            instance_id,
            epoch,
            dp_rank,
        } = identity;
        let address = RankAddress {
            instance_id,
            epoch,
            dp_rank,
        };
        // A process that comes back under its old name has another log.
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let first_log_id = u64::try_from(started.as_micros()).unwrap_or(u64::MAX / 2);
        Self {
            kv_feed: KvFeed::new(address, first_log_id, model.block_size),
            load_news: watch::Sender::new(()),
            watches: AtomicUsize::new(0),
            model,
            assets,
            limits,
            diagnostics,
            host,
            mailbox: Mailbox::new(limits.max_untaken_requests),
            state: watch::Sender::new(EngineState::Ready),
            live: watch::Sender::new(0),
            health: watch::Sender::new(Health::Fine),
            ended: watch::Sender::new(false),
            cache,
            next_key: AtomicU64::new(0),
            load: Mutex::default(),
            num_stalls: AtomicU64::new(0),
            num_failed: AtomicU64::new(0),
            stall_dump: Mutex::default(),
        }
    }

    pub(crate) fn next_key(&self) -> RequestKey {
        RequestKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// Validates a request and takes its place among the live ones.
    ///
    /// # Errors
    /// If the engine takes none, or not this one.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        names: &Arc<Names>,
        request: GenerateRequest,
    ) -> Result<(ValidRequest, Place), Error> {
        self.check_open()?;
        if self.limits.require_tenant_salt && request.tenant_salt.is_empty() {
            let message = "this engine serves gateways only, whose requests carry the cache salt of a tenant";
            return Err(invalid("tenant_salt", message));
        }
        let root = self.cache.root(&request.tenant_salt, &request.cache_salt);
        let traceparent = request.traceparent.clone();
        let (request_id, valid) = validate::validate(request, &self.model, root)?;
        if !traceparent.is_empty() {
            tracing::debug!(
                target: "kvasir::request",
                request_id = %request_id.escape_debug(),
                traceparent = %traceparent.escape_debug(),
                "taken"
            );
        }
        let place = Place::claim(self, names, &request_id)?;
        // Draining is checked again after the request counts as live, so that a drain that saw no request is right.
        self.check_open()?;
        Ok((valid, place))
    }

    /// Hands a request to the worker.
    ///
    /// # Errors
    /// If the worker is too far behind or gone.
    pub(crate) fn submit(&self, request: ValidRequest, place: Place, sink: Sink) -> Result<(), Error> {
        let submission = Box::new(Submission {
            request,
            received: Instant::now(),
            sink,
            place,
        });
        match self.mailbox.post(Command::Submit(submission)) {
            Ok(()) => Ok(()),
            Err(PostError::Full(refused)) => {
                drop(refused);
                let limit = self.limits.max_untaken_requests;
                let message =
                    format!("{limit} requests wait for the scheduler, which is the limit; try again later");
                Err(refusal(ErrorCode::QueueFull, message))
            }
            Err(PostError::Closed) => Err(closed(&self.state.borrow())),
        }
    }

    /// Asks for the end of a sequence or request; a request that has ended needs none.
    pub(crate) fn abort(&self, key: RequestKey, index: Option<u32>) {
        if self.mailbox.post(Command::Abort(key, index)).is_err() {
            tracing::trace!("an abort came after the end of the engine");
        }
    }

    /// Stops admission and waits for what runs. Returns the number of requests that still do.
    pub(crate) async fn drain(&self, deadline: Duration) -> u32 {
        self.advance(EngineState::Draining);
        let mut live = self.live.subscribe();
        let ended = live.wait_for(|live| *live == 0);
        match tokio::time::timeout(deadline, ended).await {
            Ok(_) => 0,
            Err(_) => *self.live.borrow(),
        }
    }

    /// Moves to a later state; an earlier one is ignored.
    pub(crate) fn advance(&self, next: EngineState) {
        let rank = |state: &EngineState| match state {
            EngineState::Ready => 0,
            EngineState::Draining => 1,
            EngineState::Stopped => 2,
            EngineState::Failed(_) => 3,
        };
        self.state.send_if_modified(|state| {
            let later = rank(&next) > rank(state);
            if later {
                *state = next;
            }
            later
        });
        self.load_news.send_replace(());
    }

    /// Makes the figures known. Costs a copy: reports are made when somebody asks.
    pub(crate) fn publish(&self, counters: &Counters, progress: Option<Instant>) {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        load.counters.clone_from(counters);
        load.progress = progress;
        drop(load);
        if self.load_news.receiver_count() > 0 {
            self.load_news.send_replace(());
        }
    }

    /// The chunks of the text assets with this digest, or why there are none.
    pub(crate) fn assets_for(&self, digest: &str) -> Result<&[TextAssetsChunk], String> {
        if digest == self.model.text_assets_digest {
            return Ok(&self.assets);
        }
        // A hostile digest may be long.
        let asked: String = digest.chars().take(64).collect();
        Err(format!(
            "the engine holds text assets {}, not {asked:?}",
            self.model.text_assets_digest
        ))
    }

    /// Answers also while the worker is stuck in a step: `stalled_us` shows that (C18, C19).
    pub(crate) fn load_report(&self) -> LoadReport {
        let load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        let (report, progress) = (load.counters.report(), load.progress);
        drop(load);
        let outcomes = self.host.live().outcomes();
        LoadReport {
            num_finished_seqs: outcomes.finished,
            num_failed_seqs: outcomes.failed,
            draining: *self.state.borrow() != EngineState::Ready,
            stalled_us: progress.map_or(0, |since| micros(since.elapsed())),
            process_cpu_us: micros(process_cpu_time()),
            watchdog: Some(self.watchdog_report()),
            num_cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
            address: Some(self.kv_feed.address()),
            ..report
        }
    }

    fn watchdog_report(&self) -> Watchdog {
        let unhealthy = match &*self.health.borrow() {
            Health::Broken(reason) => Some(reason.clone()),
            Health::Fine | Health::Stalled(_) => None,
        };
        Watchdog {
            unhealthy,
            num_stalls: self.num_stalls.load(Ordering::Relaxed),
            num_failed: self.num_failed.load(Ordering::Relaxed),
            deadline_us: self.host.pulse.allowance().map_or(0, micros),
        }
    }

    pub(crate) fn set_health(&self, health: Health) {
        self.health.send_replace(health);
    }

    /// The watchdog has failed this many sequences of a step.
    pub(crate) fn note_stall(&self, num_failed: usize) {
        self.num_stalls.fetch_add(1, Ordering::Relaxed);
        self.note_failed(num_failed);
    }

    pub(crate) fn note_failed(&self, num_failed: usize) {
        self.num_failed.fetch_add(num_failed as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_stall_dump(&self, dump: Bytes) {
        *self.stall_dump.lock().unwrap_or_else(PoisonError::into_inner) = Some(dump);
    }

    /// The state now, or the dump of the last stall.
    ///
    /// # Errors
    /// If there was no stall.
    pub(crate) async fn dump(self: &Arc<Self>, last_stall: bool) -> Result<Bytes, Error> {
        if last_stall {
            let dump = self
                .stall_dump
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            return dump.ok_or_else(|| invalid("last_stall", "the engine has not stalled since it started"));
        }
        let shared = Arc::clone(self);
        // Writing it down takes a while if much was recorded.
        let dump = tokio::task::spawn_blocking(move || dump::capture(&shared, "asked for").to_bytes());
        let dump = dump.await;
        dump.map(Bytes::from)
            .map_err(|error| refusal(ErrorCode::Internal, format!("the dump can't be made: {error}")))
    }

    /// Whether requests are taken.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if let Health::Broken(reason) = &*self.health.borrow() {
            return Err(refusal(ErrorCode::Unavailable, reason.clone()));
        }
        match &*self.state.borrow() {
            EngineState::Ready => Ok(()),
            EngineState::Draining => Err(refusal(
                ErrorCode::Draining,
                "the engine is draining and takes no new requests",
            )),
            state => Err(closed(state)),
        }
    }
}

/// CPU time of all threads of this process so far.
fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn closed(state: &EngineState) -> Error {
    let message = match state {
        EngineState::Failed(_) => "the engine failed and is ending; its log says why",
        _ => "the engine has stopped",
    };
    refusal(ErrorCode::Unavailable, message)
}
