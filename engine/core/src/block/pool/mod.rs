//! The block pool: the only place that gives blocks out and takes them back.
//!
//! A block is in one of three states: held (by one or more handles), free with content that can still be found, or free without.
//! Allocation takes the head of the free queue and forgets the block's content before its storage is overwritten. A block without
//! findable content goes back to the head, to be used first; one with content goes to the tail, so that what was used least recently is
//! lost first (rule B8). The table of a very long sequence is given back in slices, so that no step is long; its blocks count as free at
//! once, and an allocation that needs them takes them. Sources: the seed document's block pool part, vLLM's `block_pool.py`.
//!
//! All KV groups draw from one pool: a block holds `block_size` tokens of one group's layers, and all groups need the same number of bytes for
//! that. What a block holds is found under its group and its hash, so that no group reads another one's KV.

mod check;
mod image;
mod leaving;

use super::free_list::FreeList;
use super::log::{BlockLog, CachedBlock, Content};
use super::prefix::PrefixIndex;
use crate::ids::BlockId;
use leaving::{Leaving, SLICE};

/// Counts references and keeps the free queue and the index of content in step with them.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct BlockPool {
    /// References per block, those of `leaving` included.
    num_refs: Vec<u32>,
    leaving: Leaving,
    free: FreeList,
    prefix: PrefixIndex,
    log: BlockLog,
}

/// One reference to a block. Neither `Copy` nor `Clone` (but for whole states in exhaustive search): sharing goes through [`BlockPool::share`], and [`BlockPool::release`] consumes it,
/// so that a double free is a type error. A handle that is dropped is a leak, which [`BlockPool::check`] finds.
#[derive(Debug, Eq, PartialEq)]
#[cfg_attr(feature = "model", derive(Clone))]
#[must_use = "a dropped handle leaks its block; give it back with `release`"]
pub(crate) struct BlockRef(BlockId);

/// A block whose content was found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Cached {
    id: BlockId,
    /// Nobody holds it: taking it uses up one of the free blocks.
    pub(crate) is_free: bool,
}

impl BlockRef {
    /// Which block, for plans: it can be read, but not released.
    pub(crate) fn id(&self) -> BlockId {
        self.0
    }
}

impl BlockPool {
    /// All blocks free. `num_blocks` counts the null block and is at least 1.
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self::with_slice(num_blocks, SLICE)
    }

    pub(super) fn with_slice(num_blocks: u32, slice: usize) -> Self {
        Self {
            num_refs: touched_zeros(num_blocks),
            leaving: Leaving::new(num_blocks, slice),
            free: FreeList::full(num_blocks),
            prefix: PrefixIndex::new(num_blocks),
            log: BlockLog::new(),
        }
    }

    /// Blocks that nobody holds.
    pub(crate) fn num_free(&self) -> u32 {
        self.free.len() + self.leaving.num_blocks
    }

    /// Blocks that can be handed out: all but the null block.
    pub(crate) fn num_usable(&self) -> u32 {
        self.num_refs.len() as u32 - 1
    }

    /// Blocks whose content can be found.
    pub(crate) fn num_cached(&self) -> u32 {
        self.prefix.len()
    }

    /// Appends `count` blocks to `table`, or changes nothing and says false.
    #[must_use]
    pub(crate) fn allocate(&mut self, count: u32, table: &mut Vec<BlockRef>) -> bool {
        if count > self.num_free() {
            return false;
        }
        while count > self.free.len() {
            self.settle(1);
        }
        for _ in 0..count {
            let id = self
                .free
                .pop_front()
                .expect("as many blocks are free as were counted above");
            if let Some(content) = self.prefix.remove(id) {
                self.log.removed(content);
            }
            self.num_refs[id.0 as usize] = 1;
            table.push(BlockRef(id));
        }
        true
    }

    /// Looks for content without touching the block: an attempt that fails later leaves the order of eviction alone.
    pub(crate) fn find(&self, content: &CachedBlock) -> Option<Cached> {
        let id = self.prefix.find(content)?;
        Some(Cached {
            id,
            is_free: self.is_as_good_as_free(id),
        })
    }

    /// Takes a reference to a block that [`BlockPool::find`] gave, with nothing allocated since.
    pub(crate) fn share(&mut self, cached: Cached) -> BlockRef {
        debug_assert!(
            self.content_of(cached.id).is_some(),
            "block {} lost its content",
            cached.id.0
        );
        let at = cached.id.0 as usize;
        if self.num_refs[at] == 0 {
            self.free.remove(cached.id);
        } else if self.is_as_good_as_free(cached.id) {
            self.leaving.num_blocks -= 1;
        }
        self.num_refs[at] += 1;
        BlockRef(cached.id)
    }

    /// Another reference to a held block whose content is complete, whether it can be found or not.
    pub(crate) fn share_held(&mut self, block: &BlockRef) -> BlockRef {
        self.num_refs[block.0.0 as usize] += 1;
        BlockRef(block.0)
    }

    /// Makes a held block findable. Its content must be complete and is never written again while it is held.
    /// A block that can be found already keeps its content.
    /// `details` is only asked for if somebody wants to know.
    pub(crate) fn publish<'a>(
        &mut self,
        block: &BlockRef,
        content: CachedBlock,
        details: impl FnOnce() -> Content<'a>,
    ) {
        if self.content_of(block.0).is_none() && self.prefix.insert(content, block.0) && self.log.is_on() {
            self.log.stored(&details());
        }
    }

    /// Gives one reference back.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "consuming the handle is what makes a double free a type error"
    )]
    pub(crate) fn release(&mut self, block: BlockRef) {
        let at = block.0.0 as usize;
        self.num_refs[at] -= 1;
        if self.num_refs[at] > 0 {
            self.leaving.num_blocks += u32::from(self.is_as_good_as_free(block.0));
        } else if self.content_of(block.0).is_some() {
            self.free.push_back(block.0);
        } else {
            self.free.push_front(block.0);
        }
    }

    /// Forgets all content, if nobody holds a block (rule S20). Says whether it did.
    pub(crate) fn reset(&mut self) -> bool {
        if self.num_free() < self.num_usable() {
            return false;
        }
        self.settle_all();
        self.prefix.clear();
        self.log.cleared();
        true
    }

    /// What happened to content since it was asked last, see [`BlockLog`].
    pub(crate) fn log(&mut self) -> &mut BlockLog {
        &mut self.log
    }

    /// All content that can be found, each once.
    pub(crate) fn cached(&self) -> impl ExactSizeIterator<Item = CachedBlock> {
        self.prefix.contents()
    }

    /// Entry `index` of [`BlockPool::cached`].
    pub(crate) fn cached_at(&self, index: usize) -> Option<CachedBlock> {
        self.prefix.content(index)
    }

    /// What a block can be found under, for checks.
    pub(crate) fn content_of(&self, id: BlockId) -> Option<CachedBlock> {
        self.prefix.content_of(id)
    }

    /// How many handles a block has, for checks.
    pub(crate) fn num_refs(&self, id: BlockId) -> u32 {
        self.num_refs[id.0 as usize]
    }

    /// Everything that decides what the pool does next.
    #[cfg(feature = "model")]
    pub(crate) fn hash_into(&self, hasher: &mut impl std::hash::Hasher) {
        use std::hash::Hash as _;
        self.num_refs.hash(hasher);
        for id in self.free.iter() {
            id.hash(hasher);
        }
        for id in (0..self.num_refs.len() as u32).map(BlockId) {
            self.prefix.state_of(id).hash(hasher);
        }
    }

    /// The free queue, the next block to be handed out first.
    #[cfg(test)]
    pub(crate) fn free_ids(&self) -> impl Iterator<Item = BlockId> {
        self.free.iter()
    }
}

/// A zero for each block, in memory that is there before the first step: of zeros the system gives each page only when it is first written, which
/// made the step in which a long sequence ends twice as long.
fn touched_zeros(num_blocks: u32) -> Vec<u32> {
    let mut counts = vec![u32::MAX; num_blocks as usize];
    // Otherwise the compiler sees that zeros are all that is left, and asks for them.
    std::hint::black_box(&mut counts).fill(0);
    counts
}
