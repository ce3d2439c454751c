//! Several KV groups in one manager: full attention, windows, and what they share.

use kvasir_engine_core::{
    BlockEvent, BlockEventDetail, BlockEvents, ConfigError, GroupId, KvGroup, Policies, Reject, Scheduler,
    SchedulerConfig,
};

use crate::harness::{Engine, expected_output, request, roomy};

const fn window(positions: u32) -> KvGroup {
    KvGroup::Window { positions }
}

/// Blocks of four tokens.
fn config(groups: &[KvGroup], num_usable: u32) -> SchedulerConfig {
    SchedulerConfig {
        groups: groups.to_vec(),
        num_blocks: num_usable + 1,
        ..roomy()
    }
}

/// The new entries of the `part`-th sequence of the last plan in a group.
fn new_blocks(engine: &Engine, part: usize, group: u8) -> Vec<u32> {
    let blocks = engine.plan.blocks_of(&engine.plan.seqs[part], GroupId(group));
    blocks.iter().map(|block| block.0).collect()
}

#[test]
fn blocks_behind_the_window_are_free_when_the_step_that_passed_them_completes() {
    let mut engine = Engine::new(config(&[window(5)], 10));
    engine.submit(request(0..12, 10));
    engine.start();
    assert_eq!(new_blocks(&engine, 0, 0), [1, 2, 3]);
    assert_eq!(engine.num_used_blocks(), 3);
    engine.finish();
    // Position 12 reads from 8 on.
    assert_eq!(engine.num_used_blocks(), 1);
    // Four decodes fill block 3; position 16 reads from 12 on.
    for _ in 0..4 {
        engine.step();
    }
    assert_eq!(engine.num_used_blocks(), 1);
    engine.run();
}

#[test]
fn blocks_that_a_window_leaves_can_still_be_found() {
    let mut engine = Engine::new(config(&[window(5)], 10));
    engine.submit(request(0..13, 1));
    engine.run();
    let again = engine.submit(request(0..9, 1));
    engine.run();
    assert_eq!(engine.cached_tokens(again), [8]);
}

#[test]
fn a_hit_in_a_window_group_needs_only_the_blocks_that_the_window_reaches() {
    let mut engine = Engine::new(config(&[window(5)], 6));
    engine.submit(request(0..17, 1));
    engine.run();
    // Takes the two blocks without content, and the second and third block of the prompt.
    engine.submit(request(100..116, 1));
    engine.run();
    let again = engine.submit(request(0..17, 1));
    engine.start();
    assert_eq!(engine.cached_tokens(again), [16]);
    let blocks = new_blocks(&engine, 0, 0);
    assert_eq!(blocks[..4], [0, 0, 0, 4]);
    assert_ne!(blocks[4], 0);
    engine.finish();
    engine.run();
}

#[test]
fn a_hit_ends_where_one_group_has_lost_what_the_others_have() {
    let mut engine = Engine::new(config(&[KvGroup::Full, window(4)], 13));
    engine.submit(request(0..17, 1));
    engine.run();
    // Uses the first three blocks again, so that the fourth ones are lost first: that of the full group before that of the window.
    let shorter = engine.submit(request(0..13, 1));
    engine.run();
    assert_eq!(engine.cached_tokens(shorter), [12]);
    engine.submit(request(100..116, 1));
    engine.run();
    let again = engine.submit(request(0..17, 1));
    engine.run();
    assert_eq!(engine.cached_tokens(again), [12]);
}

#[test]
fn a_window_of_one_position_needs_no_cached_block_to_start_behind_any() {
    let mut engine = Engine::new(config(&[KvGroup::Full, window(1)], 100));
    engine.submit(request(0..17, 1));
    engine.run();
    let again = engine.submit(request(0..17, 1));
    engine.start();
    assert_eq!(engine.cached_tokens(again), [16]);
    assert_eq!(new_blocks(&engine, 0, 1)[..4], [0, 0, 0, 0]);
    assert_ne!(new_blocks(&engine, 0, 1)[4], 0);
    engine.finish();
}

#[test]
fn a_sequence_outgrows_the_pool_if_its_groups_have_windows() {
    let limits = SchedulerConfig {
        max_num_batched_tokens: 64,
        ..config(&[window(8)], 20)
    };
    let mut engine = Engine::new(limits);
    // 80 positions would fill the pool.
    let long = request(0..10, 500);
    let id = engine.submit(long.clone());
    engine.run();
    let (output, reason) = expected_output(&long, &engine.config);
    assert_eq!(output.len(), 500);
    assert_eq!(
        (engine.output(id), engine.finish_reason(id)),
        (output, Some(reason))
    );
}

#[test]
fn a_prompt_that_outgrows_the_pool_is_taken_if_windows_let_it_through_and_runs_in_chunks() {
    let limits = SchedulerConfig {
        max_num_batched_tokens: 64,
        ..config(&[window(8)], 20)
    };
    let mut engine = Engine::new(limits);
    let id = engine.submit(request(0..400, 1));
    engine.run();
    assert_eq!(engine.output(id).len(), 1);
}

#[test]
fn what_never_fits_is_refused_with_a_limit_that_counts_every_group() {
    // A step touches at most ceil((8 + 16 - 2) / 4) + 1 = 7 blocks of the window group, which leaves 13 for 52 positions.
    let limits = SchedulerConfig {
        max_num_batched_tokens: 64,
        max_num_seqs: 4,
        max_num_active_seqs: 4,
        ..config(&[KvGroup::Full, window(8)], 20)
    };
    let policies = Policies {
        max_num_scheduled_tokens: Some(16),
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(limits, policies);
    let refused = engine.try_submit(&request(0..53, 1));
    assert_eq!(
        refused,
        Err(Reject::NeverFits {
            needed: 21,
            usable: 20,
            limit: 52
        })
    );
    let id = engine.submit(request(0..52, 10));
    engine.run();
    assert_eq!(
        engine.output(id).len(),
        1,
        "its output is clipped to what fits, however it is cut into steps"
    );
}

#[test]
fn a_sequence_starts_only_if_all_groups_have_room_for_it() {
    let mut engine = Engine::new(config(&[KvGroup::Full, KvGroup::Full], 9));
    engine.submit(request(0..12, 4));
    let second = engine.submit(request(100..104, 1));
    engine.step();
    // Six blocks for the first one; the two of the second would fit into three, and leave one for the first one's next step: it is preempted.
    assert_eq!(engine.plan.seqs.len(), 2);
    engine.run();
    assert_eq!(engine.output(second).len(), 1);

    let mut engine = Engine::new(config(&[KvGroup::Full, KvGroup::Full], 7));
    engine.submit(request(0..12, 1));
    let second = engine.submit(request(100..104, 1));
    engine.start();
    assert_eq!(
        engine.plan.seqs.len(),
        1,
        "one free block is not enough for two groups"
    );
    assert_eq!(
        engine.num_used_blocks(),
        6,
        "nothing was taken for the second one"
    );
    engine.finish();
    engine.run();
    assert_eq!(engine.output(second).len(), 1);
}

#[test]
fn a_plan_has_an_equally_long_piece_for_each_group_and_no_block_twice() {
    let mut engine = Engine::new(config(&[KvGroup::Full, window(6), KvGroup::Full], 30));
    engine.submit(request(0..10, 3));
    engine.start();
    let pieces: Vec<_> = (0..3).map(|group| new_blocks(&engine, 0, group)).collect();
    assert_eq!(pieces, [[1, 2, 3], [4, 5, 6], [7, 8, 9]]);
    let plan = &engine.plan;
    assert_eq!(plan.num_groups, 3);
    assert!(plan.blocks_of(&plan.seqs[0], GroupId(3)).is_empty());
    assert!(
        plan.to_string().ends_with("blocks 0.. 1 2 3 | 4 5 6 | 7 8 9\n"),
        "{plan}"
    );
    engine.finish();
    engine.run();
}

#[test]
fn sequences_of_one_request_copy_the_last_block_of_their_prompt_in_every_group() {
    let policies = Policies {
        share_group_prompts: true,
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(config(&[KvGroup::Full, window(3)], 40), policies);
    let prompt = request(0..11, 4);
    let ids = engine
        .try_submit_group(&[prompt.clone(), prompt])
        .expect("it fits");
    engine.step();
    engine.start();
    let copies: Vec<_> = engine
        .plan
        .copies
        .iter()
        .map(|copy| (copy.seq, copy.group, copy.num_positions))
        .collect();
    assert_eq!(copies, [(ids[1], GroupId(0), 2), (ids[1], GroupId(1), 2)]);
    assert_eq!(engine.cached_tokens(ids[1]), [10]);
    // Position 10 reads 8 to 10 in the second group: the leader's two blocks in front are no longer there.
    let follower = engine
        .plan
        .seqs
        .iter()
        .position(|part| part.seq == ids[1])
        .expect("it starts");
    assert_eq!(new_blocks(&engine, follower, 1)[..2], [0, 0]);
    engine.finish();
    engine.run();
    assert_eq!(engine.output(ids[0]), engine.output(ids[1]));
}

#[test]
fn nothing_is_shared_with_a_leader_whose_window_has_moved_on() {
    let policies = Policies {
        share_group_prompts: true,
        ..Policies::vllm()
    };
    // One at a time, so the leader decodes while the other one waits for its seat; no cache.
    let limits = SchedulerConfig {
        enable_prefix_caching: false,
        max_num_active_seqs: 2,
        ..config(&[window(3)], 40)
    };
    let mut engine = Engine::with_policies(limits, policies);
    let other = engine.submit(request(500..501, 12));
    let prompt = request(0..11, 20);
    let ids = engine
        .try_submit_group(&[prompt.clone(), prompt])
        .expect("it fits");
    engine.run();
    assert_eq!(engine.cached_tokens(ids[1]), [0]);
    assert_eq!(engine.output(ids[0]), engine.output(ids[1]));
    assert_eq!(engine.output(other).len(), 12);
}

#[test]
fn stored_and_removed_blocks_name_their_group() {
    let policies = Policies {
        block_events: BlockEventDetail::Hashes,
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(config(&[KvGroup::Full, window(4)], 4), policies);
    engine.submit(request(0..5, 1));
    engine.run();
    let mut taken = BlockEvents::new();
    engine.scheduler.take_block_events(&mut taken);
    let group_and_hash = |event: &BlockEvent| match *event {
        BlockEvent::Stored { group, hash, .. } | BlockEvent::Removed { group, hash, .. } => (group, hash),
        BlockEvent::AllCleared => panic!("nothing was cleared"),
    };
    let stored: Vec<_> = taken.events.iter().map(group_and_hash).collect();
    assert_eq!(stored.len(), 2);
    assert_eq!(stored[0].1, stored[1].1, "the tokens are the same");
    assert_eq!((stored[0].0, stored[1].0), (GroupId(0), GroupId(1)));
    // Four blocks, all that there are.
    engine.submit(request(100..106, 1));
    engine.run();
    engine.scheduler.take_block_events(&mut taken);
    let removed = taken
        .events
        .iter()
        .filter(|event| matches!(event, BlockEvent::Removed { .. }));
    let mut removed: Vec<_> = removed.map(group_and_hash).collect();
    removed.sort_unstable();
    assert_eq!(removed, stored);
}

#[test]
fn a_running_sequence_waits_for_blocks_that_a_step_in_flight_leaves_behind() {
    // Ten positions in two-position steps; a step touches at most ceil((3 + 2 - 2) / 1) + 1 = 4 blocks of one position.
    let limits = SchedulerConfig {
        block_size: 1,
        num_blocks: 5,
        max_num_batched_tokens: 2,
        max_num_seqs: 2,
        max_num_active_seqs: 2,
        groups: vec![window(3)],
        ..roomy()
    };
    let policies = Policies {
        max_in_flight: 3,
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(limits, policies);
    let id = engine.submit(request(0..10, 5));
    engine.run_ahead();
    assert_eq!(engine.output(id).len(), 5);
    assert_eq!(engine.scheduler.stats().num_preemptions, 0);
}

#[test]
fn groups_that_can_not_work_are_refused() {
    let refused = |config: SchedulerConfig| Scheduler::new(config).expect_err("it can't work");
    assert_eq!(
        refused(config(&[], 10)),
        ConfigError::TooSmall {
            name: "the number of groups",
            value: 0,
            min: 1
        }
    );
    assert!(matches!(
        refused(config(&[KvGroup::Full; 17], 100)),
        ConfigError::AboveLimit {
            name: "the number of groups",
            value: 17,
            limit: 16,
            ..
        }
    ));
    assert_eq!(
        refused(config(&[window(0)], 10)),
        ConfigError::TooSmall {
            name: "a group's window",
            value: 0,
            min: 1
        }
    );
    assert!(matches!(
        refused(config(&[window(u32::MAX)], 10)),
        ConfigError::AboveLimit {
            name: "a group's window",
            ..
        }
    ));
    assert_eq!(
        refused(config(&[KvGroup::Full; 3], 2)),
        ConfigError::TooSmall {
            name: "num_blocks",
            value: 3,
            min: 4
        }
    );
}

#[test]
fn the_largest_window_behaves_like_full_attention() {
    let plans = |group: KvGroup| {
        let mut engine = Engine::new(config(&[group], 12));
        for first in [0, 0, 3, 0] {
            engine.submit(request(first..first + 14, 6));
        }
        engine.run();
        engine.plans
    };
    assert_eq!(plans(window(1 << 31)), plans(KvGroup::Full));
}
