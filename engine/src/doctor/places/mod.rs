//! One function per place: what was measured there, whether it holds the server back, why, and what helps.

mod kv_cache;
mod limits;
mod prefix_cache;
mod scheduling;
mod topology;

pub(super) use kv_cache::kv_cache;
pub(super) use limits::limits;
pub(super) use prefix_cache::prefix_cache;
pub(super) use scheduling::scheduling;
pub(super) use topology::topology;

use super::snapshot::{Snapshot, Window};

/// Tokens of a prompt on average; of those that finished between the looks, else of all.
fn mean_prompt(window: &Window<'_>) -> Option<f64> {
    window.mean(|look| &look.prompt_tokens)
}

/// Whether as many requests run as may, at both looks. None if the limit isn't known.
fn is_at_cap(window: &Window<'_>) -> Option<bool> {
    let cap = window.after.max_num_seqs?;
    Some(window.low(|look: &Snapshot| look.running)? >= cap)
}

/// A step's mean share of the token budget.
fn budget_fill(window: &Window<'_>) -> Option<f64> {
    let budget = window
        .after
        .max_num_batched_tokens
        .filter(|budget| *budget > 0.0)?;
    Some(window.added(|look| &look.step_tokens)?.mean()? / budget)
}
