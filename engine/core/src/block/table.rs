//! Block tables: which block holds which positions of a sequence, one table per KV group.
//!
//! All tables of a sequence are equally long. A table begins with the null block where its group needs no KV any more; behind that it holds a
//! handle for each entry.

use super::pool::{BlockPool, BlockRef};
use crate::ids::BlockId;
use crate::trace::TableImage;

/// The null block, which stands in a table for what isn't needed any more.
const NULL_BLOCK: BlockId = BlockId(0);

/// The table of one group.
#[derive(Debug, Default)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct Table {
    held: Vec<BlockRef>,
    /// Entries in front of `held`: the null block.
    num_dropped: u32,
}

/// The tables of all groups, in the groups' order.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct Tables {
    /// Most models have a single group, which therefore costs no indirection.
    first: Table,
    others: Box<[Table]>,
}

impl Table {
    pub(crate) fn len(&self) -> u32 {
        self.num_dropped + self.held.len() as u32
    }

    /// Leading entries that are the null block.
    pub(crate) fn num_dropped(&self) -> u32 {
        self.num_dropped
    }

    /// The block of an entry, unless it is the null block.
    pub(crate) fn get(&self, index: u32) -> Option<&BlockRef> {
        self.held.get(index.checked_sub(self.num_dropped)? as usize)
    }

    /// Appends the entries from an index on to `ids`.
    fn write_from(&self, from: u32, ids: &mut Vec<BlockId>) {
        let num_null = self.num_dropped.saturating_sub(from);
        ids.resize(ids.len() + num_null as usize, NULL_BLOCK);
        let first_held = from.saturating_sub(self.num_dropped) as usize;
        let held = self.held.get(first_held..).unwrap_or_default();
        ids.extend(held.iter().map(BlockRef::id));
    }

    /// An empty table begins with null blocks.
    pub(crate) fn skip(&mut self, num_blocks: u32) {
        debug_assert!(self.held.is_empty(), "only the start of a table is skipped");
        self.num_dropped = num_blocks;
    }

    pub(crate) fn push(&mut self, block: BlockRef) {
        self.held.push(block);
    }

    /// Gives back the blocks in front of an index, the last one first.
    pub(crate) fn drop_before(&mut self, index: u32, pool: &mut BlockPool) {
        let num_gone = index.saturating_sub(self.num_dropped);
        if num_gone > 0 {
            let gone = self.held.drain(..num_gone as usize);
            gone.rev().for_each(|block| pool.release(block));
            self.num_dropped = index;
        }
    }
}

impl Tables {
    pub(crate) fn image(&self) -> Vec<TableImage> {
        let table = |table: &Table| TableImage {
            num_dropped: table.num_dropped,
            held: table.held.iter().map(BlockRef::id).collect(),
        };
        self.iter().map(table).collect()
    }

    /// Tables with handles of their own. None if there are as many as no sequence has, or the pool knows that nobody held one of their blocks.
    pub(crate) fn restored(images: &[TableImage], num_groups: usize, pool: &mut BlockPool) -> Option<Self> {
        let mut tables = Self::new(num_groups);
        if images.len() != num_groups {
            return None;
        }
        for (table, image) in tables.iter_mut().zip(images) {
            let held: Option<Vec<_>> = image.held.iter().map(|&id| pool.adopt(id)).collect();
            table.held = held?;
            table.num_dropped = image.num_dropped;
        }
        Some(tables)
    }

    pub(crate) fn new(num_groups: usize) -> Self {
        Self {
            first: Table::default(),
            others: (1..num_groups).map(|_| Table::default()).collect(),
        }
    }

    /// Entries of each table.
    pub(crate) fn len(&self) -> u32 {
        self.first.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Table> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Table> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// The table of the group that is the `group`-th one.
    pub(crate) fn get(&self, group: usize) -> &Table {
        match group.checked_sub(1) {
            None => &self.first,
            Some(other) => &self.others[other],
        }
    }

    pub(crate) fn get_mut(&mut self, group: usize) -> &mut Table {
        match group.checked_sub(1) {
            None => &mut self.first,
            Some(other) => &mut self.others[other],
        }
    }

    /// Every handle in them.
    pub(crate) fn handles(&self) -> impl Iterator<Item = &BlockRef> {
        self.iter().flat_map(|table| &table.held)
    }

    /// Room for this many handles in the table of a group.
    pub(crate) fn reserve(&mut self, group: usize, num_blocks: u32) {
        let held = &mut self.get_mut(group).held;
        held.reserve_exact((num_blocks as usize).saturating_sub(held.len()));
    }

    /// Appends `count` blocks to every table, or changes nothing and says false.
    #[must_use]
    pub(crate) fn grow(&mut self, count: u32, pool: &mut BlockPool) -> bool {
        let num_tables = 1 + self.others.len() as u32;
        if count.saturating_mul(num_tables) > pool.num_free() {
            return false;
        }
        // There is room for all of them, so none of these fails.
        let mut others = self.others.iter_mut();
        pool.allocate(count, &mut self.first.held)
            && others.all(|table| pool.allocate(count, &mut table.held))
    }

    /// Appends the entries of each table from an index on to `ids`, one table after the other.
    pub(crate) fn write_from(&self, from: u32, ids: &mut Vec<BlockId>) {
        self.iter().for_each(|table| table.write_from(from, ids));
    }

    /// Gives everything back, the last block of a table first.
    pub(crate) fn release(&mut self, pool: &mut BlockPool) {
        for table in self.iter_mut() {
            pool.release_all(&mut table.held);
            table.num_dropped = 0;
        }
    }

    /// Moves every handle to the end of `parked`.
    pub(crate) fn park(&mut self, parked: &mut Vec<BlockRef>) {
        for table in self.iter_mut() {
            parked.append(&mut table.held);
            table.num_dropped = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, Tables};
    use crate::block::BlockPool;

    #[test]
    fn to_drop_what_is_gone_already_changes_nothing() {
        let mut pool = BlockPool::new(6);
        let mut table = Table::default();
        assert!(pool.allocate(4, &mut table.held));
        table.drop_before(3, &mut pool);
        for index in [3, 2, 0] {
            table.drop_before(index, &mut pool);
            assert_eq!((table.num_dropped(), table.len(), pool.num_free()), (3, 4, 4));
        }
    }

    #[test]
    fn tables_grow_all_or_none() {
        let mut pool = BlockPool::new(6);
        let mut tables = Tables::new(2);
        assert!(!tables.grow(3, &mut pool));
        assert_eq!((tables.handles().count(), pool.num_free()), (0, 5));
        assert!(tables.grow(2, &mut pool));
        assert_eq!((tables.handles().count(), pool.num_free()), (4, 1));
    }
}
