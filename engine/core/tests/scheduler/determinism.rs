//! Equal inputs give equal plans and events.

use kvasir_engine_core::{Event, SchedulerConfig, StepPlan};

use crate::harness::{Engine, request, roomy};

fn run() -> (Vec<StepPlan>, Vec<Event>) {
    let config = SchedulerConfig {
        num_blocks: 12,
        max_num_batched_tokens: 9,
        max_num_seqs: 6,
        max_num_active_seqs: 5,
        long_prefill_token_threshold: 5,
        ..roomy()
    };
    let mut engine = Engine::new(config);
    let ids: Vec<_> = (0..8)
        .map(|i| engine.submit(request((0..5 + i).map(|t| t % (2 + i % 2)), 9)))
        .collect();
    for _ in 0..6 {
        engine.step();
    }
    engine.abort(ids[2]);
    engine.run();
    assert!(
        engine.scheduler.stats().num_preemptions > 0,
        "the run should have it all"
    );
    assert!(
        engine.scheduler.stats().prefix_cache_hits > 0,
        "the run should have it all"
    );
    (engine.plans, engine.events)
}

#[test]
fn the_same_run_twice_gives_equal_plans_and_events() {
    assert_eq!(run(), run());
}
