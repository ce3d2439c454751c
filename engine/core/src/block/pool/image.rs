//! The state of a pool, taken out and put back.
//!
//! First comes the pool itself, then whoever held blocks takes them again one by one, then what was leaving leaves. `check` tells afterwards
//! whether all of that fits together.

use super::{BlockPool, BlockRef};
use crate::block::free_list::FreeList;
use crate::ids::BlockId;
use crate::trace::PoolImage;

impl BlockPool {
    /// The free queue, what can be found, and what is leaving.
    pub(crate) fn image(&self) -> PoolImage {
        let mut free: Vec<(BlockId, u32)> = Vec::new();
        for id in self.free.iter() {
            match free.last_mut() {
                Some((first, len)) if first.0 + *len == id.0 => *len += 1,
                _ => free.push((id, 1)),
            }
        }
        let ids = |table: &Vec<BlockRef>| table.iter().map(BlockRef::id).collect();
        PoolImage {
            free,
            content: self.prefix.iter().map(|(key, id)| (*key, id)).collect(),
            leaving: self.leaving.tables.iter().map(ids).collect(),
        }
    }

    /// Puts a new pool into a state in which nobody holds anything yet. False if it can't be one of this pool.
    pub(crate) fn restore(&mut self, image: &PoolImage) -> bool {
        let num_blocks = self.num_refs.len() as u32;
        let is_ours = |id: BlockId| id.0 > 0 && id.0 < num_blocks;
        let runs = image.free.iter();
        let Some(free) = FreeList::of(
            num_blocks,
            runs.flat_map(|&(first, len)| (first.0..=num_blocks).take(len as usize).map(BlockId)),
        ) else {
            return false;
        };
        self.free = free;
        for &(key, id) in &image.content {
            if !is_ours(id) || self.content_of(id).is_some() {
                return false;
            }
            self.prefix.insert(key, id);
        }
        true
    }

    /// A handle for whoever held the block in the image. None if nobody can have held it.
    pub(crate) fn adopt(&mut self, id: BlockId) -> Option<BlockRef> {
        let is_held = id.0 > 0 && id.0 < self.num_refs.len() as u32 && !self.free.contains(id);
        is_held.then(|| {
            self.num_refs[id.0 as usize] += 1;
            BlockRef(id)
        })
    }

    /// What was leaving leaves again, after everybody else has his handles. False if it can't.
    pub(crate) fn restore_leaving(&mut self, image: &PoolImage) -> bool {
        let table = |ids: &Vec<BlockId>| ids.iter().map(|&id| self.adopt(id)).collect();
        // All handles exist before the first one leaves: two tables may share a block.
        let tables: Option<Vec<Vec<_>>> = image.leaving.iter().map(table).collect();
        let Some(tables) = tables else {
            return false;
        };
        for table in tables {
            self.release_later(table);
        }
        true
    }
}

#[cfg(test)]
mod tests;
