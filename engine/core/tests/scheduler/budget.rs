//! How a step's token budget is shared: decode first, chunks of prompts, continuous batching.

use kvasir_engine_core::SchedulerConfig;

use crate::harness::{Engine, request, roomy};

fn budget_of(tokens: u32) -> SchedulerConfig {
    SchedulerConfig {
        max_num_batched_tokens: tokens,
        max_num_seqs: 4,
        max_num_active_seqs: 4,
        ..roomy()
    }
}

/// R0 decodes when R1 arrives with nine tokens, under a budget of six: the founding document's trace, and case T1.
#[test]
fn the_token_budget_trace_of_the_founding_document() {
    let mut engine = Engine::new(budget_of(6));
    let r0 = engine.submit(request([100], 50));
    engine.step();
    let r1 = engine.submit(request(200..209, 50));
    engine.step();
    assert_eq!(engine.shares(), [(r0, 1), (r1, 5)]);
    assert_eq!(engine.output(r1).len(), 0);
    engine.step();
    assert_eq!(engine.shares(), [(r0, 1), (r1, 4)]);
    // The step that finishes a prompt already gives its first token.
    assert_eq!(engine.output(r1).len(), 1);
    engine.step();
    assert_eq!(engine.shares(), [(r0, 1), (r1, 1)]);
    assert_eq!(engine.output(r1).len(), 2);
    assert_eq!(engine.output(r0).len(), 4);
}

#[test]
fn with_the_prefix_cached_the_same_prompt_is_done_in_one_step() {
    let mut engine = Engine::new(budget_of(6));
    // A B C D E F G H are computed by R0, which goes on decoding.
    let r0 = engine.submit(request([1, 2, 3, 4, 5, 6, 7, 8], 50));
    while engine.output(r0).is_empty() {
        assert!(engine.step());
    }
    let r1 = engine.submit(request([1, 2, 3, 4, 5, 6, 30, 31, 32], 50));
    engine.step();
    assert_eq!(engine.shares(), [(r0, 1), (r1, 5)]);
    assert_eq!(engine.cached_tokens(r1), [4]);
    assert_eq!(engine.output(r1).len(), 1);
}

/// Case T2.
#[test]
fn the_threshold_cuts_two_long_prompts_into_equal_pieces() {
    let mut engine = Engine::new(SchedulerConfig {
        long_prefill_token_threshold: 4,
        ..budget_of(16)
    });
    let a = engine.submit(request(100..110, 1));
    let b = engine.submit(request(200..210, 1));
    let mut shares = Vec::new();
    while engine.step() {
        shares.push(engine.shares());
    }
    assert_eq!(shares, [[(a, 4), (b, 4)], [(a, 4), (b, 4)], [(a, 2), (b, 2)]]);
}

/// Case T3.
#[test]
fn the_threshold_leaves_a_prompt_that_is_alone_whole() {
    let mut engine = Engine::new(SchedulerConfig {
        long_prefill_token_threshold: 4,
        ..budget_of(16)
    });
    let only = engine.submit(request(100..110, 1));
    engine.step();
    assert_eq!(engine.shares(), [(only, 10)]);
}

#[test]
fn a_prompt_longer_than_the_budget_is_computed_in_chunks_and_samples_once() {
    let mut engine = Engine::new(budget_of(7));
    let id = engine.submit(request(0..20, 1));
    let mut shares = Vec::new();
    while engine.step() {
        shares.push(engine.shares()[0].1);
    }
    assert_eq!(shares, [7, 7, 6]);
    assert_eq!(engine.output(id).len(), 1);
}

#[test]
fn sequences_join_and_leave_between_steps() {
    let mut engine = Engine::new(budget_of(16));
    let first = engine.submit(request([100], 2));
    engine.step();
    let second = engine.submit(request([200], 3));
    engine.step();
    assert_eq!(engine.shares(), [(first, 1), (second, 1)]);
    engine.step();
    assert_eq!(engine.shares(), [(second, 1)]);
}

#[test]
fn a_full_budget_keeps_later_sequences_waiting_in_order() {
    let mut engine = Engine::new(budget_of(4));
    let ids: Vec<_> = (0..3)
        .map(|i| engine.submit(request(100 * i..100 * i + 4, 1)))
        .collect();
    for id in ids {
        engine.step();
        assert_eq!(engine.shares(), [(id, 4)]);
    }
}

#[test]
fn decodes_keep_their_pace_beside_a_long_prompt() {
    let mut engine = Engine::new(budget_of(5));
    let decoding: Vec<_> = (0..3).map(|i| engine.submit(request([100 + i], 100))).collect();
    engine.step();
    engine.submit(request(500..540, 1));
    for tokens in 2..12 {
        engine.step();
        assert!(
            decoding.iter().all(|&id| engine.output(id).len() == tokens),
            "a stream stalled behind a prompt"
        );
        assert_eq!(
            engine.plan.num_tokens(),
            5,
            "the prompt gets what is left of the budget"
        );
    }
}
