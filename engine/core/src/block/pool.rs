//! The block pool: the only place that gives blocks out and takes them back.
//!
//! A block is in one of three states: held (by one or more handles), free with content that can still be found, or free without.
//! Allocation takes the head of the free queue and forgets the block's content before its storage is overwritten. A block without
//! findable content goes back to the head, to be used first; one with content goes to the tail, so that what was used least recently is
//! lost first (rule B8). Sources: the seed document's block pool part, vLLM's `block_pool.py`.

use kvasir_cache_key::BlockHash;

use super::free_list::FreeList;
use super::prefix::PrefixIndex;
use crate::ids::BlockId;
use crate::invariant::Violation;

/// Counts references and keeps the free queue and the index of content in step with them.
#[derive(Debug)]
pub(crate) struct BlockPool {
    slots: Vec<Slot>,
    free: FreeList,
    prefix: PrefixIndex,
}

/// One reference to a block. Neither `Copy` nor `Clone`: sharing goes through [`BlockPool::share`], and [`BlockPool::release`] consumes it,
/// so that a double free is a type error. A handle that is dropped is a leak, which [`BlockPool::check`] finds.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a dropped handle leaks its block; give it back with `release`"]
pub(crate) struct BlockRef(BlockId);

/// A block whose content was found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Cached {
    id: BlockId,
    /// Nobody holds it: taking it uses up one of the free blocks.
    pub(crate) is_free: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    num_refs: u32,
    hash: Option<BlockHash>,
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
        Self {
            slots: vec![Slot::default(); num_blocks as usize],
            free: FreeList::full(num_blocks),
            prefix: PrefixIndex::new(num_blocks),
        }
    }

    /// Blocks that nobody holds.
    pub(crate) fn num_free(&self) -> u32 {
        self.free.len()
    }

    /// Blocks that can be handed out: all but the null block.
    pub(crate) fn num_usable(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    /// Blocks whose content can be found.
    pub(crate) fn num_cached(&self) -> u32 {
        self.prefix.len()
    }

    /// Appends `count` blocks to `table`, or changes nothing and says false.
    #[must_use]
    pub(crate) fn allocate(&mut self, count: u32, table: &mut Vec<BlockRef>) -> bool {
        if count > self.free.len() {
            return false;
        }
        for _ in 0..count {
            let id = self
                .free
                .pop_front()
                .expect("as many blocks are free as were counted above");
            self.forget(id);
            self.slots[id.0 as usize].num_refs = 1;
            table.push(BlockRef(id));
        }
        true
    }

    /// Looks for content without touching the block: an attempt that fails later leaves the order of eviction alone.
    pub(crate) fn find(&self, hash: &BlockHash) -> Option<Cached> {
        let id = self.prefix.find(hash)?;
        Some(Cached {
            id,
            is_free: self.slots[id.0 as usize].num_refs == 0,
        })
    }

    /// Takes a reference to a block that [`BlockPool::find`] gave, with nothing allocated since.
    pub(crate) fn share(&mut self, cached: Cached) -> BlockRef {
        let slot = &mut self.slots[cached.id.0 as usize];
        debug_assert!(slot.hash.is_some(), "block {} lost its content", cached.id.0);
        if slot.num_refs == 0 {
            self.free.remove(cached.id);
        }
        slot.num_refs += 1;
        BlockRef(cached.id)
    }

    /// Makes a held block findable. Its content must be complete and is never written again while it is held.
    /// A block that can be found already keeps its hash.
    pub(crate) fn publish(&mut self, block: &BlockRef, hash: BlockHash) {
        let slot = &mut self.slots[block.0.0 as usize];
        if slot.hash.is_none() {
            slot.hash = Some(hash);
            self.prefix.insert(hash, block.0);
        }
    }

    /// Gives one reference back.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "consuming the handle is what makes a double free a type error"
    )]
    pub(crate) fn release(&mut self, block: BlockRef) {
        let slot = &mut self.slots[block.0.0 as usize];
        slot.num_refs -= 1;
        if slot.num_refs > 0 {
            return;
        }
        if slot.hash.is_some() {
            self.free.push_back(block.0);
        } else {
            self.free.push_front(block.0);
        }
    }

    /// Gives a whole table back, last block first: the end of a sequence is less likely to be asked for again than its start.
    pub(crate) fn release_all(&mut self, table: &mut Vec<BlockRef>) {
        while let Some(block) = table.pop() {
            self.release(block);
        }
    }

    /// Forgets all content, if nobody holds a block (rule S20). Says whether it did.
    pub(crate) fn reset(&mut self) -> bool {
        if self.num_free() < self.num_usable() {
            return false;
        }
        self.prefix.clear();
        for slot in &mut self.slots {
            slot.hash = None;
        }
        true
    }

    fn forget(&mut self, id: BlockId) {
        if let Some(hash) = self.slots[id.0 as usize].hash.take() {
            self.prefix.remove(&hash, id);
        }
    }

    /// The hash under which a block can be found, for checks.
    pub(crate) fn hash_of(&self, id: BlockId) -> Option<BlockHash> {
        self.slots[id.0 as usize].hash
    }

    /// How many handles a block has, for checks.
    pub(crate) fn num_refs(&self, id: BlockId) -> u32 {
        self.slots[id.0 as usize].num_refs
    }

    /// The free queue, the next block to be handed out first.
    #[cfg(test)]
    pub(crate) fn free_ids(&self) -> impl Iterator<Item = BlockId> {
        self.free.iter()
    }

    /// Whether the books agree with the handles that exist.
    pub(crate) fn check(&self, handles: impl Iterator<Item = BlockId>) -> Result<(), Violation> {
        let mut counted = vec![0_u32; self.slots.len()];
        for id in handles {
            counted[id.0 as usize] += 1;
        }
        for (id, slot) in self.slots.iter().enumerate() {
            let (expected, found) = (counted[id], slot.num_refs);
            Violation::ensure(expected == found, || {
                format!("block {id} counts {found} references, {expected} exist")
            })?;
        }
        self.check_free_list()?;
        self.check_prefix_index()
    }

    fn check_free_list(&self) -> Result<(), Violation> {
        let mut is_free = vec![false; self.slots.len()];
        for BlockId(id) in self.free.iter() {
            let was_free = std::mem::replace(&mut is_free[id as usize], true);
            Violation::ensure(!was_free, || format!("block {id} is in the free queue twice"))?;
        }
        Violation::ensure(!is_free[0], || "the null block is in the free queue".to_owned())?;
        for (id, slot) in self.slots.iter().enumerate().skip(1) {
            let (free, refs) = (is_free[id], slot.num_refs);
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
        let mut is_listed = vec![false; self.slots.len()];
        for (hash, BlockId(id)) in self.prefix.iter() {
            let was_listed = std::mem::replace(&mut is_listed[id as usize], true);
            let matches = self.slots[id as usize].hash == Some(*hash);
            Violation::ensure(matches && !was_listed, || {
                format!("block {id} is found under a hash that isn't its own")
            })?;
        }
        for (id, slot) in self.slots.iter().enumerate() {
            let (listed, hashed) = (is_listed[id], slot.hash.is_some());
            Violation::ensure(listed == hashed, || {
                format!("block {id}: has a hash is {hashed}, can be found is {listed}")
            })?;
        }
        Ok(())
    }
}
