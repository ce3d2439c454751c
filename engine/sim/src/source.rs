//! A workload while it is played.

mod recorded;
mod synthetic;

use std::sync::Arc;

use kvasir_engine_core::{Request, RequestOptions, StopConditions, TokenId};

use crate::collect::TenantIndex;
use crate::time::SimTime;
use crate::workload::Workload;
use recorded::RecordedSource;
use synthetic::SyntheticSource;

/// Tokens that requests share have this bit, tokens that a request has for itself don't.
const SHARED: TokenId = 1 << 31;

/// A request on its way to an engine.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) options: RequestOptions,
    pub(crate) tenant: TenantIndex,
    /// The client or conversation that waits for its end.
    pub(crate) slot: Option<u32>,
    /// What it generates, if that is known.
    pub(crate) outputs: Option<Arc<[TokenId]>>,
}

/// Gives requests out in the order of their time.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    Synthetic(Box<SyntheticSource<'a>>),
    Recorded(RecordedSource<'a>),
}

impl<'a> Source<'a> {
    /// At most `num_requests` of a workload that was checked against `max_model_len`.
    pub(crate) fn new(workload: &'a Workload, num_requests: u64, max_model_len: u32) -> Self {
        match workload {
            Workload::Synthetic(spec) => {
                Self::Synthetic(Box::new(SyntheticSource::new(spec, num_requests, max_model_len)))
            }
            Workload::Recorded(recording) => Self::Recorded(RecordedSource::new(recording, num_requests)),
        }
    }

    /// When the next one comes that waits for nobody. Each call asks for one more.
    pub(crate) fn next_arrival(&mut self) -> Option<SimTime> {
        match self {
            Self::Synthetic(source) => source.next_arrival(),
            Self::Recorded(source) => source.next_arrival(),
        }
    }

    /// It.
    pub(crate) fn arrive(&mut self, now: SimTime) -> Option<Job> {
        match self {
            Self::Synthetic(source) => source.arrive(now),
            Self::Recorded(source) => source.arrive(),
        }
    }

    /// When a client or a conversation asks again whose request has ended, with so many tokens if it completed.
    pub(crate) fn follow_up(&mut self, slot: u32, now: SimTime, num_output: Option<u32>) -> Option<SimTime> {
        match self {
            Self::Synthetic(source) => source.follow_up(slot, now, num_output),
            Self::Recorded(_) => None,
        }
    }

    /// Its request.
    pub(crate) fn ask(&mut self, slot: u32, now: SimTime) -> Option<Job> {
        match self {
            Self::Synthetic(source) => source.ask(slot, now),
            Self::Recorded(_) => None,
        }
    }
}

/// A request that ends after so many tokens and not before.
fn request(
    prompt: Arc<[TokenId]>,
    max_tokens: u32,
    priority: i64,
    root: kvasir_cache_key::CacheRoot,
) -> Request {
    Request {
        prompt,
        stop: StopConditions {
            max_tokens,
            ..StopConditions::default()
        },
        priority,
        cache_root: root,
        reads_prefix_cache: true,
    }
}
