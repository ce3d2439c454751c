//! The pool against a slow model: lists that are searched, one entry per handle.

use kvasir_cache_key::BlockHash;
use proptest::prelude::*;

use super::free_list::FreeList;
use super::{BlockPool, BlockRef, CachedBlock, Content};
use crate::ids::{BlockId, GroupId};

fn hash(content: u8) -> BlockHash {
    BlockHash([content; 32])
}

fn key(content: u8) -> CachedBlock {
    CachedBlock {
        group: GroupId(0),
        hash: hash(content),
    }
}

fn free(pool: &BlockPool) -> Vec<u32> {
    pool.free_ids().map(|id| id.0).collect()
}

fn ids(table: &[BlockRef]) -> Vec<u32> {
    table.iter().map(|block| block.id().0).collect()
}

fn allocate(pool: &mut BlockPool, count: u32) -> Vec<BlockRef> {
    let mut table = Vec::new();
    assert!(pool.allocate(count, &mut table), "{count} blocks should be free");
    table
}

fn publish(pool: &mut BlockPool, block: &BlockRef, content: u8) {
    let content = Content {
        group: GroupId(0),
        hash: hash(content),
        parent: None,
        index: 0,
        tokens: &[],
    };
    pool.publish(block, content.key(), || content);
}

fn share(pool: &mut BlockPool, content: u8) -> BlockRef {
    let cached = pool.find(&key(content)).expect("the content is cached");
    pool.share(cached)
}

fn check(pool: &BlockPool, tables: &[&[BlockRef]]) {
    let handles = tables.iter().flat_map(|table| table.iter().map(BlockRef::id));
    assert_eq!(pool.check(handles), Ok(()));
}

#[test]
fn the_null_block_is_never_handed_out() {
    let mut pool = BlockPool::new(5);
    assert_eq!(pool.num_usable(), 4);
    assert_eq!(ids(&allocate(&mut pool, 4)), [1, 2, 3, 4]);
    assert!(!pool.allocate(1, &mut Vec::new()));
}

#[test]
fn an_allocation_that_does_not_fit_changes_nothing() {
    let mut pool = BlockPool::new(4);
    let mut table = allocate(&mut pool, 2);
    publish(&mut pool, &table[0], 1);
    assert!(!pool.allocate(2, &mut table));
    assert_eq!(ids(&table), [1, 2]);
    assert_eq!(free(&pool), [3]);
    check(&pool, &[&table]);
}

/// The drill of the founding document, with its slot numbers: R0 = [12, 41], R1 = [12, 73, 90]; 12, 41 and 73 are full and
/// cached, 90 is partial; no other block is free.
#[test]
fn the_ownership_drill_frees_90_73_12_in_this_order() {
    let mut pool = BlockPool::new(91);
    let mut held: Vec<Option<BlockRef>> = allocate(&mut pool, 90).into_iter().map(Some).collect();
    let mut take = |slot: usize| held[slot - 1].take().expect("taken once");
    let mut r0 = vec![take(12), take(41)];
    let (r1_suffix, r1_partial) = (take(73), take(90));
    publish(&mut pool, &r0[0], b'A');
    publish(&mut pool, &r0[1], b'B');
    publish(&mut pool, &r1_suffix, b'C');
    let mut r1 = vec![share(&mut pool, b'A'), r1_suffix, r1_partial];

    assert!(!pool.allocate(1, &mut Vec::new()), "all slots are live");
    pool.release_all(&mut r0);
    assert_eq!(pool.num_refs(BlockId(12)), 1);
    assert_eq!(free(&pool), [41]);
    assert!(
        pool.find(&key(b'B')).is_some(),
        "being free doesn't erase content"
    );

    let r2 = allocate(&mut pool, 1);
    assert_eq!(ids(&r2), [41]);
    assert_eq!(
        pool.find(&key(b'B')),
        None,
        "the content is forgotten before the slot is overwritten"
    );
    pool.release_all(&mut r1);
    assert_eq!(free(&pool), [90, 73, 12]);
    assert_eq!(pool.num_refs(BlockId(41)), 1);
    let others: Vec<BlockRef> = held.into_iter().flatten().collect();
    check(&pool, &[&others, &r2]);
}

#[test]
fn blocks_without_content_are_used_before_cached_ones() {
    let mut pool = BlockPool::new(4);
    let mut table = allocate(&mut pool, 3);
    publish(&mut pool, &table[0], 1);
    publish(&mut pool, &table[1], 2);
    pool.release_all(&mut table);
    assert_eq!(free(&pool), [3, 2, 1]);
}

#[test]
fn a_hit_takes_a_free_block_out_of_the_queue_and_makes_it_the_last_to_go() {
    let mut pool = BlockPool::new(4);
    let mut table = allocate(&mut pool, 3);
    for (block, content) in table.iter().zip(1..) {
        publish(&mut pool, block, content);
    }
    pool.release_all(&mut table);
    assert_eq!(free(&pool), [3, 2, 1]);
    let hit = share(&mut pool, 2);
    assert_eq!(free(&pool), [3, 1]);
    pool.release(hit);
    assert_eq!(free(&pool), [3, 1, 2]);
}

#[test]
fn looking_for_content_leaves_the_order_of_eviction_alone() {
    let mut pool = BlockPool::new(3);
    let mut table = allocate(&mut pool, 2);
    publish(&mut pool, &table[0], 1);
    publish(&mut pool, &table[1], 2);
    pool.release_all(&mut table);
    let before = free(&pool);
    assert!(pool.find(&key(2)).is_some_and(|cached| cached.is_free));
    assert_eq!(free(&pool), before);
}

#[test]
fn a_shared_block_stays_until_the_last_handle_is_released() {
    let mut pool = BlockPool::new(2);
    let mut first = allocate(&mut pool, 1);
    publish(&mut pool, &first[0], 1);
    let second = share(&mut pool, 1);
    pool.release_all(&mut first);
    assert_eq!(pool.num_free(), 0);
    pool.release(second);
    assert_eq!(free(&pool), [1]);
}

#[test]
fn a_block_of_another_group_is_never_found_though_it_holds_the_same_tokens() {
    let mut pool = BlockPool::new(4);
    let table = allocate(&mut pool, 2);
    let contents = [0, 1].map(|group| CachedBlock {
        group: GroupId(group),
        hash: hash(7),
    });
    publish(&mut pool, &table[0], 7);
    assert!(pool.find(&contents[0]).is_some());
    assert_eq!(pool.find(&contents[1]), None);
    let second = Content {
        group: GroupId(1),
        hash: hash(7),
        parent: None,
        index: 0,
        tokens: &[],
    };
    pool.publish(&table[1], second.key(), || second);
    let found = contents.map(|content| pool.find(&content).map(|cached| pool.share(cached)));
    let [Some(first), Some(second)] = found else {
        panic!("both are cached")
    };
    assert_eq!(ids(&[first, second]), [1, 2]);
    assert_eq!(pool.cached().collect::<Vec<_>>(), contents);
}

#[test]
fn equal_contents_keep_their_own_blocks_and_the_survivor_is_found() {
    let mut pool = BlockPool::new(5);
    let mut table = allocate(&mut pool, 3);
    for block in &table {
        publish(&mut pool, block, 7);
    }
    assert_eq!(pool.num_cached(), 3);
    check(&pool, &[&table]);
    // Blocks 4, 3 and 2 go first; 1 held the content first, so a search finds it until it goes too.
    pool.release_all(&mut table);
    let first_three = allocate(&mut pool, 3);
    assert_eq!(ids(&first_three), [4, 3, 2]);
    assert_eq!(ids(&[share(&mut pool, 7)]), [1]);
}

#[test]
fn when_the_oldest_of_equals_is_overwritten_the_next_one_is_found() {
    let mut pool = BlockPool::new(3);
    let mut table = allocate(&mut pool, 2);
    publish(&mut pool, &table[0], 7);
    publish(&mut pool, &table[1], 7);
    pool.release(table.remove(0));
    let reused = allocate(&mut pool, 1);
    assert_eq!(ids(&reused), [1]);
    assert_eq!(ids(&[share(&mut pool, 7)]), [2]);
}

#[test]
fn reset_is_refused_while_a_block_is_held_and_forgets_everything_otherwise() {
    let mut pool = BlockPool::new(3);
    let mut table = allocate(&mut pool, 1);
    publish(&mut pool, &table[0], 1);
    assert!(!pool.reset());
    assert!(pool.find(&key(1)).is_some());
    pool.release_all(&mut table);
    assert!(pool.reset());
    assert_eq!(pool.find(&key(1)), None);
    check(&pool, &[]);
}

#[test]
fn the_blocks_of_a_long_table_count_as_free_at_once_and_come_back_in_slices() {
    let mut pool = BlockPool::with_slice(7, 2);
    let mut table = allocate(&mut pool, 5);
    pool.release_all(&mut table);
    assert_eq!(pool.num_free(), 6);
    assert_eq!(free(&pool), [6], "none of them is in the queue yet");
    check(&pool, &[]);
    pool.settle_slice();
    assert_eq!(free(&pool), [4, 5, 6]);
    let taken = allocate(&mut pool, 5);
    assert_eq!(pool.num_free(), 1);
    check(&pool, &[&taken]);
}

#[test]
fn a_table_that_is_no_longer_than_a_slice_comes_back_at_once() {
    let mut pool = BlockPool::with_slice(4, 2);
    let mut table = allocate(&mut pool, 2);
    pool.release_all(&mut table);
    assert_eq!(free(&pool), [1, 2, 3]);
}

#[test]
fn a_leaving_block_that_is_shared_again_is_no_longer_free() {
    let mut pool = BlockPool::with_slice(4, 1);
    let mut table = allocate(&mut pool, 3);
    publish(&mut pool, &table[0], 1);
    pool.release_all(&mut table);
    assert!(pool.find(&key(1)).is_some_and(|cached| cached.is_free));
    let shared = [share(&mut pool, 1)];
    assert_eq!(pool.num_free(), 2);
    check(&pool, &[&shared]);
    assert!(!pool.reset());
    let [shared] = shared;
    pool.release(shared);
    assert_eq!(pool.num_free(), 3);
}

#[test]
fn a_reset_leaves_nothing_that_comes_back_later() {
    let mut pool = BlockPool::with_slice(4, 1);
    let mut table = allocate(&mut pool, 3);
    publish(&mut pool, &table[0], 1);
    pool.release_all(&mut table);
    assert!(pool.reset());
    assert_eq!(free(&pool).len(), 3);
    check(&pool, &[]);
}

#[test]
fn a_dropped_handle_is_found_by_the_check() {
    let mut pool = BlockPool::new(3);
    let table = allocate(&mut pool, 2);
    let violation = pool
        .check(table[..1].iter().map(BlockRef::id))
        .expect_err("block 2 leaked");
    assert!(
        violation
            .to_string()
            .contains("block 2 counts 1 references, 0 exist"),
        "{violation}"
    );
}

#[test]
fn a_block_can_leave_the_middle_of_the_free_queue() {
    let mut list = FreeList::full(6);
    list.remove(BlockId(3));
    list.push_front(BlockId(3));
    list.remove(BlockId(5));
    assert_eq!(list.iter().map(|id| id.0).collect::<Vec<_>>(), [3, 1, 2, 4]);
    assert_eq!(list.len(), 4);
    let popped: Vec<_> = std::iter::from_fn(|| list.pop_front()).collect();
    assert_eq!(popped, [3, 1, 2, 4].map(BlockId));
    assert_eq!(list.len(), 0);
}

/// What a test does next; numbers choose among what exists, modulo its length.
#[derive(Clone, Debug)]
enum Action {
    Allocate(u32),
    Share(u8),
    Publish(usize, u8),
    Release(usize),
    ReleaseAll(usize),
    Reset,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (0_u32..4).prop_map(Action::Allocate),
        3 => (0_u8..4).prop_map(Action::Share),
        3 => (any::<usize>(), 0_u8..4).prop_map(|(at, content)| Action::Publish(at, content)),
        3 => any::<usize>().prop_map(Action::Release),
        2 => any::<usize>().prop_map(Action::ReleaseAll),
        1 => Just(Action::Reset),
    ]
}

/// The same pool as lists: references by counting handles, content in order of publication.
struct Model {
    num_blocks: u32,
    free: Vec<u32>,
    held: Vec<u32>,
    content: Vec<(u8, u32)>,
}

impl Model {
    fn new(num_blocks: u32) -> Self {
        Self {
            num_blocks,
            free: (1..num_blocks).collect(),
            held: Vec::new(),
            content: Vec::new(),
        }
    }

    fn allocate(&mut self, count: u32) -> Option<Vec<u32>> {
        if self.free.len() < count as usize {
            return None;
        }
        let taken: Vec<u32> = self.free.drain(..count as usize).collect();
        self.content.retain(|(_, block)| !taken.contains(block));
        self.held.extend(&taken);
        Some(taken)
    }

    /// Any of the blocks with this content may be found.
    fn holders(&self, content: u8) -> Vec<u32> {
        self.content
            .iter()
            .filter(|(held, _)| *held == content)
            .map(|&(_, block)| block)
            .collect()
    }

    fn share(&mut self, block: u32) {
        self.free.retain(|&free| free != block);
        self.held.push(block);
    }

    fn publish(&mut self, block: u32, content: u8) {
        if self.content.iter().all(|&(_, known)| known != block) {
            self.content.push((content, block));
        }
    }

    fn release(&mut self, block: u32) {
        let handle = self
            .held
            .iter()
            .position(|&held| held == block)
            .expect("released blocks are held");
        self.held.remove(handle);
        if !self.held.contains(&block) {
            let is_cached = self.content.iter().any(|&(_, known)| known == block);
            let at = if is_cached { self.free.len() } else { 0 };
            self.free.insert(at, block);
        }
    }

    fn reset(&mut self) -> bool {
        let idle = self.free.len() as u32 == self.num_blocks - 1;
        if idle {
            self.content.clear();
        }
        idle
    }
}

/// With slices, only the order of the free queue may differ from the model, which knows none.
fn run_sliced(num_blocks: u32, actions: Vec<Action>) -> Result<(), TestCaseError> {
    let mut pools = [BlockPool::new(num_blocks), BlockPool::with_slice(num_blocks, 1)];
    let mut tables: [Vec<Vec<BlockRef>>; 2] = [Vec::new(), Vec::new()];
    for action in actions {
        for (pool, tables) in pools.iter_mut().zip(&mut tables) {
            let num_tables = tables.len();
            match action {
                Action::Allocate(count) => {
                    let mut table = Vec::new();
                    if pool.allocate(count, &mut table) {
                        tables.push(table);
                    }
                }
                // Which content survives depends on the order, so only held blocks are shared.
                Action::Share(at) if num_tables > 0 => {
                    let table = &tables[at as usize % num_tables];
                    let copy = table.iter().map(|block| pool.share_held(block)).collect();
                    tables.push(copy);
                }
                Action::ReleaseAll(at) if num_tables > 0 => {
                    pool.release_all(&mut tables.swap_remove(at % num_tables));
                }
                Action::Release(_) => pool.settle_slice(),
                _ => {}
            }
            let handles = tables.iter().flatten().map(BlockRef::id);
            prop_assert_eq!(pool.check(handles), Ok(()));
        }
        prop_assert_eq!(pools[0].num_free(), pools[1].num_free());
        prop_assert_eq!(tables[0].len(), tables[1].len());
    }
    Ok(())
}

fn run(num_blocks: u32, actions: Vec<Action>) -> Result<(), TestCaseError> {
    let mut pool = BlockPool::new(num_blocks);
    let mut model = Model::new(num_blocks);
    let mut tables: Vec<Vec<BlockRef>> = Vec::new();
    for action in actions {
        let num_tables = tables.len();
        match action {
            Action::Allocate(count) => {
                let mut table = Vec::new();
                let allocated = pool.allocate(count, &mut table);
                prop_assert_eq!(allocated.then(|| ids(&table)), model.allocate(count));
                tables.push(table);
            }
            Action::Share(content) => {
                let holders = model.holders(content);
                let found = pool.find(&key(content));
                prop_assert_eq!(found.is_some(), !holders.is_empty());
                if let Some(cached) = found {
                    let is_free = cached.is_free;
                    let block = pool.share(cached);
                    prop_assert!(holders.contains(&block.id().0));
                    prop_assert_eq!(is_free, model.free.contains(&block.id().0));
                    model.share(block.id().0);
                    tables.push(vec![block]);
                }
            }
            Action::Publish(at, content) if num_tables > 0 => {
                if let Some(block) = tables[at % num_tables].first() {
                    publish(&mut pool, block, content);
                    model.publish(block.id().0, content);
                }
            }
            Action::Release(at) if num_tables > 0 => {
                if let Some(block) = tables[at % num_tables].pop() {
                    model.release(block.id().0);
                    pool.release(block);
                }
            }
            Action::ReleaseAll(at) if num_tables > 0 => {
                let mut table = tables.swap_remove(at % num_tables);
                ids(&table)
                    .into_iter()
                    .rev()
                    .for_each(|block| model.release(block));
                pool.release_all(&mut table);
            }
            Action::Reset => prop_assert_eq!(pool.reset(), model.reset()),
            Action::Publish(..) | Action::Release(_) | Action::ReleaseAll(_) => {}
        }
        prop_assert_eq!(free(&pool), model.free.clone());
        prop_assert_eq!(pool.num_cached() as usize, model.content.len());
        let handles = tables.iter().flatten().map(BlockRef::id);
        prop_assert_eq!(pool.check(handles), Ok(()));
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_pool_behaves_like_its_model(
        num_blocks in 2_u32..9,
        actions in proptest::collection::vec(action(), 0..120),
    ) {
        run(num_blocks, actions)?;
    }

    #[test]
    fn a_pool_that_gives_back_in_slices_counts_like_one_that_does_not(
        num_blocks in 2_u32..9,
        actions in proptest::collection::vec(action(), 0..120),
    ) {
        run_sliced(num_blocks, actions)?;
    }
}
