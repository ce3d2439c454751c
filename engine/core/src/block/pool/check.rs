//! Whether the pool's books agree with each other and with the handles that exist.

use super::{BlockPool, BlockRef};
use crate::ids::BlockId;
use crate::invariant::Violation;

impl BlockPool {
    /// Whether the books agree with the handles that exist.
    pub(crate) fn check(&self, handles: impl Iterator<Item = BlockId>) -> Result<(), Violation> {
        let mut counted = vec![0_u32; self.num_refs.len()];
        let leaving = self.leaving.tables.iter().flatten().map(BlockRef::id);
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
        for block in self.leaving.tables.iter().flatten() {
            counted[block.0.0 as usize] += 1;
        }
        let is_left = |&id: &usize| counted[id] > 0 && counted[id] == self.num_refs[id];
        let left = (0..counted.len()).filter(is_left).count();
        let (expected, counts_left) = (self.leaving.num_blocks, counted == self.leaving.num_refs);
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
        for (key, BlockId(id)) in self.prefix.iter() {
            let was_listed = std::mem::replace(&mut is_listed[id as usize], true);
            let matches = self.content_of(BlockId(id)) == Some(*key) && self.prefix.find(key).is_some();
            Violation::ensure(matches && !was_listed, || {
                format!("block {id} is found under a key that isn't its own")
            })?;
        }
        for (id, &listed) in is_listed.iter().enumerate() {
            let hashed = self.content_of(BlockId(id as u32)).is_some();
            Violation::ensure(listed == hashed, || {
                format!("block {id}: has content is {hashed}, can be found is {listed}")
            })?;
        }
        Ok(())
    }
}
