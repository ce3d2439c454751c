//! What happens when blocks run out: who gives way, and that nothing of it shows in the output.

use kvasir_engine_core::{Event, FinishReason, SchedulerConfig, SeqId};

use crate::harness::{Engine, expected_output, request, roomy};

fn preempted(engine: &Engine) -> Vec<SeqId> {
    let seqs = engine.events.iter().filter_map(|event| match event {
        Event::Preempted { seq } => Some(*seq),
        _ => None,
    });
    seqs.collect()
}

/// Three sequences of four tokens hold all three blocks; each needs another one for its next token.
fn full_pool_of_three() -> (Engine, [SeqId; 3]) {
    let mut engine = Engine::new(SchedulerConfig {
        num_blocks: 4,
        enable_prefix_caching: false,
        ..roomy()
    });
    let ids = [0, 1, 2].map(|i| engine.submit(request(100 * i..100 * i + 4, 6)));
    engine.step();
    assert_eq!(engine.num_used_blocks(), 3);
    (engine, ids)
}

/// Case T9: A needs one block, which C gives; then B is last and needs one for itself.
#[test]
fn the_sequence_that_started_last_gives_way_and_nothing_is_admitted_in_that_step() {
    let (mut engine, [a, b, c]) = full_pool_of_three();
    let newcomer = engine.submit(request([7], 1));
    engine.step();
    assert_eq!(preempted(&engine), [c, b]);
    assert_eq!(engine.shares(), [(a, 1)]);
    // One block is free and would hold the newcomer, but it doesn't pass those that were preempted.
    assert_eq!(engine.cached_tokens(newcomer).len(), 0);
    assert_eq!(engine.scheduler.stats().num_free_blocks, 1);
    assert_eq!(engine.scheduler.stats().num_waiting, 3);
}

#[test]
fn the_preempted_resume_in_the_order_of_their_arrival_before_others() {
    let (mut engine, [_, b, c]) = full_pool_of_three();
    let newcomer = engine.submit(request([7], 1));
    engine.events.clear();
    engine.run();
    let mut started: Vec<SeqId> = Vec::new();
    for event in &engine.events {
        if let Event::Scheduled { seq, .. } = event
            && !started.contains(seq)
        {
            started.push(*seq);
        }
    }
    assert_eq!(started, [b, c, newcomer]);
}

/// Case T13.
#[test]
fn a_preempted_sequence_resumes_with_the_same_tokens_and_sends_none_twice() {
    for caching in [false, true] {
        let mut engine = Engine::new(SchedulerConfig {
            num_blocks: 7,
            enable_prefix_caching: caching,
            ..roomy()
        });
        let requests = [request(100..105, 15), request(200..205, 15)];
        let ids = requests.clone().map(|request| engine.submit(request));
        while engine.output(ids[1]).len() < 7 {
            assert!(engine.step());
        }
        assert_eq!(preempted(&engine), []);
        engine.run();
        assert_eq!(preempted(&engine)[0], ids[1]);
        for (id, request) in ids.iter().zip(&requests) {
            let (output, reason) = expected_output(request, &engine.config);
            assert_eq!(
                (engine.output(*id), engine.finish_reason(*id)),
                (output, Some(reason))
            );
        }
    }
}

#[test]
fn a_resumed_sequence_reads_what_survived_of_its_blocks_and_is_counted_apart() {
    // Seven usable blocks. Both sequences hold three when the first one needs its fourth, then its fifth.
    let mut engine = Engine::new(SchedulerConfig {
        num_blocks: 8,
        ..roomy()
    });
    engine.submit(request(100..109, 10));
    let victim = engine.submit(request(200..209, 10));
    engine.run();
    assert_eq!(preempted(&engine), [victim]);
    let cached = engine.cached_tokens(victim);
    assert_eq!(cached.len(), 2);
    assert!(cached[1] > 0, "nothing survived: {cached:?}");
    let stats = engine.scheduler.stats();
    assert_eq!((stats.prefix_cache_queries, stats.prefix_cache_hits), (18, 0));
    assert_eq!(stats.resumed_cache_hits, u64::from(cached[1]));
    assert_eq!(stats.num_preemptions, 1);
}

#[test]
fn a_resumption_is_reported_as_one() {
    let (mut engine, [a, b, _]) = full_pool_of_three();
    engine.run();
    let resumed = |id: SeqId| {
        let flags = engine.events.iter().filter_map(move |event| match event {
            Event::Scheduled { seq, resumed, .. } if *seq == id => Some(*resumed),
            _ => None,
        });
        flags.collect::<Vec<_>>()
    };
    assert_eq!(resumed(a), [false]);
    assert_eq!(resumed(b)[..2], [false, true]);
}

#[test]
fn the_first_of_the_running_set_is_never_preempted_for_itself() {
    // One usable block beyond what the first needs in the end: the others come and go around it.
    let mut engine = Engine::new(SchedulerConfig {
        num_blocks: 6,
        enable_prefix_caching: false,
        ..roomy()
    });
    let first = engine.submit(request(0..4, 16));
    let others: Vec<_> = (1..4)
        .map(|i| engine.submit(request(100 * i..100 * i + 4, 16)))
        .collect();
    while engine.finish_reason(first).is_none() {
        assert!(engine.step());
        let tokens = engine.output(first).len();
        assert_eq!(tokens, engine.plans.len(), "the first sequence lost a step");
    }
    assert!(!preempted(&engine).contains(&first));
    engine.run();
    assert!(
        others
            .iter()
            .all(|&id| engine.finish_reason(id) == Some(FinishReason::Length))
    );
}
