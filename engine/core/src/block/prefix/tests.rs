//! Equal contents, one after the other, and different ones side by side.

use kvasir_cache_key::{BlockHash, block_hash};

use super::{NONE, PrefixIndex};
use crate::block::CachedBlock;
use crate::ids::{BlockId, GroupId};

#[test]
fn equals_are_found_in_the_order_in_which_they_came_and_the_last_one_takes_the_content_along() {
    let content = CachedBlock {
        group: GroupId(0),
        hash: BlockHash([7; 32]),
    };
    let mut index = PrefixIndex::new(5);
    assert!(index.insert(content, BlockId(1)), "nobody held it before");
    assert!(!index.insert(content, BlockId(2)));
    assert!(!index.insert(content, BlockId(3)));
    assert_eq!(index.remove(BlockId(1)), None);
    // It comes behind those that are left, though the one that was first is gone.
    assert!(!index.insert(content, BlockId(4)));
    for (left, last) in [(2, false), (3, false), (4, true)] {
        assert_eq!(index.find(&content), Some(BlockId(left)));
        assert_eq!(index.remove(BlockId(left)), last.then_some(content));
    }
    assert_eq!(index.find(&content), None);
    assert_eq!(index.len(), 0);
}

#[test]
fn the_last_one_of_equals_leaves_and_the_next_one_comes_behind_those_that_stay() {
    let content = CachedBlock {
        group: GroupId(0),
        hash: BlockHash([7; 32]),
    };
    let mut index = PrefixIndex::new(5);
    for id in 1..4 {
        index.insert(content, BlockId(id));
    }
    index.remove(BlockId(3));
    index.insert(content, BlockId(4));
    let order: Vec<_> = index.iter().map(|(_, id)| id.0).collect();
    assert_eq!(order, [1, 2, 4]);
}

/// What makes finding take constant time: where as many contents as there are buckets are thrown at random, the longest chain has 5 to 7.
#[test]
fn contents_spread_over_the_buckets_whatever_their_groups() {
    for groups in [0..1, 3..4, 0..4_u8] {
        let mut index = PrefixIndex::new(1024);
        let mut hash = BlockHash([0; 32]);
        let mut next_block = (0..1024).map(BlockId).peekable();
        while next_block.peek().is_some() {
            hash = block_hash(&hash, &[1]);
            for (group, id) in groups.clone().zip(&mut next_block) {
                let group = GroupId(group);
                index.insert(CachedBlock { group, hash }, id);
            }
        }
        let link = |at: u32| Some(at).filter(|&at| at != NONE);
        let chain = |&first: &u32| {
            std::iter::successors(link(first), |&at| link(index.entries[at as usize].chain_next)).count()
        };
        let longest = index.buckets.iter().map(chain).max();
        assert!(longest < Some(8), "{longest:?} blocks in one bucket");
    }
}
