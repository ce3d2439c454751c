//! The hit against trying every length.

use kvasir_cache_key::CacheRoot;
use proptest::prelude::*;

use super::{Hits, content};
use crate::block::{BlockPool, Content};
use crate::config::SchedulerConfig;
use crate::ids::{GroupId, Micros, SeqId};
use crate::kv_group::KvGroup;
use crate::policy::Policies;
use crate::request::{Request, RequestOptions, StopConditions};
use crate::scheduler::KvLayout;
use crate::sequence::Sequence;

const BLOCK_SIZE: u32 = 2;

fn sequence(num_blocks: u32, num_groups: usize) -> Sequence {
    let request = Request {
        prompt: (0..=num_blocks * BLOCK_SIZE).collect(),
        stop: StopConditions::default(),
        priority: 0,
        cache_root: CacheRoot([0; 32]),
        reads_prefix_cache: true,
    };
    Sequence::new(
        SeqId(0),
        Micros(0),
        request,
        RequestOptions::default(),
        1,
        num_groups,
    )
}

/// A pool that has cached the blocks of the sequence for which `cached[group][index]` is true.
fn pool(seq: &mut Sequence, cached: &[Vec<bool>]) -> BlockPool {
    let mut pool = BlockPool::new(100);
    for (group, blocks) in cached.iter().enumerate() {
        for (index, _) in (0..).zip(blocks).filter(|(_, is_cached)| **is_cached) {
            let mut table = Vec::new();
            assert!(pool.allocate(1, &mut table));
            let content = Content {
                group: GroupId(group as u8),
                hash: seq.block_hash(index, BLOCK_SIZE),
                parent: None,
                index,
                tokens: &[],
            };
            pool.publish(&table[0], content.key(), || content);
            pool.release_all(&mut table);
        }
    }
    pool
}

/// Whether a group has what the position behind a hit of this length reads.
fn serves(group: KvGroup, cached: &[bool], num_blocks: usize) -> bool {
    let next = num_blocks * BLOCK_SIZE as usize;
    let is_read = |index: usize| match group {
        KvGroup::Full => true,
        KvGroup::Window { positions } => (index + 1) * BLOCK_SIZE as usize + positions as usize > next + 1,
    };
    (0..num_blocks).all(|index| cached[index] || !is_read(index))
}

fn groups() -> impl Strategy<Value = Vec<KvGroup>> {
    let window = (1_u32..9).prop_map(|positions| KvGroup::Window { positions });
    proptest::collection::vec(prop_oneof![Just(KvGroup::Full), window], 1..4)
}

const NUM_BLOCKS: u32 = 8;

proptest! {
    #[test]
    fn the_hit_is_the_longest_one_that_serves_every_group(
        groups in groups(),
        cached in proptest::collection::vec(
            proptest::collection::vec(proptest::bool::weighted(0.8), NUM_BLOCKS as usize), 3),
    ) {
        let config = SchedulerConfig { groups: groups.clone(), block_size: BLOCK_SIZE, ..SchedulerConfig::default() };
        let layout = KvLayout::new(&config, &Policies::vllm());
        let mut seq = sequence(NUM_BLOCKS, groups.len());
        let pool = pool(&mut seq, &cached[..groups.len()]);
        let mut hits = Hits::default();
        let run = hits.find_runs(&mut seq, &pool, &layout, NUM_BLOCKS);
        let found = hits.find_tails(&mut seq, &pool, &layout, run);
        hits.cut_runs(found, &layout);

        let all_serve = |len: &usize| groups.iter().zip(&cached).all(|(&group, cached)| serves(group, cached, *len));
        let longest = (0..=NUM_BLOCKS as usize).rev().find(all_serve);
        prop_assert_eq!(Some(found as usize), longest);

        // What was found on the way is what will be shared.
        for (at, &group) in groups.iter().enumerate() {
            let first = group.num_behind(found * BLOCK_SIZE, BLOCK_SIZE);
            let expected: Vec<_> = (first..found)
                .map(|index| pool.find(&content(at, seq.block_hash(index, BLOCK_SIZE))))
                .collect();
            let shared: Vec<_> = if group == KvGroup::Full {
                let place = layout.full().iter().position(|&full| full == at).expect("it is a full group");
                hits.runs.iter().skip(place).step_by(layout.full().len()).map(|&cached| Some(cached)).collect()
            } else {
                hits.tails.iter().rev().filter(|(of, _)| *of == at).map(|&(_, cached)| Some(cached)).collect()
            };
            prop_assert_eq!(shared, expected);
        }
    }
}
