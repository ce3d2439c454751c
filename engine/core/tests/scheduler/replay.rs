//! Recordings: what was recorded runs again with the same plans and events, from wherever it begins, through bytes and back.

use kvasir_engine_core::{Event, ReplayError, StepPlan, Trace, TraceError};
use proptest::prelude::*;

use crate::harness::{Engine, request, roomy};
use crate::laws::{World, action, setup};

fn replayed(trace: &Trace) -> (Vec<StepPlan>, Vec<Event>) {
    let (mut plans, mut events) = (Vec::new(), Vec::new());
    trace
        .replay(|plan, new_events| {
            plans.push(plan.clone());
            events.extend_from_slice(new_events);
        })
        .expect("the recording's start is possible");
    (plans, events)
}

/// Replays what an engine has recorded, and compares it with what the engine did last. Gives the number of plans.
fn assert_replays(engine: &Engine, trace: &Trace) -> usize {
    let (plans, events) = replayed(trace);
    let text = |plans: &[StepPlan]| plans.iter().map(ToString::to_string).collect::<String>();
    assert_eq!(
        text(&plans),
        text(&engine.plans[engine.plans.len() - plans.len()..])
    );
    if let Some(&end) = engine.events_at_plan.last().filter(|_| !plans.is_empty()) {
        assert_eq!(events, engine.events[end - events.len()..end]);
    }
    plans.len()
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
    assert_eq!(assert_replays(&engine, &trace), engine.plans.len());
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
fn an_old_recording_begins_later_with_the_cache_as_it_was() {
    let mut engine = Engine::new(roomy());
    engine.scheduler.record(40);
    for round in 0..10 {
        work(&mut engine, 5 * (round % 2));
    }
    let trace = engine.scheduler.trace().expect("it records");
    assert_eq!(trace.inputs.len(), 40);
    let num_plans = assert_replays(&engine, &trace);
    assert!(num_plans > 0 && num_plans < engine.plans.len());
    assert!(engine.scheduler.stats().prefix_cache_hits > 0);
}

#[test]
fn a_server_that_never_rests_has_a_recording_with_a_start() {
    let mut engine = Engine::new(roomy());
    engine.scheduler.record(10);
    engine.submit(request([1], 50));
    for _ in 0..20 {
        engine.step();
    }
    let trace = engine.scheduler.trace().expect("it records");
    assert_eq!(trace.inputs.len(), 10);
    assert_eq!(assert_replays(&engine, &trace), 5);
}

#[test]
fn a_recording_begins_in_the_middle_of_work() {
    let mut engine = Engine::new(roomy());
    engine.submit(request(0..9, 20));
    engine.step();
    assert!(engine.start());
    engine.scheduler.record(1000);
    engine.finish();
    work(&mut engine, 0);
    let trace = engine.scheduler.trace().expect("it records");
    assert_eq!(assert_replays(&engine, &trace), engine.plans.len() - 2);
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
fn a_start_that_does_not_fit_the_pool_is_refused() {
    let mut engine = Engine::new(roomy());
    work(&mut engine, 0);
    engine.scheduler.record(100);
    work(&mut engine, 0);
    let mut trace = engine.scheduler.trace().expect("it records");
    trace.config.num_blocks -= 1;
    let refused = trace.replay(|_, _| ());
    assert!(matches!(refused, Err(ReplayError::Start(_))), "{refused:?}");
}

#[test]
fn a_recording_that_would_take_all_memory_is_refused() {
    let mut engine = Engine::new(roomy());
    engine.scheduler.record(100);
    let mut trace = engine.scheduler.trace().expect("it records");
    trace.config.num_blocks = 1 << 25;
    let (value, limit) = (1 << 25, 1 << 24);
    let name = "num_blocks";
    assert_eq!(
        trace.replay(|_, _| ()),
        Err(ReplayError::TooLarge { name, value, limit })
    );
}

proptest! {
    #[test]
    fn a_recording_cut_anywhere_replays_byte_for_byte_through_bytes_and_back(
        setup in setup(),
        begin in 0_usize..60,
        limit in 1_usize..150,
        actions in proptest::collection::vec(action(), 0..100),
    ) {
        let mut world = World::new(setup);
        for (index, action) in actions.into_iter().enumerate() {
            if index == begin {
                world.engine.scheduler.record(limit);
            }
            world.act(action)?;
        }
        let bytes = world.engine.scheduler.trace().map(|trace| trace.to_bytes());
        if let Some(bytes) = bytes {
            let trace = Trace::from_bytes(&bytes).expect("it was written just now");
            prop_assert_eq!(trace.to_bytes(), bytes);
            assert_replays(&world.engine, &trace);
        }
        let engine = world.settle()?;
        if let Some(trace) = engine.scheduler.trace() {
            assert_replays(&engine, &trace);
        }
    }

    #[test]
    fn hostile_bytes_never_panic(
        setup in setup(),
        actions in proptest::collection::vec(action(), 1..40),
        limit in 1_usize..20,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        tail in proptest::collection::vec(any::<u8>(), 0..2),
    ) {
        let mut world = World::new(setup);
        world.engine.scheduler.record(limit);
        for action in actions {
            world.act(action)?;
        }
        let mut bytes = world.engine.scheduler.trace().expect("it records").to_bytes();
        for (at, value) in changes {
            let at = 16 + at.index(bytes.len() - 16);
            bytes[at] = value;
        }
        bytes.extend(tail);
        if let Ok(trace) = Trace::from_bytes(&bytes)
            && trace.config.num_blocks < 1000
        {
            drop(trace.replay(|_, _| ()));
        }
    }
}
