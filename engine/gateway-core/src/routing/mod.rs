//! Decides which engine answers a request.
//!
//! Inputs: which engines there are, what they say of their load and their cached blocks, how requests fared there, and the hashes of a
//! prompt. Output: a [`Choice`], or why there is none ([`NoEngine`]).
//!
//! Invariants, each held by a test in `tests`:
//! 1. A draining engine, one whose circuit doesn't admit, and one that has failed this request are never chosen.
//! 2. Counters rise at the choice, not at the answer: a burst spreads over engines even if no report comes in between.
//! 3. What an engine says counts only from its newest epoch.
//! 4. Equal histories give equal choices; the only chance is a number that the caller passes in.
//!
//! Not decided here: whether the request may run at all, and what to do while no engine can be used (see [`waiting`](crate::waiting)).

mod address;
mod choose;
mod circuit;
mod engine;
mod events;
mod feed;
pub mod index;
mod layout;
mod outlier;
mod prefix;
mod request;
mod retry;
mod revisions;
mod router;
mod ticket;

pub use address::{EngineAddress, EngineId, Revision};
pub use choose::RoutingPolicy;
pub use circuit::{Circuit, CircuitConfig, OpenReason};
pub use engine::{Capacity, LoadReport};
pub use feed::{Followed, KvBatch};
pub use layout::{CacheLayout, KvGroup, filed};
pub use prefix::tokens_within;
pub use request::{Choice, EngineView, JoinError, NoEngine, RouteRequest};
pub use retry::{Attempt, Retry, RetryBudget, RetryConfig};
pub use revisions::Revisions;
pub use router::{Router, RouterConfig};
pub use ticket::{EngineFailure, Outcome, Ticket};

/// Shards of the index that are swept with each batch of events and each tick: a whole round in 128 batches.
const SHARDS_PER_BATCH: usize = 8;
const SHARDS_PER_TICK: usize = 32;

#[cfg(test)]
mod tests;
