//! Finds blocks by content. Several blocks may hold the same content (rule B7): they are chained behind the first one.

use std::collections::BTreeMap;

use kvasir_cache_key::BlockHash;

use crate::ids::BlockId;

/// Ends a chain: the null block has no content.
const NONE: u32 = 0;

/// From the hash of a block's content to the blocks that hold it.
#[derive(Debug)]
pub(super) struct PrefixIndex {
    first: BTreeMap<BlockHash, BlockId>,
    /// Per block, its neighbours in the chain of blocks with the same hash.
    twins: Vec<Twins>,
    num_entries: u32,
}

#[derive(Clone, Copy, Debug)]
struct Twins {
    prev: u32,
    next: u32,
}

impl PrefixIndex {
    pub(super) fn new(num_blocks: u32) -> Self {
        let twins = vec![
            Twins {
                prev: NONE,
                next: NONE
            };
            num_blocks as usize
        ];
        Self {
            first: BTreeMap::new(),
            twins,
            num_entries: 0,
        }
    }

    /// Blocks that can be found.
    pub(super) fn len(&self) -> u32 {
        self.num_entries
    }

    /// The block that has held this content for longest.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<BlockId> {
        self.first.get(hash).copied()
    }

    /// Makes a block findable. It must not be in the index.
    pub(super) fn insert(&mut self, hash: BlockHash, id: BlockId) {
        let first = self.first.entry(hash).or_insert(id).0;
        if first != id.0 {
            let next = self.twins[first as usize].next;
            self.twins[id.0 as usize] = Twins { prev: first, next };
            self.twins[first as usize].next = id.0;
            if next != NONE {
                self.twins[next as usize].prev = id.0;
            }
        }
        self.num_entries += 1;
    }

    /// Takes a block out. It must have been inserted under this hash.
    pub(super) fn remove(&mut self, hash: &BlockHash, id: BlockId) {
        let Twins { prev, next } = self.twins[id.0 as usize];
        if prev != NONE {
            self.twins[prev as usize].next = next;
        } else if next == NONE {
            self.first.remove(hash);
        } else {
            self.first.insert(*hash, BlockId(next));
        }
        if next != NONE {
            self.twins[next as usize].prev = prev;
        }
        self.twins[id.0 as usize] = Twins {
            prev: NONE,
            next: NONE,
        };
        self.num_entries -= 1;
    }

    pub(super) fn clear(&mut self) {
        self.first.clear();
        self.twins.fill(Twins {
            prev: NONE,
            next: NONE,
        });
        self.num_entries = 0;
    }

    /// Every entry; a broken chain ends after as many as there are blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&BlockHash, BlockId)> {
        self.first.iter().flat_map(|(hash, first)| {
            let next = |id: &u32| Some(self.twins[*id as usize].next).filter(|&next| next != NONE);
            std::iter::successors(Some(first.0), next)
                .take(self.twins.len())
                .map(move |id| (hash, BlockId(id)))
        })
    }
}
