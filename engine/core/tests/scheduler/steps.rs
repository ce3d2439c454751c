//! The life of a step: one at a time, completed with its own outcome, or failed.

use kvasir_engine_core::{
    CompleteError, Event, FinishReason, Micros, SchedulerConfig, SeqId, StepId, StepOutcome,
};

use crate::harness::{Engine, request, roomy};

/// An outcome of the wrong shape for the started step.
fn complete(engine: &mut Engine, step: StepId, sampled: &[(SeqId, u32)]) -> CompleteError {
    let outcome = StepOutcome {
        sampled: sampled.to_vec(),
    };
    let before = engine.events.len();
    let error = engine
        .scheduler
        .complete(step, &outcome, &mut engine.events)
        .expect_err("the outcome is wrong");
    assert_eq!(engine.events.len(), before, "a refused outcome changes nothing");
    engine.check();
    error
}

#[test]
fn nothing_is_planned_while_a_step_is_in_flight() {
    let mut engine = Engine::new(roomy());
    engine.submit(request([1], 2));
    assert!(engine.start());
    engine.submit(request([2], 2));
    assert!(
        !engine
            .scheduler
            .schedule(Micros(9), &mut engine.plan.clone(), &mut Vec::new())
    );
    engine.finish();
    assert!(engine.start());
    assert_eq!(engine.plan.seqs.len(), 2);
}

#[test]
fn steps_are_numbered_from_zero_without_gaps() {
    let mut engine = Engine::new(roomy());
    assert!(!engine.step());
    engine.submit(request([1], 3));
    engine.run();
    assert!(!engine.step());
    engine.submit(request([1], 1));
    engine.run();
    assert!(engine.plans.iter().map(|plan| plan.step.0).eq(0..4));
}

#[test]
fn an_outcome_of_another_step_is_refused() {
    let mut engine = Engine::new(roomy());
    let error = complete(&mut engine, StepId(0), &[]);
    assert_eq!(
        error,
        CompleteError::UnexpectedStep {
            step: StepId(0),
            expected: None
        }
    );
    let id = engine.submit(request([1], 3));
    assert!(engine.start());
    let error = complete(&mut engine, StepId(7), &[(id, 1)]);
    assert_eq!(
        error,
        CompleteError::UnexpectedStep {
            step: StepId(7),
            expected: Some(StepId(0))
        }
    );
    engine.finish();
    let error = complete(&mut engine, StepId(0), &[(id, 1)]);
    assert_eq!(
        error,
        CompleteError::UnexpectedStep {
            step: StepId(0),
            expected: None
        }
    );
}

#[test]
fn an_outcome_with_missing_extra_or_foreign_tokens_is_refused_and_the_right_one_still_taken() {
    let mut engine = Engine::new(roomy());
    let a = engine.submit(request([1], 1));
    let b = engine.submit(request([2], 1));
    assert!(engine.start());
    let step = engine.plan.step;
    for sampled in [vec![], vec![(a, 1)], vec![(a, 1), (b, 1), (b, 2)]] {
        let error = complete(&mut engine, step, &sampled);
        assert_eq!(
            error,
            CompleteError::WrongCount {
                step,
                sampled: sampled.len(),
                expected: 2
            }
        );
    }
    let error = complete(&mut engine, step, &[(b, 1), (a, 1)]);
    assert_eq!(
        error,
        CompleteError::WrongSequence {
            step,
            sampled: b,
            expected: a
        }
    );
    engine.finish();
    assert_eq!(engine.finish_reason(a), Some(FinishReason::Length));
}

#[test]
fn a_failed_step_ends_its_own_sequences_and_the_others_go_on() {
    let config = SchedulerConfig {
        max_num_batched_tokens: 4,
        max_num_seqs: 4,
        max_num_active_seqs: 4,
        ..roomy()
    };
    let mut engine = Engine::new(config);
    let failed = engine.submit(request(100..104, 5));
    let waiting = engine.submit(request(200..204, 5));
    assert!(engine.start());
    engine.fail();
    engine.check();
    assert_eq!(engine.finish_reason(failed), Some(FinishReason::Error));
    assert_eq!(engine.num_used_blocks(), 0);
    engine.run();
    assert_eq!(engine.output(waiting).len(), 5);
}

#[test]
fn what_a_failed_step_wrote_can_not_be_found() {
    let mut engine = Engine::new(roomy());
    engine.submit(request(0..9, 5));
    assert!(engine.start());
    engine.fail();
    let next = engine.submit(request(0..9, 1));
    engine.run();
    assert_eq!(engine.cached_tokens(next), [0]);
}

#[test]
fn failing_a_step_that_is_not_in_flight_is_ignored() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request([1], 3));
    assert!(engine.start());
    engine.scheduler.fail_step(StepId(5), &mut engine.events);
    engine.finish();
    engine.scheduler.fail_step(StepId(0), &mut engine.events);
    assert_eq!(engine.finish_reason(id), None);
    engine.run();
    assert_eq!(engine.output(id).len(), 3);
}

#[test]
fn a_plan_tells_the_change_of_each_block_table_once() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request(0..6, 4));
    engine.run();
    let changes: Vec<_> = engine
        .plans
        .iter()
        .map(|plan| (plan.seqs[0].blocks_from, plan.blocks.len()))
        .collect();
    // Two blocks for six tokens, none for the seventh and eighth, a third one for the ninth.
    assert_eq!(changes, [(0, 2), (2, 0), (2, 0), (2, 1)]);
    assert_eq!(engine.table(id).len(), 3);
}

#[test]
fn counters_tell_prompt_and_output_apart() {
    let mut engine = Engine::new(roomy());
    engine.submit(request(0..6, 4));
    engine.run();
    let stats = engine.scheduler.stats();
    assert_eq!(
        (
            stats.num_steps,
            stats.num_prompt_tokens,
            stats.num_generation_tokens
        ),
        (4, 6, 4)
    );
}

#[test]
fn usage_is_the_share_of_usable_blocks_that_are_held() {
    let mut engine = Engine::new(SchedulerConfig {
        num_blocks: 9,
        ..roomy()
    });
    engine.submit(request(0..5, 4));
    engine.step();
    let stats = engine.scheduler.stats();
    assert_eq!(
        (stats.num_usable_blocks, stats.num_free_blocks, stats.usage),
        (8, 6, 0.25)
    );
    engine.run();
    assert_eq!(engine.scheduler.stats().usage, 0.0);
    assert!(
        engine
            .events
            .iter()
            .any(|event| matches!(event, Event::Finished { .. }))
    );
}
