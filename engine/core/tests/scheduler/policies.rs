//! The law of each policy that isn't vLLM's default, and of those of its rules that need a switch.

use kvasir_engine_core::{
    AdapterId, ConfigError, Deferral, Event, FinishReason, Micros, Order, Policies, Request, RequestOptions,
    Scheduler, SchedulerConfig, SeqId, TenantId, Victim,
};

use crate::harness::{Engine, request, roomy};

fn of_priority(priority: i64, first: u32, len: u32, max_tokens: u32) -> Request {
    Request {
        priority,
        ..request(first..first + len, max_tokens)
    }
}

fn preempted(engine: &Engine) -> Vec<SeqId> {
    let seqs = engine.events.iter().filter_map(|event| match event {
        Event::Preempted { seq } => Some(*seq),
        _ => None,
    });
    seqs.collect()
}

fn started(engine: &Engine) -> Vec<SeqId> {
    let seqs = engine.events.iter().filter_map(|event| match event {
        Event::Scheduled { seq, .. } => Some(*seq),
        _ => None,
    });
    seqs.collect()
}

fn one_at_a_time() -> SchedulerConfig {
    SchedulerConfig {
        max_num_active_seqs: 1,
        ..roomy()
    }
}

/// Without a cache, `num_blocks` usable blocks of four tokens.
fn pool_of(num_blocks: u32) -> SchedulerConfig {
    SchedulerConfig {
        num_blocks: num_blocks + 1,
        enable_prefix_caching: false,
        ..roomy()
    }
}

fn by_priority() -> Policies {
    Policies {
        order: Order::Priority,
        ..Policies::vllm()
    }
}

/// Rule S15.
#[test]
fn the_priority_queue_goes_by_priority_then_arrival_then_id() {
    let mut engine = Engine::with_policies(one_at_a_time(), by_priority());
    let late = engine.submit(of_priority(5, 0, 1, 1));
    let first = engine.submit(of_priority(-1, 10, 1, 1));
    let middle = engine.submit(of_priority(2, 20, 1, 1));
    let second = engine.submit(of_priority(-1, 30, 1, 1));
    engine.run();
    assert_eq!(started(&engine), [first, second, middle, late]);
}

/// Rule S6: the victim may be one that this step has scheduled already; what it got is given back.
#[test]
fn the_lowest_class_gives_way_even_if_the_step_had_scheduled_it() {
    let mut engine = Engine::with_policies(pool_of(2), by_priority());
    let low = engine.submit(of_priority(9, 0, 2, 9));
    engine.step();
    let high = engine.submit(of_priority(0, 100, 3, 9));
    engine.step();
    // `low` is first in the running set and has room for another token; `high` needs a second block in a later step.
    while preempted(&engine).is_empty() {
        assert!(engine.step());
    }
    assert_eq!(preempted(&engine), [low]);
    assert_eq!(engine.shares(), [(high, 1)]);
    engine.run();
    assert_eq!((engine.output(low).len(), engine.output(high).len()), (7, 6));
}

#[test]
fn whoever_stands_behind_a_sequence_for_which_an_earlier_one_gave_way_still_runs_in_that_step() {
    let mut engine = Engine::with_policies(pool_of(3), by_priority());
    let low = engine.submit(of_priority(9, 0, 1, 9));
    engine.step();
    let high = engine.submit(of_priority(0, 100, 3, 9));
    let behind = engine.submit(of_priority(0, 200, 1, 9));
    while preempted(&engine).is_empty() {
        assert!(engine.step());
    }
    assert_eq!(preempted(&engine), [low]);
    assert_eq!(engine.shares(), [(high, 1), (behind, 1)]);
}

/// Case T11 as vLLM has it.
#[test]
fn without_seat_preemption_a_higher_class_waits_for_a_seat() {
    let mut engine = Engine::with_policies(one_at_a_time(), by_priority());
    let low = engine.submit(of_priority(9, 0, 1, 5));
    engine.step();
    engine.submit(of_priority(0, 10, 1, 1));
    engine.step();
    assert_eq!(engine.shares(), [(low, 1)]);
    assert_eq!(preempted(&engine), []);
}

/// Cases T11 and C20 as they should be: the wait of the high class doesn't depend on the low one.
#[test]
fn with_seat_preemption_a_higher_class_starts_in_the_next_step() {
    let policies = Policies {
        seat_preemption: true,
        ..by_priority()
    };
    let mut engine = Engine::with_policies(one_at_a_time(), policies);
    let low = engine.submit(of_priority(9, 0, 1, 5));
    engine.step();
    let high = engine.submit(of_priority(0, 10, 1, 2));
    engine.step();
    assert_eq!(
        (preempted(&engine), engine.shares()),
        (vec![low], vec![(high, 1)])
    );
    let equal = engine.submit(of_priority(0, 20, 1, 1));
    engine.step();
    assert_eq!(preempted(&engine), [low], "equals don't displace each other");
    engine.run();
    assert_eq!(started(&engine), [low, high, equal, low]);
    assert_eq!(engine.output(low).len(), 5);
}

#[test]
fn a_higher_class_takes_blocks_from_the_lowest_class_first() {
    let policies = Policies {
        seat_preemption: true,
        ..by_priority()
    };
    let mut engine = Engine::with_policies(pool_of(4), policies);
    let middle = engine.submit(of_priority(5, 0, 8, 9));
    let low = engine.submit(of_priority(9, 100, 6, 9));
    engine.step();
    engine.submit(of_priority(0, 200, 5, 1));
    engine.step();
    assert_eq!(preempted(&engine)[0], low);
    assert!(!preempted(&engine)[..1].contains(&middle));
    engine.run();
    assert_eq!(engine.output(middle).len(), 9);
}

#[test]
fn seat_preemption_without_classes_is_refused() {
    let policies = Policies {
        seat_preemption: true,
        ..Policies::vllm()
    };
    let refused = Scheduler::with_policies(roomy(), policies).expect_err("there are no classes");
    assert_eq!(
        refused,
        ConfigError::NeedsPriorityOrder {
            name: "seat_preemption"
        }
    );
}

/// The harness's clock moves a millisecond per step.
fn blocked_head(bound: u64) -> (Engine, SeqId, SeqId) {
    let policies = Policies {
        ageing_bound: Some(Micros(1000 * bound)),
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(pool_of(10), policies);
    let holder = engine.submit(request(0..20, 12));
    engine.step();
    let large = engine.submit(request(100..130, 1));
    (engine, holder, large)
}

#[test]
fn small_sequences_pass_a_large_one_that_does_not_fit() {
    let (mut engine, holder, large) = blocked_head(100);
    let small = engine.submit(request(500..502, 2));
    engine.step();
    assert_eq!(engine.shares(), [(holder, 1), (small, 2)]);
    engine.run();
    assert_eq!(engine.output(large).len(), 1);
}

#[test]
fn after_the_ageing_bound_nobody_passes_any_more() {
    let (mut engine, holder, large) = blocked_head(2);
    let mut passed = Vec::new();
    for i in 0..6 {
        let small = engine.submit(request(500 + 10 * i..502 + 10 * i, 1));
        engine.step();
        passed.push(engine.shares().iter().any(|&(seq, _)| seq == small));
        assert!(engine.shares().contains(&(holder, 1)));
    }
    assert_eq!(passed, [true, true, false, false, false, false]);
    engine.run();
    let started = started(&engine);
    let at = |id| started.iter().position(|&seq| seq == id);
    assert_eq!(
        at(large),
        Some(3),
        "it starts before everybody that waited with it: {started:?}"
    );
}

/// A large one blocks the head, with `num_more` behind it that don't fit either.
fn blocked_heads(num_more: u32) -> Engine {
    let (mut engine, ..) = blocked_head(1000);
    for i in 0..num_more {
        engine.submit(request(1000 * i..1000 * i + 30, 1));
    }
    engine
}

/// Which bounds the time that a step takes.
#[test]
fn thirty_two_are_tried_behind_one_that_does_not_fit() {
    for (num_more, starts) in [(31, true), (32, false)] {
        let mut engine = blocked_heads(num_more);
        let small = engine.submit(request([7], 1));
        engine.step();
        assert_eq!(
            engine.shares().iter().any(|&(seq, _)| seq == small),
            starts,
            "{num_more} in between don't fit"
        );
    }
}

#[test]
fn any_number_may_pass_one_that_does_not_fit_if_they_fit_themselves() {
    let policies = Policies {
        ageing_bound: Some(Micros(1_000_000)),
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(pool_of(100), policies);
    engine.submit(request(0..200, 12));
    engine.step();
    let large = engine.submit(request(1000..1300, 1));
    for i in 0..40 {
        engine.submit(request([i], 1));
    }
    engine.step();
    assert_eq!(engine.plan.seqs.len(), 41);
    assert!(!engine.shares().iter().any(|&(seq, _)| seq == large));
}

#[test]
fn without_an_ageing_bound_nobody_passes() {
    let mut engine = Engine::new(pool_of(10));
    let holder = engine.submit(request(0..20, 12));
    engine.step();
    engine.submit(request(100..130, 1));
    engine.submit(request(500..502, 2));
    engine.step();
    assert_eq!(engine.shares(), [(holder, 1)]);
}

/// Case C22: with the pool nearly full, a resumed sequence isn't preempted again at once.
#[test]
fn the_reserve_spares_a_preempted_sequence_from_being_preempted_again_at_once() {
    let preemptions = |readmission_reserve| {
        let policies = Policies {
            readmission_reserve,
            ..Policies::vllm()
        };
        let mut engine = Engine::with_policies(pool_of(30), policies);
        for i in 0..8 {
            engine.submit(request(100 * i..100 * i + 12, 40));
        }
        engine.run();
        engine.scheduler.stats().num_preemptions
    };
    assert!(
        preemptions(1) < preemptions(0),
        "{} of {}",
        preemptions(1),
        preemptions(0)
    );
}

#[test]
fn the_reserve_does_not_apply_when_nothing_runs() {
    let policies = Policies {
        readmission_reserve: 1000,
        watermark: 1000,
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(pool_of(4), policies);
    let ids: Vec<_> = (0..3)
        .map(|i| engine.submit(request(100 * i..100 * i + 12, 4)))
        .collect();
    engine.run();
    assert!(ids.iter().all(|&id| engine.output(id).len() == 4));
}

#[test]
fn extreme_policies_and_options_overflow_nothing() {
    let policies = Policies {
        readmission_reserve: u32::MAX,
        watermark: u32::MAX,
        fair_share: true,
        ageing_bound: Some(Micros(u64::MAX)),
        ..by_priority()
    };
    let mut engine = Engine::with_policies(pool_of(4), policies);
    engine.clock = u64::MAX - 100_000;
    let ids: Vec<_> = [i64::MIN, 0, i64::MAX]
        .into_iter()
        .map(|priority| {
            let options = RequestOptions {
                weight: if priority == 0 { 0 } else { u32::MAX },
                deadline: Some(Micros(u64::MAX)),
                ..RequestOptions::default()
            };
            engine.submit_with(of_priority(priority, 0, 9, 6), options)
        })
        .collect();
    engine.run();
    assert!(ids.iter().all(|&id| engine.output(id).len() == 6));
}

/// Rule S13.
#[test]
fn the_watermark_keeps_blocks_free_beside_running_sequences() {
    let policies = Policies {
        watermark: 3,
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(pool_of(6), policies);
    let first = engine.submit(request(0..8, 1));
    engine.submit(request(100..108, 1));
    engine.step();
    assert_eq!(engine.shares(), [(first, 8)]);
}

#[test]
fn the_one_with_the_fewest_computed_positions_gives_way_by_cost() {
    let policies = Policies {
        victim: Victim::CheapestToRestore,
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(pool_of(7), policies);
    let cheap = engine.submit(request(0..4, 12));
    let dear = engine.submit(request(100..120, 8));
    engine.run();
    assert_eq!(
        preempted(&engine),
        [cheap],
        "the later one has more to lose than {dear:?}'s rival"
    );
    assert_eq!((engine.output(cheap).len(), engine.output(dear).len()), (12, 8));
}

fn computed_by(engine: &Engine, tenants: &[Vec<SeqId>]) -> Vec<usize> {
    let computed = |ids: &Vec<SeqId>| {
        let parts = engine.plans.iter().flat_map(|plan| &plan.seqs);
        parts
            .filter(|part| ids.contains(&part.seq))
            .map(|part| part.tokens.len())
            .sum()
    };
    tenants.iter().map(computed).collect()
}

#[test]
fn tenants_with_work_compute_tokens_in_proportion_to_their_weights() {
    let policies = Policies {
        fair_share: true,
        ..Policies::vllm()
    };
    let config = SchedulerConfig {
        max_num_active_seqs: 2,
        ..roomy()
    };
    let mut engine = Engine::with_policies(config, policies);
    let mut tenants = vec![Vec::new(); 2];
    // The first tenant floods the queue before the second one comes.
    for tenant in 0..2_u32 {
        for i in 0..60 {
            let options = RequestOptions {
                tenant: TenantId(tenant),
                weight: 1 + 2 * tenant,
                ..RequestOptions::default()
            };
            let first = 10_000 * tenant + 100 * i;
            tenants[tenant as usize].push(engine.submit_with(request(first..first + 5, 4), options));
        }
    }
    for _ in 0..100 {
        engine.step();
    }
    let computed = computed_by(&engine, &tenants);
    let ratio = computed[1] as f64 / computed[0] as f64;
    assert!(
        (2.7..3.3).contains(&ratio),
        "weights 1 and 3, tokens {computed:?}"
    );
}

#[test]
fn a_tenant_that_was_away_has_saved_nothing_up() {
    let policies = Policies {
        fair_share: true,
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(one_at_a_time(), policies);
    let of = |tenant| RequestOptions {
        tenant: TenantId(tenant),
        ..RequestOptions::default()
    };
    let busy: Vec<_> = (0..40)
        .map(|i| engine.submit_with(request(100 * i..100 * i + 4, 1), of(0)))
        .collect();
    for _ in 0..20 {
        engine.step();
    }
    let back: Vec<_> = (0..20)
        .map(|i| engine.submit_with(request(9000 + 100 * i..9004 + 100 * i, 1), of(1)))
        .collect();
    for _ in 0..10 {
        engine.step();
    }
    let computed = computed_by(&engine, &[busy[20..].to_vec(), back]);
    assert!(
        computed[0].abs_diff(computed[1]) <= 4,
        "both get the same from now on: {computed:?}"
    );
}

/// Case T14.
#[test]
fn a_sequence_whose_adapter_has_no_room_is_passed_by_others() {
    let policies = Policies {
        max_active_adapters: Some(1),
        ..Policies::vllm()
    };
    let mut engine = Engine::with_policies(roomy(), policies);
    let with = |adapter| RequestOptions {
        adapter: Some(AdapterId(adapter)),
        ..RequestOptions::default()
    };
    let first = engine.submit_with(request([1], 3), with(1));
    let second = engine.submit_with(request([2], 1), with(2));
    let third = engine.submit_with(request([3], 1), with(1));
    let without = engine.submit(request([4], 1));
    engine.step();
    assert_eq!(engine.shares(), [(first, 1), (third, 1), (without, 1)]);
    engine.run();
    assert_eq!(started(&engine).last(), Some(&second));
}

/// Rule S19.
#[test]
fn a_deferred_sequence_blocks_nobody_and_then_takes_its_own_place() {
    let mut engine = Engine::new(one_at_a_time());
    let running = engine.submit(request([1], 3));
    let deferral = Some(Deferral::StructuredOutput);
    let deferred = engine.submit_with(
        request([2], 1),
        RequestOptions {
            deferral,
            ..RequestOptions::default()
        },
    );
    let behind = engine.submit(request([3], 1));
    engine.step();
    let stats = engine.scheduler.stats();
    assert_eq!((stats.num_waiting, stats.num_deferred), (2, 1));
    engine.scheduler.undefer(deferred);
    engine.scheduler.undefer(SeqId(77));
    engine.run();
    assert_eq!(started(&engine), [running, deferred, behind]);
}

#[test]
fn deferred_sequences_alone_give_no_step_and_can_be_aborted() {
    let mut engine = Engine::new(roomy());
    let deferral = Some(Deferral::Adapter);
    let id = engine.submit_with(
        request([2], 1),
        RequestOptions {
            deferral,
            ..RequestOptions::default()
        },
    );
    assert!(!engine.step());
    engine.abort(id);
    engine.check();
    assert_eq!(engine.scheduler.stats().num_deferred, 0);
}

#[test]
fn a_deadline_ends_a_sequence_wherever_it_is() {
    let mut engine = Engine::new(one_at_a_time());
    let deadline = Some(Micros(3000));
    let options = RequestOptions {
        deadline,
        ..RequestOptions::default()
    };
    let running = engine.submit_with(request([1], 100), options);
    let waiting = engine.submit_with(request([2], 100), options);
    let patient = engine.submit(request([3], 1));
    engine.run();
    assert_eq!(engine.output(running).len(), 2, "steps at 1 ms and 2 ms");
    for id in [running, waiting] {
        assert_eq!(engine.finish_reason(id), Some(FinishReason::Deadline));
    }
    assert_eq!(engine.finish_reason(patient), Some(FinishReason::Length));
}

/// Case T4.
#[test]
fn an_adaptive_threshold_is_an_equal_share_of_the_budget() {
    let policies = Policies {
        adaptive_prefill_threshold: true,
        ..Policies::vllm()
    };
    let config = SchedulerConfig {
        long_prefill_token_threshold: 4,
        max_num_batched_tokens: 16,
        max_num_seqs: 4,
        max_num_active_seqs: 4,
        ..roomy()
    };
    let mut engine = Engine::with_policies(config, policies);
    let [a, b] = [0, 100].map(|first| engine.submit(request(first..first + 10, 1)));
    engine.step();
    assert_eq!(engine.shares(), [(a, 8), (b, 8)]);
}

/// Rules S3 and S5.
#[test]
fn drafts_cost_input_but_no_token_budget() {
    let policies = Policies {
        draft_slots: 3,
        max_num_scheduled_tokens: Some(10),
        ..Policies::vllm()
    };
    let config = SchedulerConfig {
        max_num_batched_tokens: 16,
        max_num_seqs: 4,
        max_num_active_seqs: 4,
        ..roomy()
    };
    let mut engine = Engine::with_policies(config, policies);
    let ids = [0, 100, 200].map(|first| engine.submit(request(first..first + 6, 1)));
    // Each costs its positions from 10 and three more from 16: 6 + 3 leave 4 and 7; 4 + 3 leave nothing.
    engine.step();
    assert_eq!(engine.shares(), [(ids[0], 6), (ids[1], 4)]);
}
