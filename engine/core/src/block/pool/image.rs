//! The state of a pool that nobody uses, taken out and put back.

use super::{BlockPool, Contents};
use crate::block::CachedBlock;
use crate::ids::BlockId;

impl BlockPool {
    /// The free queue and what can be found, if nobody holds a block.
    pub(crate) fn image(&self) -> Option<(Vec<BlockId>, Contents)> {
        let is_whole = self.free.len() == self.num_usable();
        let content = || self.prefix.iter().map(|(key, id)| (*key, id)).collect();
        is_whole.then(|| (self.free.iter().collect(), content()))
    }

    /// Puts a new pool into a state. An image that says nothing leaves it new; false if it isn't one of this pool.
    pub(crate) fn restore(&mut self, free: &[BlockId], content: &[(CachedBlock, BlockId)]) -> bool {
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
        for &(key, id) in content {
            if !is_ours(id) || self.content_of(id).is_some() {
                return false;
            }
            self.prefix.insert(key, id);
        }
        true
    }
}
