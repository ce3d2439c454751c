use proptest::prelude::*;
use std::collections::BTreeSet;

use super::*;

fn batch<'a>(seq: u64, stored: &'a [u64], removed: &'a [u64]) -> KvBatch<'a> {
    KvBatch {
        seq,
        is_cleared: false,
        stored,
        removed,
    }
}

/// Blocks of a prompt that the router thinks engine 0 has.
fn overlap(router: &mut Router, prompt: &[u64]) -> u32 {
    let of_revision = revision("r");
    let choice = choose_with(router, at(1), |request| request.hashes = prompt, &of_revision).unwrap();
    router.finish(choice.ticket, Outcome::Completed, at(1));
    choice.overlap_blocks
}

#[test]
fn a_gap_asks_for_one_snapshot_and_keeps_what_is_known() {
    let (mut router, _) = router(RoutingPolicy::PrefixAware, 1);
    let prompt = chain(1, 4);
    assert_eq!(
        router.apply(&address(0, 1), &batch(0, &prompt[..2], &[])),
        Followed::Applied
    );
    assert_eq!(
        router.apply(&address(0, 1), &batch(0, &prompt, &[])),
        Followed::Ignored
    );
    assert_eq!(
        router.apply(&address(0, 1), &batch(2, &prompt, &[])),
        Followed::NeedSnapshot
    );
    assert_eq!(
        router.apply(&address(0, 1), &batch(3, &prompt, &[])),
        Followed::AwaitingSnapshot
    );
    assert_eq!(overlap(&mut router, &prompt), 2);
}

#[test]
fn a_snapshot_replaces_what_was_known_when_it_is_complete() {
    let (mut router, _) = router(RoutingPolicy::PrefixAware, 1);
    let (old, new) = (chain(1, 4), chain(2, 4));
    assert_eq!(
        router.apply(&address(0, 1), &batch(5, &old, &[])),
        Followed::NeedSnapshot
    );
    router.begin_snapshot(&address(0, 1), 7);
    router.extend_snapshot(&address(0, 1), &new[..2]);
    assert_eq!(overlap(&mut router, &new), 0);
    router.extend_snapshot(&address(0, 1), &new[2..]);
    assert_eq!(router.finish_snapshot(&address(0, 1)), Followed::Applied);
    assert_eq!((overlap(&mut router, &new), overlap(&mut router, &old)), (4, 0));
    assert_eq!(
        router.apply(&address(0, 1), &batch(7, &old, &[])),
        Followed::Ignored
    );
    assert_eq!(
        router.apply(&address(0, 1), &batch(8, &[], &new[3..])),
        Followed::Applied
    );
    assert_eq!(overlap(&mut router, &new), 3);
}

#[test]
fn a_snapshot_older_than_what_is_known_is_ignored() {
    let (mut router, _) = router(RoutingPolicy::PrefixAware, 1);
    let prompt = chain(1, 4);
    for seq in 0..4 {
        router.apply(
            &address(0, 1),
            &batch(seq, &prompt[seq as usize..=seq as usize], &[]),
        );
    }
    router.begin_snapshot(&address(0, 1), 1);
    router.extend_snapshot(&address(0, 1), &prompt[..2]);
    assert_eq!(router.finish_snapshot(&address(0, 1)), Followed::Ignored);
    assert_eq!(overlap(&mut router, &prompt), 4);
}

#[test]
fn a_snapshot_that_begins_again_drops_its_first_part() {
    let (mut router, _) = router(RoutingPolicy::PrefixAware, 1);
    let prompt = chain(1, 4);
    router.begin_snapshot(&address(0, 1), 1);
    router.extend_snapshot(&address(0, 1), &prompt);
    router.begin_snapshot(&address(0, 1), 2);
    router.extend_snapshot(&address(0, 1), &prompt[..1]);
    router.finish_snapshot(&address(0, 1));
    assert_eq!(overlap(&mut router, &prompt), 1);
    assert_eq!(router.finish_snapshot(&address(0, 1)), Followed::Ignored);
    assert_eq!(router.extend_snapshot(&address(0, 1), &prompt), Followed::Ignored);
}

#[test]
fn a_clearing_batch_drops_everything_before_it() {
    let (mut router, _) = router(RoutingPolicy::PrefixAware, 1);
    let (old, new) = (chain(1, 4), chain(2, 4));
    router.apply(&address(0, 1), &batch(0, &old, &[]));
    let clearing = KvBatch {
        is_cleared: true,
        ..batch(1, &new, &[])
    };
    assert_eq!(router.apply(&address(0, 1), &clearing), Followed::Applied);
    assert_eq!((overlap(&mut router, &old), overlap(&mut router, &new)), (0, 4));
}

#[test]
fn an_older_epoch_is_not_heard_and_a_newer_one_begins_empty() {
    let (mut router, _) = router(RoutingPolicy::PrefixAware, 1);
    let prompt = chain(1, 4);
    router.apply(&address(0, 1), &batch(0, &prompt, &[]));
    router
        .join(address(0, 2), &revision("r"), CAPACITY, at(1))
        .unwrap();
    assert_eq!(overlap(&mut router, &prompt), 0);
    assert_eq!(
        router.apply(&address(0, 1), &batch(1, &prompt, &[])),
        Followed::UnknownEngine
    );
    assert_eq!(router.begin_snapshot(&address(0, 1), 1), Followed::UnknownEngine);
    assert_eq!(
        router.apply(&address(0, 2), &batch(0, &prompt[..1], &[])),
        Followed::Applied
    );
    assert_eq!(overlap(&mut router, &prompt), 1);
    let refused = router.join(address(0, 1), &revision("r"), CAPACITY, at(2));
    assert!(matches!(refused, Err(JoinError::OldEpoch { known: 2, .. })));
    assert_eq!(router.engines(at(2)).count(), 1);
}

#[test]
fn what_an_engine_held_goes_when_it_leaves() {
    let (mut router, engines) = router(RoutingPolicy::PrefixAware, 2);
    router.apply(&address(0, 1), &batch(0, &chain(1, 400), &[]));
    router.begin_snapshot(&address(0, 1), 5);
    router.extend_snapshot(&address(0, 1), &chain(2, 400));
    router.leave(engines[0]);
    for _ in 0..32 {
        router.tick(at(1));
    }
    assert_eq!(router.index().num_pairs(), 0);
}

proptest! {
    #[test]
    fn who_follows_with_lost_batches_and_snapshots_ends_with_the_engines_blocks(
        steps in prop::collection::vec((prop::collection::vec(0_u64..20, 0..5), any::<bool>(), 0_u8..4), 1..60),
    ) {
        let (mut router, _) = router(RoutingPolicy::PrefixAware, 1);
        let here = address(0, 1);
        let hash = |block: &u64| address::mix(*block + 1);
        let mut held: BTreeSet<u64> = BTreeSet::new();
        let mut wants_snapshot = false;
        let last = steps.len() as u64 - 1;
        for (seq, (blocks, is_stored, luck)) in steps.into_iter().enumerate() {
            let seq = seq as u64;
            let blocks: BTreeSet<u64> = blocks.into_iter().filter(|block| held.contains(block) != is_stored).collect();
            let hashes: Vec<u64> = blocks.iter().map(hash).collect();
            if is_stored {
                held.extend(blocks);
            } else {
                held.retain(|block| !blocks.contains(block));
            }
            let is_lost = luck == 0 && seq < last;
            let (stored, removed): (&[u64], &[u64]) = if is_stored { (&hashes, &[]) } else { (&[], &hashes) };
            if !is_lost {
                wants_snapshot |= router.apply(&here, &batch(seq, stored, removed)) == Followed::NeedSnapshot;
            }
            if wants_snapshot && (luck == 1 || seq == last) {
                let all: Vec<u64> = held.iter().map(hash).collect();
                router.begin_snapshot(&here, seq);
                for part in all.chunks(3) {
                    router.extend_snapshot(&here, part);
                }
                prop_assert_eq!(router.finish_snapshot(&here), Followed::Applied);
                wants_snapshot = false;
            }
        }
        for block in 0..20 {
            let is_found = overlap(&mut router, &[hash(&block)]) == 1;
            prop_assert_eq!(is_found, held.contains(&block));
        }
    }
}
