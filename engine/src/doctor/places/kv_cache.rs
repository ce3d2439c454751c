//! First: are there enough KV blocks? Where they run out, requests lose theirs and are computed again, which costs time that no other figure shows as
//! waste.

use super::super::finding::{Finding, Measure, Place, Threshold, Unit, Verdict};
use super::super::snapshot::{Server, Window};
use super::{is_at_cap, mean_prompt};

/// From here on a pool counts as full: a request that starts needs blocks for all of its prompt at once.
const FULL_USAGE: f64 = 0.9;

/// Preemptions a second from which recomputing costs more than a few percent: one in ten seconds, where a prefill takes some tenths of a second.
const PREEMPTIONS_PER_SECOND: f64 = 0.1;

/// Looks at usage, free blocks and preemptions.
pub(crate) fn kv_cache(window: &Window<'_>) -> Finding {
    let usage = window.high(|look| look.kv_usage);
    let free = window.low(|look| look.free_blocks);
    let preemptions = window.rate(|look| look.preemptions);
    let (verdict, explanation, advice) = if preemptions.is_some_and(|rate| rate >= PREEMPTIONS_PER_SECOND) {
        let (explanation, advice) = thrashing(window, preemptions.unwrap_or(0.0));
        (Verdict::Holds, explanation, advice)
    } else if is_blocked(window) {
        let explanation = "Requests wait because there are no KV blocks for them, although more could run.";
        (Verdict::Holds, explanation.to_owned(), more_memory(window))
    } else if usage.is_none() && preemptions.is_none() {
        let explanation = "The server has no figures of its KV blocks.";
        (Verdict::Unknown, explanation.to_owned(), String::new())
    } else {
        let explanation = "There are blocks for everybody, and nobody loses theirs.";
        (Verdict::Fine, explanation.to_owned(), String::new())
    };
    Finding {
        place: Place::KvCache,
        verdict,
        measured: vec![
            Measure::new("usage", usage, Unit::Share).with(Threshold::AtLeast(FULL_USAGE)),
            Measure::new("free blocks", free, Unit::Count),
            Measure::new("preemptions", preemptions, Unit::PerSecond)
                .with(Threshold::AtLeast(PREEMPTIONS_PER_SECOND)),
        ],
        explanation,
        advice,
    }
}

/// Somebody waits for blocks and for nothing else.
fn is_blocked(window: &Window<'_>) -> bool {
    if !window.is_queueing() || is_at_cap(window) == Some(true) {
        return false;
    }
    let is_full = window
        .low(|look| look.kv_usage)
        .is_some_and(|usage| usage >= FULL_USAGE);
    let room = window
        .high(|look| look.free_blocks)
        .zip(window.after.block_size)
        .map(|(blocks, size)| blocks * size);
    // The next one's prompt may be too large for a pool that is far from full.
    let is_too_small = room
        .zip(mean_prompt(window))
        .is_some_and(|(room, prompt)| room < prompt);
    is_full || is_too_small
}

fn thrashing(window: &Window<'_>, rate: f64) -> (String, String) {
    let running = window.high(|look| look.running).unwrap_or(0.0);
    let explanation = format!(
        "The blocks run out: {rate:.1} requests a second lose theirs and are computed again, beside {running:.0} that run. More requests run \
         than the memory holds until their ends."
    );
    let fewer = "or let fewer run at once: --max-num-seqs.";
    (
        explanation,
        format!("{}, {fewer}", more_memory(window).trim_end_matches('.')),
    )
}

fn more_memory(window: &Window<'_>) -> String {
    match window.after.server {
        Server::Kvasir => {
            "Give the KV cache more memory (--kv-cache-memory-bytes), or store it in a smaller type (--kv-cache-dtype)."
        }
        Server::Vllm => {
            "Give the KV cache more memory (--gpu-memory-utilization), or store it in a smaller type (--kv-cache-dtype fp8)."
        }
    }
    .to_owned()
}
