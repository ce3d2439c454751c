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
        let mut links = vec![DETACHED; num_blocks as usize];
        links[SENTINEL as usize] = Link {
            prev: SENTINEL,
            next: SENTINEL,
        };
        let mut list = Self { links, num_free: 0 };
        for id in 1..num_blocks {
            list.push_back(BlockId(id));
        }
        list
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

    /// Makes a block that is in the queue the last one to be handed out.
    pub(super) fn move_to_back(&mut self, id: BlockId) {
        self.remove(id);
        self.push_back(id);
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
