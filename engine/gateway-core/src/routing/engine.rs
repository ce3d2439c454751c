//! What a gateway knows of one engine.

use std::time::Duration;

use super::address::{EngineAddress, EngineId};
use super::circuit::Circuit;
use super::feed::Feed;
use super::index::Holder;
use crate::time::Micros;

/// What an engine can hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capacity {
    /// KV blocks that requests can use.
    pub num_blocks: u32,
    /// Tokens of a block, 1 or more.
    pub block_size: u32,
}

/// What an engine says of its load.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LoadReport {
    /// Sequences that run.
    pub num_running: u32,
    /// Sequences that wait.
    pub num_waiting: u32,
    /// Blocks that a new request could get.
    pub num_free_blocks: u32,
}

/// How old a report may be. Engines report on change, so an idle one's may be old; but they repeat it each second as a sign of life.
const REPORT_LIFETIME: Duration = Duration::from_secs(5);

/// One engine. Choices read all engines, so what they don't need lies apart.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) id: EngineId,
    /// The number of the revision in the router.
    pub(super) revision: u32,
    pub(super) capacity: Capacity,
    /// Where its blocks are filed; `None` if the index has no number left.
    pub(super) holder: Option<Holder>,
    pub(super) is_draining: bool,
    pub(super) circuit: Circuit,
    pub(super) own: Own,
    report: Option<(LoadReport, Micros)>,
    /// Chosen since the report.
    since_report: Work,
    /// Choices so far.
    pub(super) num_chosen: u64,
    pub(super) apart: Box<Apart>,
}

/// What choices don't need.
#[derive(Debug)]
pub(super) struct Apart {
    pub(super) address: EngineAddress,
    pub(super) place_key: u64,
    pub(super) feed: Feed,
    /// The number that a snapshot in progress fills, and the batch that it includes.
    pub(super) snapshot: Option<(Holder, u64)>,
    pub(super) pace: Pace,
}

/// What this gateway has at the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    /// Requests.
    pub(super) num_requests: u32,
    /// Their sequences, which take the engine's seats.
    pub(super) num_sequences: u32,
    /// Requests without a first token, and the tokens that must be computed for them.
    pub(super) num_unbegun: u32,
    pub(super) unbegun_tokens: u64,
}

/// Work that requests bring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) num_sequences: u32,
    pub(super) num_blocks: u32,
}

/// How long first tokens take per token of work, smoothed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Nanoseconds per token.
    pub(super) nanos: u64,
    pub(super) num_samples: u32,
}

impl Engine {
    pub(super) fn new(
        id: EngineId,
        address: EngineAddress,
        revision: u32,
        capacity: Capacity,
        holder: Option<Holder>,
        now: Micros,
    ) -> Self {
        Self {
            id,
            revision,
            capacity,
            holder,
            is_draining: false,
            circuit: Circuit::new(now),
            own: Own::default(),
            report: None,
            since_report: Work::default(),
            num_chosen: 0,
            apart: Box::new(Apart {
                place_key: address.place_key(),
                address,
                feed: Feed::new(),
                snapshot: None,
                pace: Pace::default(),
            }),
        }
    }

    pub(super) fn take_report(&mut self, report: LoadReport, now: Micros) {
        self.report = Some((report, now));
        self.since_report = Work::default();
    }

    /// The request is on its way: counted at once, so that the next choice sees it.
    pub(super) fn admit(&mut self, computed_tokens: u64, num_blocks: u32, num_sequences: u32) {
        self.circuit.chosen();
        self.own.num_requests += 1;
        self.own.num_sequences = self.own.num_sequences.saturating_add(num_sequences);
        self.own.num_unbegun += 1;
        self.own.unbegun_tokens += computed_tokens;
        self.since_report.num_sequences = self.since_report.num_sequences.saturating_add(num_sequences);
        self.since_report.num_blocks = self.since_report.num_blocks.saturating_add(num_blocks);
        self.num_chosen += 1;
    }

    /// Sequences that run or wait: what is known here, or what the engine says and what came since, whichever is more.
    pub(super) fn num_sequences(&self, now: Micros) -> u32 {
        let reported = self.fresh_report(now).map_or(0, |report| {
            report
                .num_running
                .saturating_add(report.num_waiting)
                .saturating_add(self.since_report.num_sequences)
        });
        reported.max(self.own.num_sequences)
    }

    /// Requests that wait and that this gateway knows nothing of.
    pub(super) fn num_foreign_waiting(&self, now: Micros) -> u32 {
        let waiting = self.fresh_report(now).map_or(0, |report| report.num_waiting);
        waiting.saturating_sub(self.own.num_unbegun)
    }

    /// Blocks in use, with those of requests that came since the report.
    pub(super) fn num_used_blocks(&self, now: Micros) -> u32 {
        let used = self.fresh_report(now).map_or(0, |report| {
            self.capacity.num_blocks.saturating_sub(report.num_free_blocks)
        });
        used.saturating_add(self.since_report.num_blocks)
    }

    fn fresh_report(&self, now: Micros) -> Option<&LoadReport> {
        let (report, at) = self.report.as_ref()?;
        (now.since(*at) <= REPORT_LIFETIME).then_some(report)
    }
}

impl Pace {
    /// A first token after `latency` for so many tokens of work. The newest of eight samples weighs as much as the others of it.
    pub(super) fn sample(&mut self, latency: Duration, num_tokens: u64) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX) / num_tokens.max(1);
        self.nanos = if self.num_samples == 0 {
            nanos
        } else {
            (self.nanos / 8).saturating_mul(7).saturating_add(nanos / 8)
        };
        self.num_samples = self.num_samples.saturating_add(1);
    }
}
