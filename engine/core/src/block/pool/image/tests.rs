//! Pools that are put back, and images that are none.

use kvasir_cache_key::BlockHash;

use crate::block::{BlockPool, BlockRef, CachedBlock, Content};
use crate::ids::{BlockId, GroupId};
use crate::trace::PoolImage;

const NUM_BLOCKS: u32 = 6;

fn content(value: u8) -> Content<'static> {
    Content {
        group: GroupId(0),
        hash: BlockHash([value; 32]),
        parent: None,
        index: 0,
        tokens: &[],
    }
}

fn key(value: u8) -> CachedBlock {
    content(value).key()
}

fn allocate(pool: &mut BlockPool, count: u32) -> Vec<BlockRef> {
    let mut table = Vec::new();
    assert!(pool.allocate(count, &mut table), "{count} blocks should be free");
    table
}

fn handles(tables: &[&[BlockRef]]) -> impl Iterator<Item = BlockId> {
    tables.iter().flat_map(|table| table.iter().map(BlockRef::id))
}

/// Free 3, 1, 2, 5; held 4; found 3, and 2 after 5 with equal contents.
fn image() -> PoolImage {
    PoolImage {
        free: vec![(BlockId(3), 1), (BlockId(1), 2), (BlockId(5), 1)],
        content: vec![(key(1), BlockId(3)), (key(2), BlockId(5)), (key(2), BlockId(2))],
        leaving: Vec::new(),
    }
}

fn restored(image: &PoolImage) -> Option<BlockPool> {
    let mut pool = BlockPool::new(NUM_BLOCKS);
    pool.restore(image).then_some(pool)
}

#[test]
fn a_pool_that_is_put_back_hands_out_and_finds_what_it_did() {
    let mut pool = restored(&image()).expect("it is one of this pool");
    let held = pool.adopt(BlockId(4)).expect("it isn't free");
    assert_eq!(pool.check(handles(&[&[held]])), Ok(()));
    assert_eq!(pool.image(), image());
    let found = pool.find(&key(2)).map(|cached| pool.share(cached));
    assert_eq!(found.map(|block| block.id()), Some(BlockId(5)));
    let order: Vec<BlockId> = handles(&[&allocate(&mut pool, 3)]).collect();
    assert_eq!(order, [BlockId(3), BlockId(1), BlockId(2)]);
}

#[test]
fn a_new_pool_is_a_single_run() {
    let free = vec![(BlockId(1), NUM_BLOCKS - 1)];
    assert_eq!(BlockPool::new(NUM_BLOCKS).image().free, free);
}

#[test]
fn free_blocks_that_the_pool_does_not_have_are_refused() {
    for free in [
        (BlockId(0), 1),
        (BlockId(NUM_BLOCKS), 1),
        (BlockId(4), u32::MAX),
        (BlockId(2), 1),
        (BlockId(u32::MAX), 1),
    ] {
        let mut image = image();
        image.free.push(free);
        let is_refused = restored(&image).is_none();
        // Nothing begins behind the last block, so a run from there is empty.
        assert_eq!(is_refused, free.0.0 < u32::MAX, "{free:?}");
    }
}

#[test]
fn content_of_blocks_that_the_pool_does_not_have_or_that_have_some_is_refused() {
    for id in [0, NUM_BLOCKS, 3, 2] {
        let mut image = image();
        image.content.push((key(9), BlockId(id)));
        assert!(restored(&image).is_none(), "block {id}");
    }
}

#[test]
fn nobody_takes_a_block_again_that_nobody_can_have_held() {
    let mut pool = restored(&image()).expect("it is one of this pool");
    for id in [0, 3, 1, NUM_BLOCKS, u32::MAX] {
        assert_eq!(pool.adopt(BlockId(id)), None, "block {id}");
    }
    for id in [3, 0] {
        let mut image = image();
        image.leaving = vec![vec![BlockId(4)], vec![BlockId(id)]];
        let mut pool = restored(&image).expect("it is one of this pool");
        assert!(!pool.restore_leaving(&image), "block {id}");
    }
}

#[test]
fn tables_that_share_blocks_go_on_leaving() {
    let mut pool = BlockPool::with_slice(NUM_BLOCKS, 1);
    let mut first = allocate(&mut pool, 3);
    for (block, value) in first.iter().zip(1..) {
        pool.publish(block, key(value), || content(value));
    }
    let mut second: Vec<_> = first[..2].iter().map(|block| pool.share_held(block)).collect();
    let third = pool.share_held(&first[2]);
    pool.release_all(&mut first);
    pool.release_all(&mut second);
    assert_eq!(pool.num_free(), 4, "the third table holds one");

    let image = pool.image();
    let mut copy = BlockPool::with_slice(NUM_BLOCKS, 1);
    assert!(copy.restore(&image));
    let held = copy.adopt(third.id()).expect("it isn't free");
    assert!(copy.restore_leaving(&image));
    assert_eq!(copy.check(handles(&[&[held]])), Ok(()));
    assert_eq!(copy.image(), image);
    for _ in 0..6 {
        pool.settle_slice();
        copy.settle_slice();
        assert_eq!(copy.image(), pool.image());
    }
    assert_eq!(copy.num_free(), 4);
}
