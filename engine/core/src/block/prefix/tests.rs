//! Equal contents, one after the other.

use kvasir_cache_key::BlockHash;

use super::PrefixIndex;
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
