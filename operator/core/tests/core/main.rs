//! Tests of the operator's decisions, in one binary: stories and properties against a cluster in memory.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "what fails in a helper fails the test"
)]

mod capacity;
mod certificates;
mod enforcement;
mod explained;
mod fake;
mod fields;
mod foreign;
mod laws;
mod manifests;
mod policies;
mod reasons;
mod recovery;
mod refused;
mod rendered;
mod rollouts;
mod scaling;
mod shared;
mod story;
