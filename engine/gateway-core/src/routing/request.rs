//! What goes into a choice and what comes out.

use super::address::{EngineAddress, EngineId, Revision};
use super::circuit::Circuit;
use super::engine::Capacity;
use super::ticket::Ticket;

/// What a choice is about.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// The revision, whose tokenizer and hashes were used.
    pub revision: &'a Revision,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Sequences to make of it (the API's `n`); 0 counts as 1.
    pub num_sequences: u32,
    /// The first 8 bytes, big-endian, of the hashes of the prompt's full blocks, in order.
    pub hashes: &'a [u64],
    /// A hash of what the client or the route names its session by.
    pub session: Option<u64>,
    /// Engines that have failed this request.
    pub excluded: &'a [EngineId],
    /// A random number.
    pub random: u64,
}

/// A chosen engine.
#[derive(Debug)]
pub struct Choice {
    /// The engine.
    pub engine: EngineId,
    /// Where it is.
    pub address: EngineAddress,
    /// Blocks of the prompt that it's thought to have cached.
    pub overlap_blocks: u32,
    /// Give it back when the request has ended.
    pub ticket: Ticket,
}

/// Why no engine can be chosen. In the order in which the reasons outrank each other.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, thiserror::Error)]
pub enum NoEngine {
    /// There is none of the revision.
    #[error("no engine serves this revision")]
    NoneKnown,
    /// All of them are draining.
    #[error("all engines of this revision are draining")]
    AllDraining,
    /// Those that aren't draining are left alone for a while.
    #[error("all engines of this revision have failed lately")]
    AllEjected,
    /// Those that are left have failed this very request.
    #[error("every engine of this revision has failed this request")]
    AllTried,
}

/// Why an engine can't join.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JoinError {
    /// A later start of the place is known.
    #[error("{address} is older than epoch {known}, which has joined")]
    OldEpoch {
        /// What wanted to join.
        address: EngineAddress,
        /// The known epoch.
        known: u64,
    },
    /// The engine has no blocks or its blocks have no tokens.
    #[error("{address} reports {} blocks of {} tokens: both must be at least 1", capacity.num_blocks, capacity.block_size)]
    NoCapacity {
        /// What wanted to join.
        address: EngineAddress,
        /// What it reported.
        capacity: Capacity,
    },
}

/// What is known of an engine, to be shown.
#[derive(Clone, Debug)]
pub struct EngineView {
    /// Which one.
    pub id: EngineId,
    /// Where it is.
    pub address: EngineAddress,
    /// What it serves.
    pub revision: Revision,
    /// Whether it gets no new requests because it's about to end.
    pub is_draining: bool,
    /// Its circuit.
    pub circuit: Circuit,
    /// This gateway's requests there.
    pub num_own_requests: u32,
    /// Sequences of all requests there, as far as is known.
    pub num_sequences: u32,
    /// Blocks that are filed for it.
    pub num_indexed_blocks: u32,
}
