//! The state of an engine in one JSON document: what it was doing, its last steps, and the scheduler's inputs, which `kvasir replay` runs again.
//!
//! A dump is made on demand and by the watchdog, by whatever thread asks for it: it needs neither the worker thread nor the executor. It holds
//! the token ids of prompts and the ids of requests, so it is as confidential as they are: files get mode 0600, and only the newest
//! [`MAX_FILES`] stay.

mod file;
mod replay;

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kvasir_engine_core::{ReplayError, Stats, Trace, TraceError};
use serde::{Deserialize, Serialize};

pub(crate) use self::file::write;
pub use self::file::{MAX_FILES, prepare};
pub use self::replay::Replayed;
use crate::journal::StepRecord;
use crate::shared::{Health, Shared};

/// The value of [`Dump::format`]. A change that older readers would misread is a new one.
const FORMAT: &str = "kvasir.dump.v1";

/// How long a dump waits for the worker thread to leave the scheduler.
const PATIENCE: Duration = Duration::from_millis(200);

/// What is in the document.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Dump {
    /// Names the version of this format.
    pub format: String,
    /// Why it was made.
    pub cause: String,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// When, in microseconds since the engine started: the clock of the step records.
    pub engine_us: u64,
    /// Of the engine.
    pub engine_version: String,
    /// What it serves.
    pub model: String,
    /// `fine`, or what the watchdog says.
    pub health: String,
    /// Queues, blocks and counters; absent if the worker thread didn't leave the scheduler.
    pub stats: Option<DumpStats>,
    /// Sequences whose requests haven't ended, in the order they came.
    pub live: Vec<LiveSequence>,
    /// Steps that the executor has, oldest first.
    pub in_flight: Vec<PlannedStep>,
    /// The last steps that ended, oldest first.
    pub steps: Vec<StepRecord>,
    /// Digests of the last plans, to compare a replay with.
    pub plans: Vec<PlanDigest>,
    /// The scheduler's inputs ([`Trace::to_bytes`]) in Base64; absent if none are recorded, or with `stats`.
    pub trace: Option<String>,
}

/// See [`Stats`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[expect(
    missing_docs,
    reason = "the names are those of the scheduler's figures, which are documented"
)]
pub struct DumpStats {
    pub num_running: u32,
    pub num_waiting: u32,
    pub num_deferred: u32,
    pub num_queued_tokens: u64,
    pub head_age_us: u64,
    pub num_free_blocks: u32,
    pub num_usable_blocks: u32,
    pub num_cached_blocks: u32,
    pub prefix_cache_queries: u64,
    pub prefix_cache_hits: u64,
    pub num_preemptions: u64,
    pub num_steps: u64,
    pub num_prompt_tokens: u64,
    pub num_generation_tokens: u64,
}

/// A sequence whose request hasn't ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LiveSequence {
    /// The id that the client gave its request.
    pub request_id: String,
    /// Which of the request's sequences.
    pub index: u32,
    /// The scheduler's name for it.
    pub seq: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Those of them that are computed or came from the cache.
    pub prompt_tokens_done: u32,
    /// Tokens sampled.
    pub output_tokens: u32,
    /// How often it lost its blocks.
    pub num_preemptions: u32,
    /// Microseconds since its request was received.
    pub age_us: u64,
}

/// A step in flight.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PlannedStep {
    /// What is known of it so far.
    pub record: StepRecord,
    /// Its plan as text.
    pub plan: String,
}

/// A plan that was given to the executor.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PlanDigest {
    /// The step's id.
    pub step: u64,
    /// CRC-32 of the plan.
    pub crc32: u32,
}

/// Why a dump can't be read, written or replayed.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// It isn't one, or it is cut off.
    #[error("this is no dump of an engine: {0}")]
    Json(#[source] serde_json::Error),
    /// It is one of another version.
    #[error("the dump's format is {0:?}, this program reads {FORMAT:?}")]
    Format(String),
    /// It has no recording.
    #[error(
        "the dump holds no recording of the scheduler's inputs: the engine ran with --record-inputs 0, or its scheduler was stuck itself"
    )]
    NoTrace,
    /// The recording isn't Base64.
    #[error("the dump's recording is damaged: {0}")]
    Base64(#[source] base64::DecodeError),
    /// The recording can't be read.
    #[error("the dump's recording is damaged: {0}")]
    Trace(#[source] TraceError),
    /// The recording can't be run.
    #[error("the recording can't be run again: {0}")]
    Replay(#[source] ReplayError),
    /// No folder was named for dumps.
    #[error("the engine has no folder for dumps: name one with --dump-dir")]
    NoFolder,
    /// The folder can't be used.
    #[error("dumps can't be kept in {}: {source}; --dump-dir names the folder", .path.display())]
    Folder {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file can't be written.
    #[error("can't write the dump {}: {source}", .path.display())]
    Write {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Dump {
    /// Reads what [`Dump::to_bytes`] wrote.
    ///
    /// # Errors
    /// If it is something else, cut off, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DumpError> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
        }
        let head: Head = serde_json::from_slice(bytes).map_err(DumpError::Json)?;
        if head.format != FORMAT {
            return Err(DumpError::Format(head.format.chars().take(64).collect()));
        }
        serde_json::from_slice(bytes).map_err(DumpError::Json)
    }

    /// The document.
    ///
    /// # Panics
    /// Never: a dump has only plain values and string keys.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a dump has only plain values and string keys")
    }

    /// The recording in it.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn trace(&self) -> Result<Trace, DumpError> {
        let text = self.trace.as_ref().ok_or(DumpError::NoTrace)?;
        let bytes = BASE64.decode(text).map_err(DumpError::Base64)?;
        Trace::from_bytes(&bytes).map_err(DumpError::Trace)
    }
}

/// The state as it is now. Takes a moment from the scheduler, which is copied under its lock; the rest is done by the caller's thread.
pub(crate) fn capture(shared: &Shared, cause: &str) -> Dump {
    let host = &shared.host;
    let (stats, trace) = match host.scheduler_within(PATIENCE) {
        Some(scheduler) => (Some(scheduler.stats()), scheduler.trace()),
        None => (None, None),
    };
    let live = host.live().list();
    let journal = host.journal();
    let in_flight = journal.in_flight().cloned().collect::<Vec<_>>();
    let steps = journal.done().cloned().collect();
    // After the trace, so that every plan of the trace has its digest.
    let digests = journal.digests().collect::<Vec<_>>();
    drop(journal);
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Dump {
        format: FORMAT.to_owned(),
        cause: cause.to_owned(),
        unix_ms: since_1970.map_or(0, |since| since.as_millis() as u64),
        engine_us: host.epoch.elapsed().as_micros() as u64,
        engine_version: shared.model.engine_version.clone(),
        model: shared.model.model.clone(),
        health: match &*shared.health.borrow() {
            Health::Fine => "fine".to_owned(),
            Health::Stalled(reason) | Health::Broken(reason) => reason.clone(),
        },
        stats: stats.as_ref().map(DumpStats::of),
        live,
        in_flight: in_flight
            .into_iter()
            .map(|begun| PlannedStep {
                plan: begun.plan.to_string(),
                record: begun.record,
            })
            .collect(),
        steps,
        plans: digests
            .into_iter()
            .map(|(step, crc32)| PlanDigest { step: step.0, crc32 })
            .collect(),
        trace: trace.map(|trace| BASE64.encode(trace.to_bytes())),
    }
}

/// Keeps a dump of a stall: in memory until the next one, and in the folder for dumps if there is one.
pub(crate) fn keep(shared: &Shared, cause: &str) {
    let bytes = bytes::Bytes::from(capture(shared, cause).to_bytes());
    shared.set_stall_dump(bytes.clone());
    let Some(folder) = &shared.diagnostics.dump_dir else {
        return;
    };
    match write(folder, "stall", &bytes) {
        Ok(path) => tracing::error!("the state of the engine is in {}", path.display()),
        Err(error) => tracing::error!("{error}"),
    }
}

impl DumpStats {
    fn of(stats: &Stats) -> Self {
        Self {
            num_running: stats.num_running,
            num_waiting: stats.num_waiting,
            num_deferred: stats.num_deferred,
            num_queued_tokens: stats.num_queued_tokens,
            head_age_us: stats.head_age.0,
            num_free_blocks: stats.num_free_blocks,
            num_usable_blocks: stats.num_usable_blocks,
            num_cached_blocks: stats.num_cached_blocks,
            prefix_cache_queries: stats.prefix_cache_queries,
            prefix_cache_hits: stats.prefix_cache_hits,
            num_preemptions: stats.num_preemptions,
            num_steps: stats.num_steps,
            num_prompt_tokens: stats.num_prompt_tokens,
            num_generation_tokens: stats.num_generation_tokens,
        }
    }
}
