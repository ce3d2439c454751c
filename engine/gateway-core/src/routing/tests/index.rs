//! The index against a map of sets.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::routing::index::{Holder, Overlaps, PrefixIndex};

/// A hash that spreads like a real one.
fn hash(of: u64) -> u64 {
    (of + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn hashes(of: impl IntoIterator<Item = u64>) -> Vec<u64> {
    of.into_iter().map(hash).collect()
}

fn overlaps(index: &PrefixIndex, hashes: &[u64]) -> BTreeMap<Holder, u32> {
    let mut overlaps = Overlaps::default();
    index.overlaps(hashes, &mut overlaps);
    overlaps.iter().collect()
}

#[derive(Clone, Debug)]
enum Action {
    Attach,
    Store(prop::sample::Index, Vec<u64>),
    Remove(prop::sample::Index, Vec<u64>),
    Retire(prop::sample::Index),
    Sweep(usize),
}

/// Few blocks and few holders, so that sharing happens often.
fn action() -> impl Strategy<Value = Action> {
    let blocks = || prop::collection::vec(0_u64..12, 0..6);
    prop_oneof![
        2 => Just(Action::Attach),
        6 => (any::<prop::sample::Index>(), blocks()).prop_map(|(holder, blocks)| Action::Store(holder, blocks)),
        3 => (any::<prop::sample::Index>(), blocks()).prop_map(|(holder, blocks)| Action::Remove(holder, blocks)),
        1 => any::<prop::sample::Index>().prop_map(Action::Retire),
        2 => (0_usize..1500).prop_map(Action::Sweep),
    ]
}

fn expected(model: &BTreeMap<Holder, BTreeSet<u64>>, prompt: &[u64]) -> BTreeMap<Holder, u32> {
    let num_blocks =
        |held: &BTreeSet<u64>| prompt.iter().take_while(|block| held.contains(block)).count() as u32;
    let overlap = |(holder, held): (&Holder, &BTreeSet<u64>)| (*holder, num_blocks(held));
    model
        .iter()
        .map(overlap)
        .filter(|(_, num_blocks)| *num_blocks > 0)
        .collect()
}

proptest! {
    #[test]
    fn the_index_equals_a_map_of_sets(
        actions in prop::collection::vec(action(), 1..120),
        prompt in prop::collection::vec(0_u64..12, 1..8),
    ) {
        let mut index = PrefixIndex::new(1000);
        let mut model: BTreeMap<Holder, BTreeSet<u64>> = BTreeMap::new();
        for action in actions {
            let holder = |at: prop::sample::Index| model.keys().nth(at.index(model.len().max(1))).copied();
            match action {
                Action::Attach => {
                    let holder = index.attach().unwrap();
                    prop_assert!(model.insert(holder, BTreeSet::new()).is_none());
                }
                Action::Store(at, blocks) => if let Some(holder) = holder(at) {
                    index.store(holder, &hashes(blocks.iter().copied()));
                    model.get_mut(&holder).unwrap().extend(blocks);
                }
                Action::Remove(at, blocks) => if let Some(holder) = holder(at) {
                    index.remove(holder, &hashes(blocks.iter().copied()));
                    model.get_mut(&holder).unwrap().retain(|block| !blocks.contains(block));
                }
                Action::Retire(at) => if let Some(holder) = holder(at) {
                    index.retire(holder);
                    model.remove(&holder);
                }
                Action::Sweep(num_shards) => index.sweep(num_shards),
            }
            let prompt_hashes = hashes(prompt.iter().copied());
            prop_assert_eq!(overlaps(&index, &prompt_hashes), expected(&model, &prompt));
            for (holder, held) in &model {
                prop_assert_eq!(index.num_blocks(*holder) as usize, held.len());
            }
        }
        index.sweep(2000);
        prop_assert_eq!(index.num_pairs(), model.values().map(BTreeSet::len).sum::<usize>());
        for (holder, held) in &model {
            index.remove(*holder, &hashes(held.iter().copied()));
        }
        prop_assert_eq!(index.num_pairs(), 0);
    }
}

#[test]
fn a_full_index_refuses_and_counts() {
    let mut index = PrefixIndex::new(3);
    let holder = index.attach().unwrap();
    index.store(holder, &hashes(0..5));
    assert_eq!((index.num_pairs(), index.num_refused()), (3, 2));
    index.store(holder, &hashes(0..3));
    assert_eq!((index.num_pairs(), index.num_refused()), (3, 2));
    index.remove(holder, &hashes(0..1));
    index.store(holder, &hashes(4..5));
    assert_eq!((index.num_pairs(), index.num_refused()), (3, 2));
}

#[test]
fn a_retired_number_is_used_again_only_when_nothing_is_left_of_it() {
    let mut index = PrefixIndex::new(10_000);
    let old = index.attach().unwrap();
    index.store(old, &hashes(0..5000));
    index.retire(old);
    assert_eq!(overlaps(&index, &hashes(0..3)), BTreeMap::new());
    let other = index.attach().unwrap();
    assert_ne!(other, old);
    index.sweep(1023);
    assert_ne!(index.attach().unwrap(), old);
    index.sweep(1);
    assert_eq!(index.num_pairs(), 0);
    assert_eq!(index.attach().unwrap(), old);
    assert_eq!(overlaps(&index, &hashes(0..3)), BTreeMap::new());
}

#[test]
fn nothing_is_stored_for_a_retired_number() {
    let mut index = PrefixIndex::new(100);
    let holder = index.attach().unwrap();
    index.retire(holder);
    index.store(holder, &hashes(0..3));
    assert_eq!(index.num_pairs(), 0);
}

#[test]
fn holders_run_out_and_come_back() {
    let mut index = PrefixIndex::new(100);
    let first = index.attach().unwrap();
    for _ in 1..65_535 {
        index.attach().unwrap();
    }
    assert_eq!(index.attach(), None);
    index.retire(first);
    index.sweep(1024);
    assert_eq!(index.attach(), Some(first));
}

#[test]
fn blocks_of_the_same_holders_share_one_set() {
    let mut index = PrefixIndex::new(1_000_000);
    let holders: Vec<Holder> = (0..100).map(|_| index.attach().unwrap()).collect();
    for holder in &holders {
        index.store(*holder, &hashes(0..1000));
    }
    // 100,000 pairs: as many as 1,000 entries and a few sets.
    assert!(index.num_bytes() < 500_000, "{}", index.num_bytes());
    assert_eq!(overlaps(&index, &hashes(0..1000)).len(), 100);
}

#[test]
fn large_sets_are_told_apart_and_shrink_again() {
    let mut index = PrefixIndex::new(1_000_000);
    let holders: Vec<Holder> = (0..300).map(|_| index.attach().unwrap()).collect();
    for (place, holder) in holders.iter().enumerate() {
        // Holder p has the blocks that p is no multiple of, and block 0.
        index.store(
            *holder,
            &hashes((0..20).filter(|block| *block == 0 || !(place as u64).is_multiple_of(block + 1))),
        );
    }
    let found = overlaps(&index, &hashes(0..20));
    for (place, holder) in holders.iter().enumerate() {
        let expected = (1..20)
            .take_while(|block| !(place as u64).is_multiple_of(block + 1))
            .count() as u32
            + 1;
        assert_eq!(found[holder], expected, "{place}");
    }
    for holder in &holders[2..] {
        index.remove(*holder, &hashes(0..20));
    }
    assert_eq!(overlaps(&index, &hashes(0..20)).len(), 2);
}
