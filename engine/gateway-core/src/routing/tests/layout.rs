//! Where prompts can start, against the law said slowly.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::routing::index::{Overlaps, PrefixIndex};
use crate::routing::{CacheLayout, KvGroup, filed};

const BLOCK_SIZE: u32 = 4;
const NUM_BLOCKS: u32 = 8;

fn hash(block: u32) -> u64 {
    (u64::from(block) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn hashes() -> Vec<u64> {
    (0..NUM_BLOCKS).map(hash).collect()
}

/// Whether every group has what position `end * BLOCK_SIZE` reads.
fn can_start_behind(end: u32, groups: &[KvGroup], held: &BTreeSet<(u32, u32)>) -> bool {
    (0..).zip(groups).all(|(group, kind)| {
        let next = end * BLOCK_SIZE;
        let first_read = match kind {
            KvGroup::Full => 0,
            KvGroup::Window { positions } => (next + 1).saturating_sub(*positions),
        };
        (first_read..next).all(|position| held.contains(&(group, position / BLOCK_SIZE)))
    })
}

fn overlap(groups: &[KvGroup], held: &BTreeSet<(u32, u32)>) -> u32 {
    let mut index = PrefixIndex::new(1000);
    let (other, holder) = (index.attach().unwrap(), index.attach().unwrap());
    index.store(other, &hashes());
    let blocks: Vec<u64> = held
        .iter()
        .map(|(group, block)| filed(*group, hash(*block)))
        .collect();
    index.store(holder, &blocks);
    let mut overlaps = Overlaps::default();
    index.overlaps_in(&CacheLayout::new(BLOCK_SIZE, groups), &hashes(), &mut overlaps);
    overlaps.get(holder)
}

fn group() -> impl Strategy<Value = KvGroup> {
    prop_oneof![
        Just(KvGroup::Full),
        (1_u32..20).prop_map(|positions| KvGroup::Window { positions }),
    ]
}

proptest! {
    #[test]
    fn a_prompt_starts_behind_the_most_blocks_that_every_group_allows(
        groups in prop::collection::vec(group(), 1..4),
        missing in prop::collection::btree_set((0_u32..4, 0..NUM_BLOCKS), 0..10),
    ) {
        let all = (0..groups.len() as u32).flat_map(|group| (0..NUM_BLOCKS).map(move |block| (group, block)));
        let held: BTreeSet<(u32, u32)> = all.filter(|content| !missing.contains(content)).collect();
        let slow = (0..=NUM_BLOCKS).rev().find(|end| can_start_behind(*end, &groups, &held));
        prop_assert_eq!(overlap(&groups, &held), slow.unwrap_or(0));
    }
}

#[test]
fn blocks_that_a_window_has_left_behind_are_not_needed() {
    let groups = [KvGroup::Full, KvGroup::Window { positions: 6 }];
    let full = (0..NUM_BLOCKS).map(|block| (0, block));
    let held: BTreeSet<(u32, u32)> = full.chain([(1, 6), (1, 7)]).collect();
    assert_eq!(overlap(&groups, &held), NUM_BLOCKS);
}

#[test]
fn a_window_without_its_last_blocks_shortens_what_full_attention_has() {
    let groups = [KvGroup::Full, KvGroup::Window { positions: 6 }];
    let full = (0..NUM_BLOCKS).map(|block| (0, block));
    let held: BTreeSet<(u32, u32)> = full.chain([(1, 2), (1, 3), (1, 7)]).collect();
    assert_eq!(overlap(&groups, &held), 4);
}
