//! The queue of free blocks: doubly linked in an arena, so that a prefix hit takes a block out of its middle in constant time.

use crate::ids::BlockId;

/// Both links of a block that isn't in the queue.
const DETACHED: Link = Link {
    prev: u32::MAX,
    next: u32::MAX,
};

/// The null block is never free and never handed out, so its link closes the ring.
const SENTINEL: u32 = 0;

/// A queue that each block is in at most once.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(super) struct FreeList {
    links: Vec<Link>,
    num_free: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Link {
    prev: u32,
    next: u32,
}

impl FreeList {
    /// All blocks but the null block, in ascending order.
    pub(super) fn full(num_blocks: u32) -> Self {
        let mut list = Self::empty(num_blocks);
        for id in 1..num_blocks {
            list.push_back(BlockId(id));
        }
        list
    }

    /// These blocks, in this order. None if one of them is the null block, isn't one of `num_blocks` or comes twice.
    pub(super) fn of(num_blocks: u32, ids: impl Iterator<Item = BlockId>) -> Option<Self> {
        let mut list = Self::empty(num_blocks);
        for id in ids {
            if id.0 == SENTINEL || id.0 >= num_blocks || list.contains(id) {
                return None;
            }
            list.push_back(id);
        }
        Some(list)
    }

    fn empty(num_blocks: u32) -> Self {
        let mut links = vec![DETACHED; num_blocks as usize];
        links[SENTINEL as usize] = Link {
            prev: SENTINEL,
            next: SENTINEL,
        };
        Self { links, num_free: 0 }
    }

    pub(super) fn contains(&self, id: BlockId) -> bool {
        self.links[id.0 as usize] != DETACHED
    }

    pub(super) fn len(&self) -> u32 {
        self.num_free
    }

    pub(super) fn push_front(&mut self, id: BlockId) {
        let first = self.links[SENTINEL as usize].next;
        self.insert_between(SENTINEL, id, first);
    }

    pub(super) fn push_back(&mut self, id: BlockId) {
        let last = self.links[SENTINEL as usize].prev;
        self.insert_between(last, id, SENTINEL);
    }

    pub(super) fn pop_front(&mut self) -> Option<BlockId> {
        let first = self.links[SENTINEL as usize].next;
        if first == SENTINEL {
            return None;
        }
        self.remove(BlockId(first));
        Some(BlockId(first))
    }

    /// Takes a block out, wherever it is. The block must be in the queue.
    pub(super) fn remove(&mut self, id: BlockId) {
        let link = self.links[id.0 as usize];
        debug_assert_ne!(link, DETACHED, "block {} is not free", id.0);
        self.links[link.prev as usize].next = link.next;
        self.links[link.next as usize].prev = link.prev;
        self.links[id.0 as usize] = DETACHED;
        self.num_free -= 1;
    }

    /// The free blocks, the next one to be handed out first. Ends after as many as there are blocks, even if the ring is broken.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockId> {
        let next = |at: u32| Some(self.links.get(at as usize)?.next).filter(|&next| next != SENTINEL);
        std::iter::successors(next(SENTINEL), move |&at| next(at))
            .take(self.links.len())
            .map(BlockId)
    }

    fn insert_between(&mut self, prev: u32, id: BlockId, next: u32) {
        debug_assert_eq!(
            self.links[id.0 as usize], DETACHED,
            "block {} is already free",
            id.0
        );
        self.links[id.0 as usize] = Link { prev, next };
        self.links[prev as usize].next = id.0;
        self.links[next as usize].prev = id.0;
        self.num_free += 1;
    }
}
