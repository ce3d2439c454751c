//! Recordings: what was recorded runs again with the same plans, from the start or from a moment of rest, through bytes and back.

use kvasir_engine_core::{Input, ReplayError, StepPlan, Trace, TraceError};
use proptest::prelude::*;

use crate::harness::{Engine, request, roomy};
use crate::laws::{World, action, config, setup};

fn replayed(trace: &Trace) -> Vec<StepPlan> {
    let mut plans = Vec::new();
    trace
        .replay(|plan, _| plans.push(plan.clone()))
        .expect("the recording has a start");
    plans
}

/// Two sequences that share a prefix, to the end.
fn work(engine: &mut Engine, seed: u32) {
    engine.submit(request(seed..seed + 9, 5));
    engine.submit(request(seed..seed + 11, 3));
    engine.run();
}

#[test]
fn a_recording_from_the_start_gives_the_same_plans() {
    let mut engine = Engine::new(roomy());
    engine.scheduler.record(1000);
    work(&mut engine, 0);
    let trace = engine.scheduler.trace().expect("it records");
    assert_eq!(replayed(&trace), engine.plans);
}

#[test]
fn nothing_is_recorded_without_being_asked() {
    let mut engine = Engine::new(roomy());
    work(&mut engine, 0);
    assert_eq!(engine.scheduler.trace(), None);
    engine.scheduler.record(5);
    engine.scheduler.record(0);
    assert_eq!(engine.scheduler.trace(), None);
}

#[test]
fn an_old_recording_begins_anew_at_a_moment_of_rest_with_the_cache_as_it_was() {
    let mut engine = Engine::new(roomy());
    engine.scheduler.record(40);
    for round in 0..10 {
        work(&mut engine, 5 * (round % 2));
    }
    let trace = engine.scheduler.trace().expect("it records");
    assert!(trace.inputs.len() <= 40);
    let plans = replayed(&trace);
    assert!(!plans.is_empty() && plans.len() < engine.plans.len());
    assert_eq!(plans, engine.plans[engine.plans.len() - plans.len()..]);
    assert!(engine.scheduler.stats().prefix_cache_hits > 0);
}

#[test]
fn a_recording_that_finds_no_rest_says_so_and_recovers_at_the_next_one() {
    let mut engine = Engine::new(roomy());
    engine.scheduler.record(10);
    engine.submit(request([1], 50));
    for _ in 0..20 {
        engine.step();
    }
    let trace = engine.scheduler.trace().expect("it records");
    assert_eq!(trace.inputs.len(), 10);
    assert_eq!(
        trace.replay(|_, _| ()),
        Err(ReplayError::NoStart { num_inputs: 10 })
    );
    engine.run();
    let before = engine.plans.len();
    engine.submit(request([2], 2));
    engine.run();
    let trace = engine.scheduler.trace().expect("it records");
    assert!(engine.plans[before..].ends_with(&replayed(&trace)));
}

#[test]
fn bytes_that_are_no_recording_are_refused() {
    assert_eq!(Trace::from_bytes(b"nothing"), Err(TraceError::Magic));
    let mut engine = Engine::new(roomy());
    engine.scheduler.record(100);
    work(&mut engine, 0);
    let bytes = engine.scheduler.trace().expect("it records").to_bytes();
    for len in 16..bytes.len() {
        let cut = Trace::from_bytes(&bytes[..len]);
        assert!(matches!(cut, Err(TraceError::CutOff { .. })), "{len}: {cut:?}");
    }
    let longer = [&bytes[..], b"x"].concat();
    let at = bytes.len();
    assert_eq!(
        Trace::from_bytes(&longer),
        Err(TraceError::Trailing { at, len: 1 })
    );
}

#[test]
fn an_image_that_does_not_fit_the_pool_is_refused() {
    let mut engine = Engine::new(roomy());
    work(&mut engine, 0);
    engine.scheduler.record(100);
    work(&mut engine, 0);
    let mut trace = engine.scheduler.trace().expect("it records");
    trace.config.num_blocks -= 1;
    assert_eq!(
        trace.replay(|_, _| ()),
        Err(ReplayError::Image { num_blocks: 1000 })
    );
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_recording_replays_byte_for_byte_through_bytes_and_back(
        setup in setup(),
        limit in 20_usize..200,
        actions in proptest::collection::vec(action(), 0..100),
    ) {
        let mut world = World::new(setup);
        world.engine.scheduler.record(limit);
        for action in actions {
            world.act(action)?;
        }
        let engine = world.settle()?;
        let trace = engine.scheduler.trace().expect("it records");
        let bytes = trace.to_bytes();
        let trace = Trace::from_bytes(&bytes).expect("it was written just now");
        prop_assert_eq!(trace.to_bytes(), bytes);
        if trace.start.is_some() {
            let text = |plans: &[StepPlan]| plans.iter().map(ToString::to_string).collect::<String>();
            let plans = replayed(&trace);
            prop_assert_eq!(text(&plans), text(&engine.plans[engine.plans.len() - plans.len()..]));
        }
    }

    #[test]
    fn hostile_bytes_never_panic(
        at in any::<proptest::sample::Index>(),
        value in any::<u8>(),
        tail in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut engine = Engine::new(crate::harness::ten_blocks());
        engine.scheduler.record(30);
        work(&mut engine, 0);
        let mut bytes = engine.scheduler.trace().expect("it records").to_bytes();
        let at = 16 + at.index(bytes.len() - 16);
        bytes[at] = value;
        bytes.extend(tail);
        if let Ok(trace) = Trace::from_bytes(&bytes)
            && trace.config.num_blocks < 1000
            && trace.inputs.iter().all(|input| matches!(input, Input::Schedule(_) | Input::Complete(..)))
        {
            drop(trace.replay(|_, _| ()));
        }
    }
}
