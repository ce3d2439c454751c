//! What the prefix cache holds, told to whoever routes requests to it. No I/O, no clock.
//!
//! ```text
//! worker --BlockEvent--> Pending --publish, at most 10 times a second--> KvLog <--next-- Cursor, one per reader
//!                        net changes                                     contents, ring of batches
//! ```
//!
//! Laws, held by `tests.rs` against a real scheduler:
//!
//! 1. A reader who applies a snapshot's pieces and the batches, as sets and in the order they come, has exactly the contents that can
//!    be found (by their first 8 bytes) at the moment of the last batch, once the last piece has come.
//! 2. Batches have consecutive numbers. A reader that names the last one it has gets those that follow, or starts over.
//! 3. Readers cost a cursor each, however slow they are: nothing is queued for them. One that falls behind the ring starts over.
//! 4. Memory is bounded by the number of blocks and the size of the ring: what is stored and removed between two batches cancels.

mod gather;
mod log;
mod pending;
#[cfg(test)]
mod tests;

pub(crate) use gather::Gather;
pub(crate) use log::{Cursor, FeedLimits, KvLog};
pub(crate) use pending::Pending;
