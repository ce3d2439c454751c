//! Workloads whose outcome can be worked out by hand, and laws over all of them.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests that can't go on is a failed test"
)]

mod harness;
mod laws;
mod recordings;
mod refusals;
mod sweeps;

use harness::{clients, engines, play, rate, synthetic};
use kvasir_engine_core::{Order, Policies, SchedulerConfig};
use kvasir_sim::{
    Arrivals, Conversation, CostModel, Engines, Objectives, Pause, SharedPrefix, Span, Synthetic, Tenant,
    simulate,
};

/// `step` 10 ms, a prompt token 1 ms, a decode 2 ms.
const ROUND: CostModel = CostModel {
    step: 0.010,
    prefill_token: 0.001,
    decode_seq: 0.002,
    context_token: 0.0,
    host: 0.0,
};

fn round(limits: SchedulerConfig) -> Engines {
    Engines {
        limits,
        cost: ROUND,
        ..engines()
    }
}

#[test]
fn a_request_alone_takes_what_its_steps_cost() {
    // Step 1 computes 100 prompt tokens in 110 ms, each of the 4 decodes takes 12 ms.
    let report = play(&round(engines().limits), &clients(1, "100", "5"), 1);
    let p50 = |summary: Option<kvasir_sim::Summary>| summary.unwrap().max;
    assert_eq!(p50(report.ttft_ms), 110.0);
    assert_eq!(p50(report.itl_p99_ms), 12.0);
    assert_eq!(p50(report.tpot_ms), 12.0);
    assert_eq!(p50(report.e2el_ms), 158.0);
    assert_eq!(p50(report.queue_ms), 0.0);
    assert_eq!((report.engine.steps, report.engine.busy), (5, 1.0));
    assert!((report.window_seconds - 0.158).abs() < 1e-9);
}

#[test]
fn requests_that_come_together_start_together() {
    let report = play(&round(engines().limits), &clients(3, "100", "1"), 3);
    assert_eq!(report.engine.steps, 1);
    assert_eq!(report.ttft_ms.unwrap().p50, 310.0);
    assert_eq!(report.requests.single_token, 3);
    assert_eq!((report.itl_p99_ms, report.tpot_ms), (None, None));
}

#[test]
fn a_second_step_in_flight_hides_the_hosts_time() {
    let seconds = |max_in_flight| {
        let engines = Engines {
            cost: CostModel { host: 0.005, ..ROUND },
            policies: Policies {
                max_in_flight,
                ..Policies::serve()
            },
            ..engines()
        };
        play(&engines, &clients(1, "100", "101"), 1).window_seconds
    };
    let (one, two) = (seconds(1), seconds(2));
    // 110 ms and 100 decodes of 12 ms; 5 ms of the host before each of them, or only before the first.
    assert!((one - (0.110 + 1.2 + 101.0 * 0.005)).abs() < 1e-6, "{one}");
    assert!((two - (0.110 + 1.2 + 0.005)).abs() < 1e-6, "{two}");
}

#[test]
fn a_chunk_of_a_long_prompt_delays_the_tokens_of_others() {
    let limits = |max_num_batched_tokens| SchedulerConfig {
        max_num_batched_tokens,
        max_num_seqs: 8,
        max_num_active_seqs: 8,
        ..engines().limits
    };
    // Prompts of 1000 tokens come while others decode.
    let workload = synthetic(Synthetic {
        arrivals: Arrivals::Constant { per_second: 0.5 },
        prompts: "1000".parse().unwrap(),
        outputs: "100".parse().unwrap(),
        ..Synthetic::default()
    });
    let longest_gap = |budget| {
        play(&round(limits(budget)), &workload, 50)
            .itl_p99_ms
            .unwrap()
            .p50
    };
    let (small, large) = (longest_gap(64), longest_gap(2048));
    assert!(small < 100.0, "a chunk of at most 64 tokens: {small} ms");
    assert!(large > 1000.0, "a whole prompt: {large} ms");
}

#[test]
fn shared_prefixes_are_found_in_the_cache_and_spare_their_time() {
    let workload = |shared_prefix| {
        synthetic(Synthetic {
            shared_prefix,
            prompts: "16".parse().unwrap(),
            ..Synthetic::default()
        })
    };
    let prefix = SharedPrefix {
        groups: 2,
        tokens: 480,
    };
    let report = play(&round(engines().limits), &workload(Some(prefix)), 100);
    let hit_rate = report.engine.prefix_hit_rate.unwrap();
    // All but the first request of each group find 480 of their 496 tokens.
    assert!(
        (hit_rate - 98.0 * 480.0 / (100.0 * 496.0)).abs() < 1e-9,
        "{hit_rate}"
    );
    // As fast as without the prefix, but for the resolution of percentiles.
    assert!((25.99..26.03).contains(&report.ttft_ms.unwrap().p50));
    let alone = play(&round(engines().limits), &workload(None), 100);
    assert_eq!(alone.ttft_ms.unwrap().max, 26.0);
    let without = SchedulerConfig {
        enable_prefix_caching: false,
        ..engines().limits
    };
    let report = play(&round(without), &workload(Some(prefix)), 100);
    assert_eq!(
        (report.engine.prefix_hit_rate, report.ttft_ms.unwrap().p50 > 500.0),
        (None, true)
    );
}

#[test]
fn a_turn_of_a_conversation_finds_all_that_was_said_before() {
    let workload = synthetic(Synthetic {
        prompts: "32".parse().unwrap(),
        outputs: "16".parse().unwrap(),
        conversation: Some(Conversation {
            turns: "4".parse().unwrap(),
            pause: Pause::Fixed(1.0),
        }),
        ..Synthetic::default()
    });
    let report = play(&round(engines().limits), &workload, 4);
    // Prompts of 32, 80, 128 and 176 tokens. The last token of an answer is never computed, so its block can't be found.
    assert_eq!(report.engine.prefix_hit_rate, Some((32.0 + 80.0 + 128.0) / 416.0));
    assert!(report.window_seconds > 3.0, "three pauses of a second");
}

#[test]
fn a_conversation_that_outgrows_the_model_ends_and_the_client_begins_another() {
    let limits = SchedulerConfig {
        max_model_len: 100,
        ..engines().limits
    };
    let workload = synthetic(Synthetic {
        prompts: "40".parse().unwrap(),
        outputs: "20".parse().unwrap(),
        conversation: Some(Conversation {
            turns: "1000".parse().unwrap(),
            pause: Pause::Fixed(0.0),
        }),
        ..Synthetic::default()
    });
    let report = play(&round(limits), &workload, 50);
    assert_eq!((report.requests.completed, report.requests.failed()), (50, 0));
}

#[test]
fn requests_that_can_not_be_taken_are_counted_apart() {
    let crowded = SchedulerConfig {
        max_num_queued_reqs: 4,
        ..engines().limits
    };
    let at_once = synthetic(Synthetic {
        arrivals: Arrivals::AtOnce,
        ..Synthetic::default()
    });
    let report = play(&round(crowded), &at_once, 10);
    assert_eq!(
        (report.requests.completed, report.requests.refused_queue_full),
        (4, 6)
    );
    // Twenty blocks of 16 tokens hold no prompt of 400.
    let small = SchedulerConfig {
        num_blocks: 21,
        ..engines().limits
    };
    let report = play(&round(small), &rate(1.0, "400", "10"), 7);
    assert_eq!(
        (report.requests.arrivals, report.requests.refused_too_long),
        (7, 7)
    );
    assert_eq!(report.goodput, 0.0);
}

#[test]
fn a_client_that_is_refused_comes_back_after_a_second() {
    let small = SchedulerConfig {
        num_blocks: 21,
        ..engines().limits
    };
    let span = Span {
        seconds: Some(9.5),
        ..Span::default()
    };
    let report = simulate(
        &round(small),
        &clients(1, "400", "10"),
        &span,
        &Objectives::default(),
    )
    .unwrap();
    assert_eq!(
        (report.requests.arrivals, report.requests.refused_too_long),
        (10, 10)
    );
}

#[test]
fn a_request_that_waits_too_long_is_given_up() {
    let workload = synthetic(Synthetic {
        arrivals: Arrivals::AtOnce,
        timeout: Some(1.0),
        outputs: "100".parse().unwrap(),
        ..Synthetic::default()
    });
    // One at a time, about 1.5 s each.
    let one = SchedulerConfig {
        max_num_active_seqs: 1,
        ..engines().limits
    };
    let report = play(&round(one), &workload, 3);
    assert_eq!((report.requests.completed, report.requests.timed_out), (0, 3));
}

#[test]
fn a_pool_that_is_too_small_preempts_and_is_full() {
    let small = SchedulerConfig {
        num_blocks: 33,
        ..engines().limits
    };
    let report = play(&round(small), &clients(8, "32", "300"), 16);
    assert!(report.engine.preemptions > 0);
    assert!(report.engine.kv_usage_max > 0.9, "{}", report.engine.kv_usage_max);
    assert_eq!(report.requests.completed, 16);
}

#[test]
fn a_tenant_with_priority_waits_less_and_each_is_counted_for_itself() {
    let tenant = |name: &str, priority| Tenant {
        name: name.to_owned(),
        share: 1.0,
        priority,
        weight: 1,
    };
    let workload = synthetic(Synthetic {
        arrivals: Arrivals::Rate {
            per_second: 4.0,
            burstiness: 1.0,
        },
        tenants: vec![tenant("low", 1), tenant("high", 0)],
        ..Synthetic::default()
    });
    let limits = SchedulerConfig {
        max_num_active_seqs: 4,
        ..engines().limits
    };
    let engines = Engines {
        policies: Policies {
            order: Order::Priority,
            ..Policies::serve()
        },
        ..round(limits)
    };
    let report = play(&engines, &workload, 200);
    let [low, high] = report.tenants.as_slice() else {
        panic!("two tenants: {:?}", report.tenants)
    };
    assert_eq!((low.name.as_str(), high.name.as_str()), ("low", "high"));
    assert_eq!(low.requests.completed + high.requests.completed, 200);
    assert!(
        low.requests.completed > 60 && high.requests.completed > 60,
        "shares are equal"
    );
    assert!(high.ttft_ms.unwrap().p50 < low.ttft_ms.unwrap().p50 / 4.0);
}

#[test]
fn tenants_share_no_prefix() {
    let tenants = ["a", "b"].map(|name| Tenant {
        name: name.to_owned(),
        share: 1.0,
        priority: 0,
        weight: 1,
    });
    let workload = |tenants| {
        synthetic(Synthetic {
            tenants,
            prompts: "16".parse().unwrap(),
            shared_prefix: Some(SharedPrefix {
                groups: 1,
                tokens: 160,
            }),
            ..Synthetic::default()
        })
    };
    let misses = |tenants| {
        let report = play(&round(engines().limits), &workload(tenants), 40);
        40.0 * (1.0 - report.engine.prefix_hit_rate.unwrap() * 176.0 / 160.0)
    };
    assert!((misses(Vec::new()) - 1.0_f64).abs() < 1e-6);
    assert!((misses(tenants.to_vec()) - 2.0_f64).abs() < 1e-6);
}

#[test]
fn a_window_counts_what_is_outstanding_at_its_end() {
    let span = Span {
        seconds: Some(10.0),
        warmup_seconds: 5.0,
        num_requests: None,
    };
    // A request that never ends within the window, beside the ones that do.
    let report = simulate(
        &round(engines().limits),
        &clients(3, "10", "5000"),
        &span,
        &Objectives::default(),
    )
    .unwrap();
    let counts = report.requests;
    assert_eq!((counts.arrivals, counts.completed, counts.outstanding), (0, 0, 3));
    assert_eq!(report.window_seconds, 10.0);
    assert!(report.output_token_throughput > 0.0, "their tokens count");
}

#[test]
fn several_engines_share_the_requests() {
    let engines = |count| Engines {
        count,
        ..round(SchedulerConfig {
            max_num_active_seqs: 1,
            ..engines().limits
        })
    };
    let seconds = |count| play(&engines(count), &clients(4, "100", "50"), 40).window_seconds;
    let (one, four) = (seconds(1), seconds(4));
    assert!((one / four - 4.0).abs() < 1e-6, "{one} and {four}");
}
