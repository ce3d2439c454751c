//! The whole state of a scheduler as plain data, so that a recording can begin in the middle of work.
//!
//! Nothing is here twice: what follows from the rest (references, counts, queues, hashes) is computed when an image is put back, and a
//! scheduler that was put back must pass [`Scheduler::check`](crate::Scheduler::check). Counters for metrics are not part of it.

use kvasir_cache_key::CacheRoot;

use crate::block::CachedBlock;
use crate::ids::{BlockId, Micros, SeqId, TenantId, TokenId};
use crate::request::{RequestOptions, StopConditions};

/// A scheduler between two calls; the default is a new one.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Image {
    pub(crate) pool: PoolImage,
    /// By id.
    pub(crate) seqs: Vec<SequenceImage>,
    /// Those of them that run, in the order they started.
    pub(crate) running: Vec<SeqId>,
    /// Oldest first.
    pub(crate) in_flight: Vec<StepImage>,
    /// The ranks at the front and at the back of the queue.
    pub(crate) ranks: (i64, i64),
    /// What each tenant that has work, or isn't level with the others, was served.
    pub(crate) served: Vec<(TenantId, u64)>,
    /// Where a tenant that comes begins.
    pub(crate) served_floor: u64,
    pub(crate) next_seq: u64,
    pub(crate) next_step: u64,
    pub(crate) now: Micros,
}

/// Blocks, without who holds them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct PoolImage {
    /// The free queue, the next block to be handed out first, as runs of consecutive blocks: the first one, and how many.
    pub(crate) free: Vec<(BlockId, u32)>,
    /// What can be found; of equal contents the one that is found first comes first.
    pub(crate) content: Vec<(CachedBlock, BlockId)>,
    /// Long tables on their way back, the next one first.
    pub(crate) leaving: Vec<Vec<BlockId>>,
}

/// A sequence that hasn't ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SequenceImage {
    pub(crate) id: SeqId,
    /// Prompt, then output.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) prompt_len: u32,
    /// One for each KV group.
    pub(crate) tables: Vec<TableImage>,
    pub(crate) num_written: u32,
    pub(crate) num_preemptions: u32,
    pub(crate) reads_prefix_cache: bool,
    pub(crate) stop: StopConditions,
    pub(crate) root: CacheRoot,
    pub(crate) arrival: Micros,
    pub(crate) priority: i64,
    pub(crate) options: RequestOptions,
    /// Its place in a queue by arrival.
    pub(crate) rank: i64,
    pub(crate) blocked_since: Option<Micros>,
    pub(crate) leader: Option<SeqId>,
}

/// A block table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct TableImage {
    /// Leading entries that are the null block.
    pub(crate) num_dropped: u32,
    pub(crate) held: Vec<BlockId>,
}

/// A step in flight. The newest one is the last before `next_step`, and their numbers follow each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct StepImage {
    pub(crate) work: Vec<WorkImage>,
    pub(crate) parked: Vec<BlockId>,
    /// Blocks from which sequences of the step copy.
    pub(crate) copies: Vec<(SeqId, BlockId)>,
}

/// A step's part for a sequence, which may have ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct WorkImage {
    pub(crate) seq: SeqId,
    pub(crate) num_preemptions: u32,
    pub(crate) first: u32,
    pub(crate) num_tokens: u32,
    pub(crate) samples: bool,
    /// The sequence that it copies from.
    pub(crate) copies_from: Option<SeqId>,
}
