//! Aborts: at any moment, any number of times, and the blocks are free within a step.

use kvasir_engine_core::{Event, FinishReason, SeqId};

use crate::harness::{Engine, request, roomy};

#[test]
fn a_waiting_sequence_leaves_the_queue_at_once() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request(0..9, 5));
    engine.abort(id);
    engine.check();
    assert_eq!(engine.finish_reason(id), Some(FinishReason::Abort));
    assert!(!engine.step());
}

#[test]
fn a_running_sequence_frees_its_blocks_at_once_between_steps() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request(0..9, 5));
    engine.step();
    assert_eq!(engine.num_used_blocks(), 3);
    engine.abort(id);
    engine.check();
    assert_eq!(engine.num_used_blocks(), 0);
}

#[test]
fn blocks_that_a_step_in_flight_writes_to_are_parked_until_it_completes() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request(0..9, 5));
    let other = engine.submit(request(50..53, 5));
    assert!(engine.start());
    engine.abort(id);
    engine.check();
    assert_eq!(engine.finish_reason(id), Some(FinishReason::Abort));
    assert_eq!(engine.num_used_blocks(), 4);
    engine.finish();
    engine.check();
    assert_eq!(engine.num_used_blocks(), 1);
    assert_eq!(engine.output(id), []);
    assert_eq!(engine.output(other).len(), 1);
}

#[test]
fn the_blocks_of_a_step_that_fails_after_an_abort_are_free_too() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request(0..9, 5));
    assert!(engine.start());
    engine.abort(id);
    engine.fail();
    engine.check();
    assert_eq!(engine.num_used_blocks(), 0);
    assert_eq!(engine.finish_reason(id), Some(FinishReason::Abort));
}

#[test]
fn aborting_twice_or_an_unknown_sequence_says_nothing() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request(0..9, 1));
    engine.run();
    engine.events.clear();
    engine.abort(id);
    engine.abort(SeqId(999));
    assert_eq!(engine.events, []);
    engine.check();
}

#[test]
fn one_event_tells_of_an_abort() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request(0..9, 5));
    engine.step();
    engine.events.clear();
    engine.abort(id);
    assert_eq!(
        engine.events,
        [Event::Finished {
            seq: id,
            reason: FinishReason::Abort
        }]
    );
}

#[test]
fn the_prefix_of_an_aborted_sequence_can_still_be_found() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request(0..9, 5));
    engine.step();
    engine.abort(id);
    let next = engine.submit(request(0..9, 1));
    engine.step();
    assert_eq!(engine.cached_tokens(next), [8]);
}

#[test]
fn what_an_aborted_step_was_writing_can_not_be_found() {
    let mut engine = Engine::new(roomy());
    let id = engine.submit(request(0..9, 5));
    assert!(engine.start());
    engine.abort(id);
    engine.finish();
    assert_eq!(engine.scheduler.stats().num_cached_blocks, 0);
}
