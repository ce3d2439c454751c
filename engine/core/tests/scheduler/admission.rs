//! Who may run: the running set's limit, and room for the whole sequence.

use kvasir_engine_core::{FinishReason, Micros, Reject, Scheduler, SchedulerConfig, StepPlan};

use crate::harness::{Engine, expected_output, request, roomy, ten_blocks};

#[test]
fn a_prompt_that_fills_the_pool_exactly_gives_one_token() {
    let mut engine = Engine::new(ten_blocks());
    let id = engine.submit(request(0..160, 5));
    engine.run();
    assert_eq!(engine.output(id).len(), 1);
    assert_eq!(engine.finish_reason(id), Some(FinishReason::Length));
}

/// Cases C16 and C17: a sequence whose output outgrows the pool ends instead of preempting itself for ever.
#[test]
fn a_sequence_that_outgrows_the_pool_ends_by_length() {
    let mut engine = Engine::new(ten_blocks());
    let id = engine.submit(request(0..150, 500));
    engine.run();
    // 160 positions in the pool and a last token that is never computed.
    assert_eq!(engine.output(id).len(), 11);
    assert_eq!(engine.finish_reason(id), Some(FinishReason::Length));
    assert_eq!(engine.num_used_blocks(), 0);
}

#[test]
fn sequences_that_outgrow_the_pool_together_all_end_with_the_output_they_have_alone() {
    let mut engine = Engine::new(ten_blocks());
    let requests: Vec<_> = (0..4).map(|i| request(1000 * i..1000 * i + 50, 500)).collect();
    let ids: Vec<_> = requests
        .iter()
        .map(|request| engine.submit(request.clone()))
        .collect();
    engine.run();
    for (id, request) in ids.into_iter().zip(&requests) {
        let (output, reason) = expected_output(request, &engine.config);
        assert_eq!(
            (engine.output(id), engine.finish_reason(id)),
            (output, Some(reason))
        );
    }
    assert!(
        engine.scheduler.stats().num_preemptions > 0,
        "the case needs preemption to mean something"
    );
}

#[test]
fn the_models_length_bounds_prompt_and_output() {
    let mut engine = Engine::new(SchedulerConfig {
        max_model_len: 20,
        ..roomy()
    });
    let too_long = engine.try_submit(&request(0..20, 1));
    assert_eq!(too_long, Err(Reject::PromptTooLong { len: 20, limit: 19 }));
    let id = engine.submit(request(0..17, 100));
    engine.run();
    assert_eq!(engine.output(id).len(), 3);
    assert_eq!(engine.finish_reason(id), Some(FinishReason::Length));
}

/// Case T15.
#[test]
fn the_running_set_stays_below_its_own_limit() {
    let mut engine = Engine::new(SchedulerConfig {
        max_num_active_seqs: 2,
        max_num_seqs: 8,
        ..roomy()
    });
    let ids: Vec<_> = (0..5).map(|i| engine.submit(request([100 * i], 4))).collect();
    let mut most = 0;
    while engine.step() {
        most = most.max(engine.plan.seqs.len());
    }
    assert_eq!(most, 2);
    assert!(ids.iter().all(|&id| engine.output(id).len() == 4));
}

#[test]
fn admission_reserves_the_whole_prompt_and_not_only_its_first_chunk() {
    // Ten blocks of four tokens; chunks of eight tokens.
    let config = SchedulerConfig {
        num_blocks: 11,
        max_num_batched_tokens: 8,
        max_num_seqs: 8,
        max_num_active_seqs: 8,
        ..roomy()
    };
    let mut engine = Engine::new(config);
    let large = engine.submit(request(100..124, 8));
    for _ in 0..3 {
        engine.step();
    }
    // The large one holds six blocks; four are free; this one needs five, though its first chunk would fit.
    let waits = engine.submit(request(200..220, 1));
    engine.step();
    assert_eq!(engine.shares(), [(large, 1)]);
    assert_eq!(engine.scheduler.stats().num_waiting, 1);
    engine.run();
    assert_eq!(engine.output(waits).len(), 1);
    assert_eq!(engine.scheduler.stats().num_preemptions, 0);
}

#[test]
fn cached_blocks_count_as_room_for_the_sequence_that_shares_them() {
    // Four usable blocks, two of them cached. Each sequence needs three blocks, so alone they would need six.
    let mut engine = Engine::new(SchedulerConfig {
        num_blocks: 5,
        ..roomy()
    });
    let first = engine.submit(request(0..7, 2));
    engine.step();
    engine.step();
    assert_eq!(engine.finish_reason(first), Some(FinishReason::Length));
    let holder = engine.submit(request((0..7).chain(engine.output(first)), 1));
    let sharer = engine.submit(request(
        (0..7)
            .chain(engine.output(first)[..1].iter().copied())
            .chain(50..53),
        1,
    ));
    engine.step();
    assert_eq!(engine.plan.seqs.len(), 2, "both fit only because they share");
    assert_eq!(
        (engine.cached_tokens(holder), engine.cached_tokens(sharer)),
        (vec![8], vec![8])
    );
}

#[test]
fn a_free_cached_block_is_not_counted_twice() {
    // Three usable blocks; two hold the cached prefix and are free. A prompt of the prefix and two more blocks needs four.
    let mut engine = Engine::new(SchedulerConfig {
        num_blocks: 4,
        max_model_len: 13,
        ..roomy()
    });
    let first = engine.submit(request(0..8, 1));
    engine.run();
    assert_eq!(engine.finish_reason(first), Some(FinishReason::Length));
    let blocker = engine.submit(request([90], 3));
    engine.step();
    // Prefix of two free blocks plus one new one: three are needed, two are free.
    let second = engine.submit(request(0..12, 1));
    engine.step();
    assert_eq!(engine.shares(), [(blocker, 1)]);
    engine.run();
    assert_eq!(engine.output(second).len(), 1);
}

#[test]
fn the_head_of_the_queue_ages_on_the_callers_clock() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_num_active_seqs: 1,
        ..roomy()
    })
    .expect("limits work");
    assert_eq!(scheduler.stats().head_age, Micros(0));
    scheduler.submit(Micros(5), request([1], 9)).expect("taken");
    scheduler.submit(Micros(70), request([2], 9)).expect("taken");
    scheduler.schedule(Micros(100), &mut StepPlan::new(), &mut Vec::new());
    assert_eq!(scheduler.stats().head_age, Micros(30));
    // A clock that runs backwards is ignored.
    scheduler.submit(Micros(1), request([3], 9)).expect("taken");
    assert_eq!(scheduler.stats().head_age, Micros(30));
}
