//! Block events tell exactly what can be found, from the beginning on or on top of a snapshot (rule B9).

use std::collections::BTreeSet;

use kvasir_cache_key::{BlockHash, CacheRoot, block_hash};
use kvasir_engine_core::{
    BlockEvent, BlockEventDetail, BlockEvents, CachedBlock, GroupId, Policies, SchedulerConfig,
};
use proptest::prelude::*;

use crate::harness::{Engine, request, roomy};
use crate::laws::{Action, World, action, setup};

fn policies(block_events: BlockEventDetail) -> Policies {
    Policies {
        block_events,
        ..Policies::vllm()
    }
}

/// Room for two blocks.
fn small() -> SchedulerConfig {
    SchedulerConfig {
        num_blocks: 3,
        ..roomy()
    }
}

fn take(engine: &mut Engine) -> BlockEvents {
    let mut events = BlockEvents::new();
    engine.scheduler.take_block_events(&mut events);
    events
}

/// The keys of the first `count` blocks of a prompt that counts up from `first`.
fn chain(first: u32, count: u32) -> Vec<BlockHash> {
    let mut parent = CacheRoot([0; 32]).as_parent();
    let starts = (0..count).map(|index| first + 4 * index);
    let keys = starts.map(|start| {
        parent = block_hash(&parent, &(start..start + 4).collect::<Vec<_>>());
        parent
    });
    keys.collect()
}

#[test]
fn events_tell_what_can_be_found_and_for_whom() {
    let mut engine = Engine::with_policies(small(), policies(BlockEventDetail::Hashes));
    let first = engine.submit(request(0..5, 1));
    engine.run();
    let group = GroupId(0);
    let hash = chain(0, 1)[0];
    let stored = |seq, hash| BlockEvent::Stored {
        seq,
        group,
        hash,
        parent: None,
        index: 0,
        tokens: 0..0,
    };
    assert_eq!(take(&mut engine).events, [stored(first, hash)]);
    let second = engine.submit(request(100..106, 1));
    engine.run();
    let removed = BlockEvent::Removed {
        seq: second,
        group,
        hash,
    };
    assert_eq!(
        take(&mut engine).events,
        [removed, stored(second, chain(100, 1)[0])]
    );
    assert!(engine.scheduler.reset_prefix_cache());
    assert_eq!(take(&mut engine).events, [BlockEvent::AllCleared]);
}

#[test]
fn a_stored_block_names_its_parent_its_place_and_if_asked_its_tokens() {
    let mut engine = Engine::with_policies(roomy(), policies(BlockEventDetail::Tokens));
    let seq = engine.submit(request(10..23, 1));
    engine.run();
    let taken = take(&mut engine);
    let hashes = chain(10, 3);
    let stored = |index: usize| BlockEvent::Stored {
        seq,
        group: GroupId(0),
        hash: hashes[index],
        parent: index.checked_sub(1).map(|before| hashes[before]),
        index: index as u32,
        tokens: 4 * index..4 * index + 4,
    };
    assert_eq!(taken.events, [stored(0), stored(1), stored(2)]);
    assert_eq!(taken.tokens, (10..22).collect::<Vec<_>>());
}

#[test]
fn a_second_block_of_known_content_is_no_event_and_neither_is_the_loss_of_one_of_two() {
    let mut engine = Engine::with_policies(
        SchedulerConfig {
            num_blocks: 5,
            ..roomy()
        },
        policies(BlockEventDetail::Hashes),
    );
    // Both start in one step, so neither finds the other's block.
    for _ in 0..2 {
        engine.submit(request(0..5, 1));
    }
    engine.run();
    assert_eq!(take(&mut engine).events.len(), 1);
    assert_eq!(engine.scheduler.stats().num_cached_blocks, 2);
    // Three of four blocks: one of the two is overwritten.
    engine.submit(request(100..112, 1));
    engine.run();
    let events = take(&mut engine).events;
    assert!(
        events
            .iter()
            .all(|event| matches!(event, BlockEvent::Stored { .. })),
        "{events:?}"
    );
}

#[test]
fn nothing_is_recorded_unless_asked_and_turning_it_off_drops_the_rest() {
    let mut engine = Engine::new(roomy());
    engine.submit(request(0..9, 1));
    engine.run();
    assert_eq!(take(&mut engine), BlockEvents::new());
    engine.scheduler.set_block_events(BlockEventDetail::Tokens);
    engine.submit(request(100..109, 1));
    engine.run();
    engine.scheduler.set_block_events(BlockEventDetail::Off);
    assert_eq!(take(&mut engine), BlockEvents::new());
}

#[test]
fn a_snapshot_has_each_content_once() {
    let mut engine = Engine::new(roomy());
    for _ in 0..3 {
        engine.submit(request(0..9, 1));
    }
    engine.run();
    assert_eq!(engine.scheduler.stats().num_cached_blocks, 6);
    let cached: Vec<_> = engine.scheduler.cached_blocks().collect();
    let expected = chain(0, 2).into_iter().map(|hash| CachedBlock {
        group: GroupId(0),
        hash,
    });
    assert_eq!(cached, expected.collect::<Vec<_>>());
}

#[test]
fn contents_can_be_looked_at_one_by_one_in_the_order_of_the_snapshot() {
    let mut engine = Engine::new(roomy());
    engine.submit(request(0..13, 1));
    engine.run();
    let one_by_one: Vec<_> = (0..)
        .map_while(|index| engine.scheduler.cached_block(index))
        .collect();
    assert_eq!(one_by_one.len(), 3);
    assert_eq!(one_by_one, engine.scheduler.cached_blocks().collect::<Vec<_>>());
}

/// What a reader of events knows.
#[derive(Default)]
struct Reader(BTreeSet<CachedBlock>);

impl Reader {
    /// `strict`: nothing is stored twice, and nothing removed that isn't there.
    fn apply(&mut self, taken: &BlockEvents, strict: bool) -> Result<(), TestCaseError> {
        for event in &taken.events {
            match event {
                BlockEvent::Stored {
                    group, hash, parent, ..
                } => {
                    let is_new = self.0.insert(CachedBlock {
                        group: *group,
                        hash: *hash,
                    });
                    prop_assert!(is_new || !strict, "stored twice");
                    prop_assert_ne!(*parent, Some(*hash));
                }
                BlockEvent::Removed { group, hash, .. } => {
                    let was_known = self.0.remove(&CachedBlock {
                        group: *group,
                        hash: *hash,
                    });
                    prop_assert!(was_known || !strict, "removed what was not there");
                }
                BlockEvent::AllCleared => self.0.clear(),
            }
        }
        Ok(())
    }

    fn begin(engine: &Engine) -> Self {
        Self(engine.scheduler.cached_blocks().collect())
    }
}

/// The tokens of a stored block have its hash, behind its parent.
fn hashes_match(taken: &BlockEvents) -> Result<(), TestCaseError> {
    for event in &taken.events {
        if let BlockEvent::Stored {
            hash,
            parent: Some(parent),
            tokens,
            ..
        } = event
        {
            prop_assert_eq!(*hash, block_hash(parent, &taken.tokens[tokens.clone()]));
        }
    }
    Ok(())
}

proptest! {
    /// One reader from the beginning on, one who comes later and takes what is pending first, and one who doesn't.
    #[test]
    fn events_and_a_snapshot_with_the_events_after_it_give_what_can_be_found(
        setup in setup(),
        before in proptest::collection::vec(action(), 0..60),
        unread in proptest::collection::vec(action(), 0..10),
        after in proptest::collection::vec(action(), 0..60),
        is_on_from_the_start in any::<bool>(),
    ) {
        let mut world = World::new(setup);
        let mut taken = BlockEvents::new();
        let mut first = Reader::default();
        if is_on_from_the_start {
            world.engine.scheduler.set_block_events(BlockEventDetail::Tokens);
        }
        for action in before {
            world.act(action)?;
            world.engine.scheduler.take_block_events(&mut taken);
            first.apply(&taken, true)?;
        }
        if !is_on_from_the_start {
            prop_assert!(first.0.is_empty());
            world.engine.scheduler.set_block_events(BlockEventDetail::Tokens);
            first = Reader::begin(&world.engine);
        }
        let mut second = Reader::begin(&world.engine);
        for action in unread {
            world.act(action)?;
        }
        // Events from before this snapshot are still to come.
        let mut third = Reader::begin(&world.engine);
        for action in after.into_iter().chain([Action::Finish]) {
            world.engine.scheduler.take_block_events(&mut taken);
            hashes_match(&taken)?;
            first.apply(&taken, true)?;
            second.apply(&taken, true)?;
            third.apply(&taken, false)?;
            let found = Reader::begin(&world.engine);
            prop_assert_eq!(&first.0, &found.0);
            prop_assert_eq!(&second.0, &found.0);
            prop_assert_eq!(&third.0, &found.0);
            prop_assert_eq!(world.engine.scheduler.cached_blocks().len(), found.0.len());
            world.act(action)?;
        }
    }
}
