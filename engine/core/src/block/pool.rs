//! The block pool: the only place that gives blocks out and takes them back.
//!
//! A block is in one of three states: held (by one or more handles), free with content that can still be found, or free without.
//! Allocation takes the head of the free queue and forgets the block's content before its storage is overwritten. A block without
//! findable content goes back to the head, to be used first; one with content goes to the tail, so that what was used least recently is
//! lost first (rule B8). The table of a very long sequence is given back in slices, so that no step is long; its blocks count as free at
//! once, and an allocation that needs them takes them. Sources: the seed document's block pool part, vLLM's `block_pool.py`.

use std::collections::VecDeque;

use kvasir_cache_key::BlockHash;

use super::free_list::FreeList;
use super::log::{BlockLog, CachedBlock, Content};
use super::prefix::PrefixIndex;
use crate::ids::{BlockId, GroupId};
use crate::invariant::Violation;

/// What can be found, and where.
pub(crate) type Contents = Vec<(BlockHash, BlockId)>;

/// Giving back this many blocks takes well below a millisecond.
const SLICE: usize = 4096;

/// Counts references and keeps the free queue and the index of content in step with them.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct BlockPool {
    /// References per block, those of `leaving` included.
    num_refs: Vec<u32>,
    /// Long tables on their way back, the next one first, each from its end.
    leaving: VecDeque<Vec<BlockRef>>,
    /// How many of a block's references are in `leaving`.
    num_leaving: Vec<u32>,
    /// Blocks all of whose references are in `leaving`, one or more.
    num_left: u32,
    /// Blocks of a table that are given back at once.
    slice: usize,
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
            num_refs: vec![0; num_blocks as usize],
            leaving: VecDeque::new(),
            num_leaving: vec![0; num_blocks as usize],
            num_left: 0,
            slice,
            free: FreeList::full(num_blocks),
            prefix: PrefixIndex::new(num_blocks),
            log: BlockLog::new(),
        }
    }

    /// Blocks that nobody holds.
    pub(crate) fn num_free(&self) -> u32 {
        self.free.len() + self.num_left
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
            if let Some(hash) = self.prefix.remove(id) {
                self.log.removed(CachedBlock {
                    group: GroupId(0),
                    hash,
                });
            }
            self.num_refs[id.0 as usize] = 1;
            table.push(BlockRef(id));
        }
        true
    }

    /// Looks for content without touching the block: an attempt that fails later leaves the order of eviction alone.
    pub(crate) fn find(&self, hash: &BlockHash) -> Option<Cached> {
        let id = self.prefix.find(hash)?;
        Some(Cached {
            id,
            is_free: self.is_as_good_as_free(id),
        })
    }

    /// Takes a reference to a block that [`BlockPool::find`] gave, with nothing allocated since.
    pub(crate) fn share(&mut self, cached: Cached) -> BlockRef {
        debug_assert!(
            self.hash_of(cached.id).is_some(),
            "block {} lost its content",
            cached.id.0
        );
        let at = cached.id.0 as usize;
        if self.num_refs[at] == 0 {
            self.free.remove(cached.id);
        } else if self.is_as_good_as_free(cached.id) {
            self.num_left -= 1;
        }
        self.num_refs[at] += 1;
        BlockRef(cached.id)
    }

    /// Whether nobody holds a block but tables that are leaving.
    fn is_as_good_as_free(&self, id: BlockId) -> bool {
        self.num_refs[id.0 as usize] == self.num_leaving[id.0 as usize]
    }

    /// Another reference to a held block whose content is complete, whether it can be found or not.
    pub(crate) fn share_held(&mut self, block: &BlockRef) -> BlockRef {
        self.num_refs[block.0.0 as usize] += 1;
        BlockRef(block.0)
    }

    /// Makes a held block findable. Its content must be complete and is never written again while it is held.
    /// A block that can be found already keeps its hash.
    pub(crate) fn publish(&mut self, block: &BlockRef, content: &Content<'_>) {
        if self.hash_of(block.0).is_none() && self.prefix.insert(content.hash, block.0) {
            self.log.stored(content);
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
            self.num_left += u32::from(self.is_as_good_as_free(block.0));
        } else if self.hash_of(block.0).is_some() {
            self.free.push_back(block.0);
        } else {
            self.free.push_front(block.0);
        }
    }

    /// Gives a whole table back, last block first: the end of a sequence is less likely to be asked for again than its start.
    pub(crate) fn release_all(&mut self, table: &mut Vec<BlockRef>) {
        if table.len() > self.slice {
            self.release_later(std::mem::take(table));
        }
        while let Some(block) = table.pop() {
            self.release(block);
        }
    }

    fn release_later(&mut self, table: Vec<BlockRef>) {
        for block in &table {
            self.num_leaving[block.0.0 as usize] += 1;
            self.num_left += u32::from(self.is_as_good_as_free(block.0));
        }
        self.leaving.push_back(table);
    }

    /// Gives back the next slice of what is leaving. To be called once a step.
    pub(crate) fn settle_slice(&mut self) {
        self.settle(self.slice);
    }

    fn settle(&mut self, num_blocks: usize) {
        for _ in 0..num_blocks {
            let Some(table) = self.leaving.front_mut() else {
                return;
            };
            let Some(block) = table.pop() else {
                self.leaving.pop_front();
                continue;
            };
            self.num_left -= u32::from(self.is_as_good_as_free(block.0));
            self.num_leaving[block.0.0 as usize] -= 1;
            self.release(block);
        }
    }

    /// Forgets all content, if nobody holds a block (rule S20). Says whether it did.
    pub(crate) fn reset(&mut self) -> bool {
        if self.num_free() < self.num_usable() {
            return false;
        }
        while !self.leaving.is_empty() {
            self.settle(1);
        }
        self.prefix.clear();
        self.log.cleared();
        true
    }

    /// What happened to content since it was asked last, see [`BlockLog`].
    pub(crate) fn log(&mut self) -> &mut BlockLog {
        &mut self.log
    }

    /// The free queue and what can be found, if nobody holds a block.
    pub(crate) fn image(&self) -> Option<(Vec<BlockId>, Contents)> {
        let is_whole = self.free.len() == self.num_usable();
        let content = || self.prefix.iter().map(|(hash, id)| (*hash, id)).collect();
        is_whole.then(|| (self.free.iter().collect(), content()))
    }

    /// Puts a new pool into a state. An image that says nothing leaves it new; false if it isn't one of this pool.
    pub(crate) fn restore(&mut self, free: &[BlockId], content: &[(BlockHash, BlockId)]) -> bool {
        if free.is_empty() && content.is_empty() {
            return true;
        }
        let num_usable = self.num_usable();
        let is_ours = |id: BlockId| id.0 > 0 && id.0 <= num_usable;
        if free.len() != num_usable as usize || !free.iter().all(|&id| is_ours(id)) {
            return false;
        }
        for &id in free {
            self.free.move_to_back(id);
        }
        for &(hash, id) in content {
            if !is_ours(id) || self.hash_of(id).is_some() {
                return false;
            }
            self.prefix.insert(hash, id);
        }
        true
    }

    /// All content that can be found, each once.
    pub(crate) fn cached(&self) -> impl ExactSizeIterator<Item = CachedBlock> {
        let group = GroupId(0);
        self.prefix
            .contents()
            .map(move |hash| CachedBlock { group, hash })
    }

    /// The hash under which a block can be found, for checks.
    pub(crate) fn hash_of(&self, id: BlockId) -> Option<BlockHash> {
        self.prefix.hash_of(id)
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

    /// Whether the books agree with the handles that exist.
    pub(crate) fn check(&self, handles: impl Iterator<Item = BlockId>) -> Result<(), Violation> {
        let mut counted = vec![0_u32; self.num_refs.len()];
        let leaving = self.leaving.iter().flatten().map(BlockRef::id);
        for id in handles.chain(leaving) {
            counted[id.0 as usize] += 1;
        }
        for (id, &found) in self.num_refs.iter().enumerate() {
            let expected = counted[id];
            Violation::ensure(expected == found, || {
                format!("block {id} counts {found} references, {expected} exist")
            })?;
        }
        self.check_leaving()?;
        self.check_free_list()?;
        self.check_prefix_index()
    }

    fn check_leaving(&self) -> Result<(), Violation> {
        let mut counted = vec![0_u32; self.num_refs.len()];
        for block in self.leaving.iter().flatten() {
            counted[block.0.0 as usize] += 1;
        }
        let is_left = |&id: &usize| counted[id] > 0 && counted[id] == self.num_refs[id];
        let left = (0..counted.len()).filter(is_left).count();
        let (expected, counts_left) = (self.num_left, counted == self.num_leaving);
        Violation::ensure(left == expected as usize && counts_left, || {
            format!("{left} blocks are held by leaving tables alone, {expected} are counted")
        })
    }

    fn check_free_list(&self) -> Result<(), Violation> {
        let mut is_free = vec![false; self.num_refs.len()];
        for BlockId(id) in self.free.iter() {
            let was_free = std::mem::replace(&mut is_free[id as usize], true);
            Violation::ensure(!was_free, || format!("block {id} is in the free queue twice"))?;
        }
        Violation::ensure(!is_free[0], || "the null block is in the free queue".to_owned())?;
        for (id, &refs) in self.num_refs.iter().enumerate().skip(1) {
            let free = is_free[id];
            Violation::ensure(free == (refs == 0), || {
                format!("block {id} with {refs} references: free is {free}")
            })?;
        }
        let (listed, counted) = (self.free.iter().count(), self.free.len());
        Violation::ensure(listed == counted as usize, || {
            format!("the free queue holds {listed}, counts {counted}")
        })
    }

    fn check_prefix_index(&self) -> Result<(), Violation> {
        let mut is_listed = vec![false; self.num_refs.len()];
        for (hash, BlockId(id)) in self.prefix.iter() {
            let was_listed = std::mem::replace(&mut is_listed[id as usize], true);
            let matches = self.hash_of(BlockId(id)) == Some(*hash) && self.prefix.find(hash).is_some();
            Violation::ensure(matches && !was_listed, || {
                format!("block {id} is found under a hash that isn't its own")
            })?;
        }
        for (id, &listed) in is_listed.iter().enumerate() {
            let hashed = self.hash_of(BlockId(id as u32)).is_some();
            Violation::ensure(listed == hashed, || {
                format!("block {id}: has a hash is {hashed}, can be found is {listed}")
            })?;
        }
        Ok(())
    }
}
