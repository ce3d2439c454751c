//! Steps planned while others are in flight: placeholders, parked blocks, and the same tokens as one step at a time gives (case C23).

use kvasir_engine_core::{
    Event, FinishReason, Micros, Order, PENDING_TOKEN, Policies, Request, SchedulerConfig, SeqId, StepPlan,
};

use crate::harness::{Engine, expected_output, request, roomy};

fn ahead(config: SchedulerConfig, max_in_flight: u32) -> Engine {
    let policies = Policies {
        max_in_flight,
        ..Policies::vllm()
    };
    Engine::with_policies(config, policies)
}

fn preemptions(engine: &Engine, id: SeqId) -> usize {
    let preempted = |event: &&Event| matches!(event, Event::Preempted { seq } if *seq == id);
    engine.events.iter().filter(preempted).count()
}

#[test]
fn the_token_that_is_being_sampled_is_a_placeholder_in_the_next_plan() {
    let mut engine = ahead(roomy(), 2);
    let id = engine.submit(request(0..6, 3));
    assert!(engine.start());
    assert_eq!(engine.plan.tokens, [0, 1, 2, 3, 4, 5]);
    assert!(engine.start());
    assert_eq!(engine.plan.tokens, [PENDING_TOKEN]);
    let part = &engine.plan.seqs[0];
    assert_eq!(
        (part.first_position, part.output_index, part.samples),
        (6, 1, true)
    );
    engine.finish();
    // The first token is known by now, the second one isn't.
    assert!(engine.start());
    assert_eq!(engine.plan.tokens, [PENDING_TOKEN]);
    assert_eq!(engine.output(id).len(), 1);
}

#[test]
fn no_more_steps_are_in_flight_than_may_be() {
    for max_in_flight in 1..4 {
        let mut engine = ahead(roomy(), max_in_flight);
        engine.submit(request([1], 20));
        for _ in 0..max_in_flight {
            assert!(engine.start());
        }
        let mut plan = StepPlan::new();
        assert!(!engine.scheduler.schedule(Micros(0), &mut plan, &mut Vec::new()));
        engine.finish();
        assert!(engine.start());
    }
}

#[test]
fn nothing_is_planned_behind_the_last_token_that_a_sequence_may_have() {
    let mut engine = ahead(roomy(), 3);
    let id = engine.submit(request([1], 2));
    assert!(engine.start());
    assert!(engine.start());
    assert!(!engine.start(), "the third token is one too many");
    engine.finish();
    engine.finish();
    assert_eq!(engine.output(id).len(), 2);
    assert_eq!(engine.finish_reason(id), Some(FinishReason::Length));
}

#[test]
fn a_sequence_that_ends_early_keeps_its_blocks_until_the_step_ahead_of_it_completes() {
    let mut first = request(0..4, 50);
    let (output, _) = expected_output(&first, &roomy());
    first.stop.eos_token_ids = vec![output[0]];
    let mut engine = ahead(roomy(), 2);
    let id = engine.submit(first);
    assert!(engine.start());
    assert!(engine.start());
    engine.finish();
    engine.check();
    assert_eq!(engine.finish_reason(id), Some(FinishReason::Eos));
    assert_eq!(engine.num_used_blocks(), 2, "the second step writes to them");
    engine.finish();
    engine.check();
    assert_eq!(engine.num_used_blocks(), 0);
    assert_eq!(
        engine.output(id),
        [output[0]],
        "what was sampled behind the end is dropped"
    );
}

#[test]
fn an_aborted_sequence_keeps_its_blocks_until_the_newest_step_completes() {
    let mut engine = ahead(roomy(), 2);
    let id = engine.submit(request(0..9, 9));
    assert!(engine.start());
    assert!(engine.start());
    engine.abort(id);
    engine.check();
    assert_eq!(engine.num_used_blocks(), 3);
    engine.finish();
    engine.check();
    assert_eq!(engine.num_used_blocks(), 3);
    engine.finish();
    engine.check();
    assert_eq!(engine.num_used_blocks(), 0);
    assert_eq!(engine.output(id), []);
}

#[test]
fn a_sequence_that_no_step_in_flight_names_frees_its_blocks_at_once() {
    let config = SchedulerConfig {
        num_blocks: 4,
        enable_prefix_caching: false,
        ..roomy()
    };
    let mut engine = ahead(config, 2);
    let [_, waits, gone] = [1, 4, 4].map(|len| engine.submit(request(0..len, 9)));
    assert!(engine.start());
    // Its block is what the next token of the one in front of it needs, so that one isn't in the second step.
    engine.abort(gone);
    assert!(engine.start());
    assert_eq!(engine.plan.seqs.len(), 1);
    engine.finish();
    assert_eq!((engine.num_in_flight(), engine.num_used_blocks()), (1, 2));
    engine.abort(waits);
    engine.check();
    assert_eq!(engine.num_used_blocks(), 1);
}

/// One block is free, one comes back when the step in flight completes, and one that it holds as well stays with a running sequence.
fn one_free_and_one_due() -> (Engine, SeqId) {
    let config = SchedulerConfig {
        num_blocks: 5,
        ..roomy()
    };
    let policies = Policies {
        max_in_flight: 2,
        ageing_bound: Some(Micros(1_000_000)),
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(config, policies);
    let stays = engine.submit(request(0..5, 9));
    engine.step();
    let sharer = engine.submit(request((0..4).chain([50]), 9));
    assert!(engine.start());
    assert_eq!(engine.cached_tokens(sharer), [4]);
    engine.abort(sharer);
    assert_eq!(engine.num_used_blocks(), 3);
    (engine, stays)
}

#[test]
fn nobody_passes_one_that_fits_as_soon_as_the_steps_in_flight_complete() {
    let (mut engine, stays) = one_free_and_one_due();
    engine.submit(request(100..108, 1));
    engine.submit(request([7], 1));
    assert!(engine.start());
    assert_eq!(engine.shares(), [(stays, 1)]);
}

#[test]
fn a_block_that_others_hold_too_is_not_expected_from_the_steps_in_flight() {
    let (mut engine, stays) = one_free_and_one_due();
    engine.submit(request(100..112, 1));
    let small = engine.submit(request([7], 1));
    assert!(engine.start());
    assert_eq!(engine.shares(), [(stays, 1), (small, 1)]);
}

/// Case C23: what a step in flight samples for a sequence that is preempted meanwhile is delivered, once, and the rest follows.
#[test]
fn preemption_with_a_step_in_flight_loses_and_repeats_no_token() {
    for caching in [false, true] {
        let config = SchedulerConfig {
            num_blocks: 4,
            enable_prefix_caching: caching,
            ..roomy()
        };
        let mut engine = ahead(config, 2);
        let requests = [request(0..4, 8), request(100..104, 8)];
        let ids = requests.clone().map(|request| engine.submit(request));
        engine.run_ahead();
        assert!(preemptions(&engine, ids[1]) > 0, "the case needs a preemption");
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
fn the_blocks_of_a_preempted_sequence_are_not_handed_out_before_its_step_completes() {
    let config = SchedulerConfig {
        num_blocks: 3,
        enable_prefix_caching: false,
        ..roomy()
    };
    let mut engine = ahead(config, 2);
    let [a, b] = [request(0..4, 5), request(100..104, 5)].map(|request| engine.submit(request));
    assert!(engine.start());
    // A needs a second block; B has one and is in flight. A waits for it instead of running into it.
    assert!(!engine.start());
    engine.check();
    assert_eq!(preemptions(&engine, b), 1);
    assert_eq!(engine.num_used_blocks(), 2);
    assert!(!engine.start(), "waiting doesn't preempt anybody else");
    assert_eq!(preemptions(&engine, a), 0);
    engine.finish();
    assert_eq!((engine.output(a).len(), engine.output(b).len()), (1, 1));
    assert!(engine.start());
    assert_eq!(engine.shares(), [(a, 1)]);
}

#[test]
fn a_failed_step_ends_its_sequences_and_what_the_step_ahead_samples_for_them_is_dropped() {
    let mut engine = ahead(roomy(), 2);
    let failed = engine.submit(request(0..4, 5));
    assert!(engine.start());
    let other = engine.submit(request(100..104, 5));
    assert!(engine.start());
    assert_eq!(engine.plan.seqs.len(), 2);
    engine.fail();
    engine.check();
    assert_eq!(engine.finish_reason(failed), Some(FinishReason::Error));
    engine.run_ahead();
    assert_eq!(engine.output(failed), []);
    assert_eq!(engine.output(other).len(), 5);
    assert_eq!(engine.num_used_blocks(), 0);
}

#[test]
fn steps_in_flight_plan_what_one_step_at_a_time_plans_but_for_placeholders() {
    let shares = |max_in_flight| {
        let mut engine = ahead(
            SchedulerConfig {
                max_num_batched_tokens: 7,
                max_num_seqs: 4,
                max_num_active_seqs: 4,
                ..roomy()
            },
            max_in_flight,
        );
        for i in 0..4 {
            engine.submit(request(100 * i..100 * i + 10, 6));
        }
        engine.run_ahead();
        let parts = engine.plans.iter().map(|plan| {
            let parts = plan
                .seqs
                .iter()
                .map(|part| (part.seq, part.first_position, part.tokens.len()));
            parts.collect::<Vec<_>>()
        });
        parts.collect::<Vec<_>>()
    };
    assert_eq!(shares(1), shares(2));
}

#[test]
fn a_preempted_sequence_does_not_resume_while_a_token_of_it_is_in_the_making() {
    let config = SchedulerConfig {
        num_blocks: 9,
        max_num_batched_tokens: 12,
        max_num_seqs: 4,
        max_num_active_seqs: 4,
        enable_prefix_caching: false,
        ..roomy()
    };
    let policies = Policies {
        max_in_flight: 3,
        order: Order::Priority,
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(config, policies);
    let of_priority = |priority, first: u32, len: u32| Request {
        priority,
        ..request(first..first + len, 6)
    };
    let low = engine.submit(of_priority(9, 0, 4));
    assert!(engine.start());
    engine.finish();
    let middle = engine.submit(of_priority(5, 100, 4));
    let high = engine.submit(of_priority(7, 200, 20));
    assert!(engine.start());
    assert_eq!(engine.shares(), [(low, 1), (middle, 4), (high, 7)]);
    // Two blocks are left after the others and `high` needs three: `low` gives way while a step samples for it.
    assert!(engine.start());
    assert_eq!(preemptions(&engine, low), 1);
    engine.abort(high);
    let before = engine.plans.len();
    engine.start();
    assert!(
        engine.plans[before..]
            .iter()
            .flat_map(|plan| &plan.seqs)
            .all(|part| part.seq != low),
        "its next token isn't known"
    );
    engine.check();
    engine.run_ahead();
    let (output, _) = expected_output(&of_priority(9, 0, 4), &engine.config);
    assert_eq!(engine.output(low), output);
}
