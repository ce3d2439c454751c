//! What a simulation found out.

use serde::Serialize;

use crate::histogram::Summary;

/// Counts and times of the window. Latencies are those of the requests that completed in it, as `goodput` defines them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Length of the window.
    pub window_seconds: f64,
    /// Passing completions per second of the window.
    pub goodput: f64,
    /// Completions per second of the window.
    pub request_throughput: f64,
    /// Tokens sampled per second of the window, those of requests that didn't complete included.
    pub output_token_throughput: f64,
    /// Prompt tokens computed per second of the window; those from the prefix cache aren't computed.
    pub prompt_token_throughput: f64,
    /// How requests ended.
    pub requests: Counts,
    /// From arrival to the first token.
    pub ttft_ms: Option<Summary>,
    /// Each request's 99th percentile of the gaps between its tokens.
    pub itl_p99_ms: Option<Summary>,
    /// Each request's mean time per token after the first.
    pub tpot_ms: Option<Summary>,
    /// From arrival to the last token.
    pub e2el_ms: Option<Summary>,
    /// From arrival to being scheduled for the first time.
    pub queue_ms: Option<Summary>,
    /// What the engines did.
    pub engine: EngineReport,
    /// In the order of the workload; empty if there is just one.
    pub tenants: Vec<TenantReport>,
}

/// How requests ended in the window.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Counts {
    /// Requests that arrived, refused ones included.
    pub arrivals: u64,
    /// Requests that gave their last token.
    pub completed: u64,
    /// Those of them that met every objective.
    pub passed: u64,
    /// Those of them that gave one token, and so have no gaps.
    pub single_token: u64,
    /// Those of them whose answer ended before its length, because the model's length or the KV cache had no more room.
    pub cut_short: u64,
    /// Refused because too much was waiting.
    pub refused_queue_full: u64,
    /// Refused because they could never run: longer than the model or the KV cache takes.
    pub refused_too_long: u64,
    /// Ended by their timeout.
    pub timed_out: u64,
    /// Not ended when the window ended, whenever they arrived.
    pub outstanding: u64,
}

impl Counts {
    /// Requests that ended without completing.
    pub fn failed(&self) -> u64 {
        self.refused_queue_full + self.refused_too_long + self.timed_out
    }
}

/// What the engines did in the window, all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EngineReport {
    /// Steps that ended.
    pub steps: u64,
    /// Mean length of a step.
    pub step_ms: f64,
    /// Input positions of a step, on average.
    pub tokens_per_step: f64,
    /// Decoding sequences of a step, on average.
    pub decodes_per_step: f64,
    /// Share of the time in which a step ran, in `[0, 1]`.
    pub busy: f64,
    /// Times that a running sequence lost its blocks.
    pub preemptions: u64,
    /// Share of the KV blocks that sequences held, averaged over time, in `[0, 1]`.
    pub kv_usage_mean: f64,
    /// The largest such share.
    pub kv_usage_max: f64,
    /// Share of the prompt tokens that came from the prefix cache; nothing if none were looked up.
    pub prefix_hit_rate: Option<f64>,
}

/// What one tenant got.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantReport {
    /// Its name in the workload.
    pub name: String,
    /// Passing completions per second of the window.
    pub goodput: f64,
    /// How its requests ended.
    pub requests: Counts,
    /// From arrival to the first token.
    pub ttft_ms: Option<Summary>,
    /// Each request's 99th percentile of the gaps between its tokens.
    pub itl_p99_ms: Option<Summary>,
}
