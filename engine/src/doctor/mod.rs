//! What holds a server back, from two looks at its figures: `kvasir doctor`.
//!
//! Everything but [`scrape`] is pure: text to [`Samples`](exposition::Samples), samples to a [`Snapshot`], two snapshots to a [`Diagnosis`], a
//! diagnosis to text. The places are looked at in a fixed order, since each explains what those behind it show: blocks that run out cause preemptions,
//! whose recomputation fills the budget; a full budget looks like a slow scheduler from outside; and so on.
//! A server that only has vLLM's figures is diagnosed as far as they go.

mod diagnosis;
mod exposition;
mod finding;
mod places;
mod render;
pub(crate) mod scrape;
mod snapshot;
#[cfg(test)]
mod tests;

pub(crate) use diagnosis::diagnose;
pub(crate) use exposition::{Partial, parse};
pub(crate) use finding::{Diagnosis, State};
pub(crate) use render::render;
pub(crate) use snapshot::{Server, Snapshot, Window};
