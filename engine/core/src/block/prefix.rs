//! Finds blocks by content, in constant time and without allocating.
//!
//! A chained hash table whose links are arrays over the blocks. Keys are SHA-256 digests, so their own bits spread them. Several blocks
//! may hold the same content (rule B7): only the one that has held it for longest is in a bucket's chain, its twins
//! hang behind it, in the order in which they came. A
//! popular content therefore makes no chain longer.

use kvasir_cache_key::BlockHash;

use super::log::CachedBlock;
use crate::ids::{BlockId, GroupId};

/// Ends a chain. Not zero: a table of zeros would be given by the system page by page as steps first touch it, which makes them a
/// hundred times longer; this one is there before the first step.
const NONE: u32 = u32::MAX;

/// From the hash of a block's content to the blocks that hold it.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(super) struct PrefixIndex {
    /// First block of each bucket's chain; a power of two of them.
    buckets: Vec<u32>,
    /// Per block.
    entries: Vec<Entry>,
    num_entries: u32,
    /// The first block of each content, in no order that means anything, so that all content can be told in time for what is there.
    firsts: Vec<u32>,
}

/// One cache line: whoever looks at one of the fields needs most of them.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Entry {
    content: CachedBlock,
    is_listed: bool,
    /// Whether it has held its content for longest and is in the bucket's chain.
    is_first: bool,
    /// Where it is in `firsts`, if it is a first one.
    place: u32,
    /// The next block of the bucket with another content.
    chain_next: u32,
    /// The twin before it; for the first one, the last twin.
    twin_prev: u32,
    /// The twin after it.
    twin_next: u32,
}

const UNLISTED: Entry = Entry {
    content: CachedBlock {
        group: GroupId(0),
        hash: BlockHash([0; 32]),
    },
    is_listed: false,
    is_first: false,
    place: NONE,
    chain_next: NONE,
    twin_prev: NONE,
    twin_next: NONE,
};

impl PrefixIndex {
    pub(super) fn new(num_blocks: u32) -> Self {
        Self {
            buckets: vec![NONE; num_blocks.next_power_of_two() as usize],
            entries: vec![UNLISTED; num_blocks as usize],
            num_entries: 0,
            firsts: Vec::with_capacity(num_blocks as usize),
        }
    }

    /// Blocks that can be found.
    pub(super) fn len(&self) -> u32 {
        self.num_entries
    }

    /// The block that has held this content for longest.
    pub(super) fn find(&self, content: &CachedBlock) -> Option<BlockId> {
        let mut at = self.buckets[self.bucket(content)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.content == *content {
                return Some(BlockId(at));
            }
            at = entry.chain_next;
        }
        None
    }

    /// The content under which a block can be found.
    pub(super) fn content_of(&self, id: BlockId) -> Option<CachedBlock> {
        let entry = &self.entries[id.0 as usize];
        entry.is_listed.then_some(entry.content)
    }

    /// A block's content and the block with the same content that is found before it.
    #[cfg(feature = "model")]
    pub(super) fn state_of(&self, id: BlockId) -> Option<(CachedBlock, u32)> {
        let entry = &self.entries[id.0 as usize];
        entry.is_listed.then_some((entry.content, entry.twin_prev))
    }

    /// Makes a block findable, and says whether nobody held this content before. The block must not be in the index.
    pub(super) fn insert(&mut self, content: CachedBlock, id: BlockId) -> bool {
        let mut entry = Entry {
            content,
            is_listed: true,
            ..UNLISTED
        };
        self.num_entries += 1;
        let first = self.find(&content);
        if let Some(first) = first {
            let last = std::mem::replace(&mut self.entries[first.0 as usize].twin_prev, id.0);
            entry.twin_prev = if last == NONE { first.0 } else { last };
            self.entries[entry.twin_prev as usize].twin_next = id.0;
        } else {
            let bucket = self.bucket(&content);
            entry.is_first = true;
            entry.place = self.firsts.len() as u32;
            self.firsts.push(id.0);
            entry.chain_next = std::mem::replace(&mut self.buckets[bucket], id.0);
        }
        self.entries[id.0 as usize] = entry;
        first.is_none()
    }

    /// Takes a block out, if it is in the index. Gives its content if no other block holds it.
    pub(super) fn remove(&mut self, id: BlockId) -> Option<CachedBlock> {
        if !self.entries[id.0 as usize].is_listed {
            return None;
        }
        let entry = std::mem::replace(&mut self.entries[id.0 as usize], UNLISTED);
        self.num_entries -= 1;
        if !entry.is_first {
            self.unlink_twin(&entry);
            return None;
        }
        let heir = if entry.twin_next == NONE {
            self.leave_firsts(entry.place);
            entry.chain_next
        } else {
            let heir = &mut self.entries[entry.twin_next as usize];
            heir.is_first = true;
            heir.place = entry.place;
            self.firsts[entry.place as usize] = entry.twin_next;
            heir.chain_next = entry.chain_next;
            heir.twin_prev = if entry.twin_prev == entry.twin_next {
                NONE
            } else {
                entry.twin_prev
            };
            entry.twin_next
        };
        self.relink(&entry.content, id.0, heir);
        (entry.twin_next == NONE).then_some(entry.content)
    }

    /// The last one takes the empty place.
    fn leave_firsts(&mut self, place: u32) {
        self.firsts.swap_remove(place as usize);
        if let Some(&moved) = self.firsts.get(place as usize) {
            self.entries[moved as usize].place = place;
        }
    }

    fn unlink_twin(&mut self, twin: &Entry) {
        self.entries[twin.twin_prev as usize].twin_next = twin.twin_next;
        if twin.twin_next != NONE {
            self.entries[twin.twin_next as usize].twin_prev = twin.twin_prev;
        } else if let Some(first) = self.find(&twin.content) {
            // It was the last one, which the first one knows.
            let is_alone = twin.twin_prev == first.0;
            self.entries[first.0 as usize].twin_prev = if is_alone { NONE } else { twin.twin_prev };
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.buckets.fill(NONE);
        self.entries.fill(UNLISTED);
        self.num_entries = 0;
        self.firsts.clear();
    }

    /// Every content once.
    pub(super) fn contents(&self) -> impl ExactSizeIterator<Item = CachedBlock> {
        self.firsts
            .iter()
            .map(|&first| self.entries[first as usize].content)
    }

    /// Entry `index` of `contents`.
    pub(super) fn content(&self, index: usize) -> Option<CachedBlock> {
        let first = *self.firsts.get(index)?;
        Some(self.entries[first as usize].content)
    }

    /// Every entry, of equal contents in the order in which they came; a broken chain ends after as many as there are blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&CachedBlock, BlockId)> {
        let limit = self.entries.len();
        let link = |at: u32| Some(at).filter(|&at| at != NONE);
        self.firsts.iter().flat_map(move |&first| {
            let content = &self.entries[first as usize].content;
            std::iter::successors(link(first), move |&at| link(self.entries[at as usize].twin_next))
                .take(limit)
                .map(move |at| (content, BlockId(at)))
        })
    }

    /// Makes whatever points to `from` in the chain of this content point to `to`.
    fn relink(&mut self, content: &CachedBlock, from: u32, to: u32) {
        let bucket = self.bucket(content);
        let mut at = self.buckets[bucket];
        if at == from {
            self.buckets[bucket] = to;
            return;
        }
        while at != NONE {
            let next = &mut self.entries[at as usize].chain_next;
            if *next == from {
                *next = to;
                return;
            }
            at = *next;
        }
        debug_assert!(false, "block {from} is not in the chain of its content");
    }

    fn bucket(&self, content: &CachedBlock) -> usize {
        let [a, b, c, d, ..] = content.hash.0;
        // Another bucket for each group's block of the same tokens.
        let group = u32::from(content.group.0).wrapping_mul(0x9E37_79B9);
        (u32::from_le_bytes([a, b, c, d]) ^ group) as usize & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests;
