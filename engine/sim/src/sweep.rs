//! Many settings of one server, and which of them serves a workload best.

use std::borrow::Cow;

use kvasir_engine_core::SchedulerConfig;
use serde::Serialize;

use crate::recording::RecordingError;
use crate::report::Report;
use crate::workload::{Arrivals, Workload};

/// The grid: every setting under every load.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// Values of `max_num_batched_tokens`.
    pub token_budgets: Vec<u32>,
    /// Values of `max_num_seqs`.
    pub seq_limits: Vec<u32>,
    /// How much is asked.
    pub loads: Vec<Load>,
}

/// What is tuned.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Setting {
    /// Token budget of a step.
    pub max_num_batched_tokens: u32,
    /// Sequences in a step.
    pub max_num_seqs: u32,
}

/// How much is asked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// As the workload says.
    Given,
    /// So many requests per second.
    RequestRate(f64),
    /// So many clients.
    Clients(u32),
    /// A recording, so many times as fast.
    SpeedUp(f64),
}

/// One place of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// What is tuned.
    #[serde(flatten)]
    pub setting: Setting,
    /// How much is asked.
    pub load: Load,
}

impl Sweep {
    /// Every point, by load and then by setting as they were given. Settings that a server refuses are [left out](Self::left_out).
    pub fn points(&self) -> Vec<Point> {
        let settings = || self.settings().filter(|setting| setting.is_possible());
        let points = |&load: &Load| settings().map(move |setting| Point { setting, load });
        self.loads.iter().flat_map(points).collect()
    }

    /// Settings of the grid whose budget is below their number of sequences: a server refuses them.
    pub fn left_out(&self) -> Vec<Setting> {
        self.settings().filter(|setting| !setting.is_possible()).collect()
    }

    /// How many points there would be, those left out included.
    pub fn num_points(&self) -> usize {
        let Self {
            token_budgets,
            seq_limits,
            loads,
        } = self;
        token_budgets
            .len()
            .saturating_mul(seq_limits.len())
            .saturating_mul(loads.len())
    }

    fn settings(&self) -> impl Iterator<Item = Setting> {
        self.token_budgets.iter().flat_map(|&max_num_batched_tokens| {
            self.seq_limits.iter().map(move |&max_num_seqs| Setting {
                max_num_batched_tokens,
                max_num_seqs,
            })
        })
    }
}

impl Setting {
    /// Whether every sequence can decode in each step.
    fn is_possible(self) -> bool {
        self.max_num_batched_tokens >= self.max_num_seqs
    }

    /// The limits with this setting. A cap on running sequences stays, as far as it is one.
    pub fn apply(&self, limits: &SchedulerConfig) -> SchedulerConfig {
        SchedulerConfig {
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_seqs: self.max_num_seqs,
            max_num_active_seqs: limits.max_num_active_seqs.min(self.max_num_seqs),
            ..limits.clone()
        }
    }
}

impl Load {
    /// The workload under this load. A load of another kind than the workload's arrivals changes nothing.
    ///
    /// # Errors
    /// If a recording can't be played at that speed.
    pub fn apply<'a>(&self, workload: &'a Workload) -> Result<Cow<'a, Workload>, RecordingError> {
        let mut changed = match (*self, workload) {
            (Self::SpeedUp(factor), Workload::Recorded(recording)) => {
                return Ok(Cow::Owned(Workload::Recorded(recording.clone().sped_up(factor)?)));
            }
            (Self::RequestRate(_) | Self::Clients(_), Workload::Synthetic(synthetic)) => synthetic.clone(),
            _ => return Ok(Cow::Borrowed(workload)),
        };
        match (*self, &mut changed.arrivals) {
            (
                Self::RequestRate(rate),
                Arrivals::Rate { per_second, .. } | Arrivals::Constant { per_second },
            ) => {
                *per_second = rate;
            }
            (Self::Clients(clients), Arrivals::Clients { count, .. }) => *count = clients,
            _ => {}
        }
        Ok(Cow::Owned(Workload::Synthetic(changed)))
    }
}

/// The index of the best point: the highest goodput; among equals the shorter 99th percentile of the time to the first token, then of the
/// gaps, then the smaller setting. Nothing if nowhere a request passed.
pub fn best(results: &[(Point, Report)]) -> Option<usize> {
    let p99 = |summary: &Option<crate::Summary>| summary.map_or(f64::INFINITY, |summary| summary.p99);
    let passing = results
        .iter()
        .enumerate()
        .filter(|(_, (_, report))| report.goodput > 0.0);
    let best = passing.min_by(|(_, (a, left)), (_, (b, right))| {
        (right.goodput.total_cmp(&left.goodput))
            .then(p99(&left.ttft_ms).total_cmp(&p99(&right.ttft_ms)))
            .then(p99(&left.itl_p99_ms).total_cmp(&p99(&right.itl_p99_ms)))
            .then(a.setting.cmp(&b.setting))
    });
    best.map(|(index, _)| index)
}
