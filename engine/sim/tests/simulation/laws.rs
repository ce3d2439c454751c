//! What holds for any workload on any server.

use kvasir_engine_core::{Order, Policies, SchedulerConfig};
use kvasir_sim::{
    Arrivals, Conversation, CostModel, Engines, Lengths, Objectives, Pause, Report, SharedPrefix, SimError,
    Span, Synthetic, Tenant, Workload, simulate,
};
use proptest::prelude::*;

use crate::harness::{engines, rate};

fn lengths() -> impl Strategy<Value = Lengths> {
    prop_oneof![
        (1_u32..100).prop_map(Lengths::Fixed),
        (1_u32..50, 0_u32..50).prop_map(|(min, more)| Lengths::Uniform { min, max: min + more }),
        (1.0_f64..60.0, 0.0_f64..2.0).prop_map(|(median, sigma)| Lengths::LogNormal {
            median,
            sigma,
            max: None
        }),
        (1.0_f64..60.0).prop_map(|mean| Lengths::Exponential { mean, max: Some(90) }),
    ]
}

fn arrivals() -> impl Strategy<Value = Arrivals> {
    prop_oneof![
        Just(Arrivals::AtOnce),
        (0.1_f64..100.0, 0.1_f64..10.0).prop_map(|(per_second, burstiness)| Arrivals::Rate {
            per_second,
            burstiness
        }),
        (0.1_f64..100.0).prop_map(|per_second| Arrivals::Constant { per_second }),
        (1_u32..20, 0.0_f64..2.0, 0.0_f64..2.0).prop_map(|(count, mean, ramp_seconds)| Arrivals::Clients {
            count,
            pause: Pause::Exponential(mean),
            ramp_seconds
        }),
    ]
}

prop_compose! {
    fn workload()(
        seed in any::<u64>(),
        arrivals in arrivals(),
        prompts in lengths(),
        outputs in lengths(),
        prefix in proptest::option::of((1_u32..4, 0_u32..50)),
        turns in proptest::option::of(lengths()),
        shares in proptest::collection::vec(0.1_f64..2.0, 0..3),
        timeout in proptest::option::of(0.001_f64..20.0),
    ) -> Synthetic {
        Synthetic {
            seed,
            arrivals,
            prompts,
            outputs,
            shared_prefix: prefix.map(|(groups, tokens)| SharedPrefix { groups, tokens }),
            conversation: turns.map(|turns| Conversation { turns, pause: Pause::Fixed(0.5) }),
            tenants: shares.into_iter().enumerate().map(|(index, share)| Tenant {
                name: format!("tenant {index}"),
                share,
                priority: -(index as i64),
                weight: 1 + index as u32,
            }).collect(),
            timeout,
        }
    }
}

prop_compose! {
    fn server()(
        budget in 8_u32..300,
        seqs in 1_u32..8,
        block_size in prop_oneof![Just(1_u32), Just(4), Just(16)],
        num_blocks in 2_u32..200,
        queue in 1_u32..30,
        caching in any::<bool>(),
        max_in_flight in 1_u32..3,
        host in 0.0_f64..0.01,
        (ours, fair_share) in any::<(bool, bool)>(),
        count in 1_u32..3,
    ) -> Engines {
        Engines {
            limits: SchedulerConfig {
                max_num_batched_tokens: budget,
                max_num_seqs: seqs,
                max_num_active_seqs: seqs,
                max_model_len: 200,
                block_size,
                num_blocks,
                enable_prefix_caching: caching,
                long_prefill_token_threshold: 0,
                max_num_queued_reqs: queue,
                max_num_queued_tokens: 4000,
                ..SchedulerConfig::default()
            },
            policies: Policies {
                max_in_flight,
                fair_share,
                order: if ours { Order::Priority } else { Order::Arrival },
                ..if ours { Policies::serve() } else { Policies::vllm() }
            },
            cost: CostModel { host, ..CostModel::DEFAULT },
            count,
        }
    }
}

fn play(server: &Engines, workload: &Workload, span: &Span) -> Result<Report, SimError> {
    let objectives = Objectives::parse(["ttft:2000", "itl:100"]).unwrap();
    simulate(server, workload, span, &objectives)
}

/// All text that a report becomes, so that equality is that of bytes.
fn text(result: &Result<Report, SimError>) -> String {
    match result {
        Ok(report) => serde_json::to_string(report).unwrap(),
        Err(error) => error.to_string(),
    }
}

proptest! {
    #[test]
    fn every_request_ends_in_one_way_or_is_outstanding(
        server in server(),
        workload in workload(),
        num_requests in 1_u64..60,
        seconds in proptest::option::of(0.1_f64..60.0),
    ) {
        let closed_loop = match workload.arrivals {
            Arrivals::Clients { count, .. } => Some(u64::from(count)),
            _ => None,
        };
        let span = Span { num_requests: Some(num_requests), seconds, warmup_seconds: 0.0 };
        let workload = Workload::Synthetic(workload);
        let result = play(&server, &workload, &span);
        prop_assert_eq!(text(&result), text(&play(&server, &workload, &span)), "equal inputs give equal bytes");
        let report = match result {
            Ok(report) => report,
            // All were refused as they came, at the very start.
            Err(error) => {
                prop_assert!(matches!(error, SimError::EmptyWindow { .. }), "{}", error);
                return Ok(());
            }
        };
        let counts = report.requests;
        prop_assert_eq!(counts.arrivals, counts.completed + counts.failed() + counts.outstanding);
        prop_assert!(counts.passed <= counts.completed && counts.arrivals <= num_requests);
        if seconds.is_none() {
            prop_assert_eq!(counts.outstanding, 0);
        }
        if let Some(count) = closed_loop {
            prop_assert!(counts.outstanding <= count);
        }
        for share in [report.engine.busy, report.engine.kv_usage_max, report.engine.kv_usage_mean] {
            prop_assert!((0.0..=1.0 + 1e-9).contains(&share), "{report:?}");
        }
        prop_assert!(report.goodput <= report.request_throughput);
        let of_tenants: u64 = report.tenants.iter().map(|tenant| tenant.requests.arrivals).sum();
        prop_assert!(report.tenants.is_empty() || of_tenants == counts.arrivals);
    }
}

#[test]
fn a_poisson_process_comes_at_its_rate_and_gaps_grow_more_regular_with_burstiness() {
    let span = Span {
        seconds: Some(2000.0),
        ..Span::default()
    };
    let report = play(&engines(), &rate(3.0, "1", "1"), &span).unwrap();
    let arrivals = report.requests.arrivals as f64;
    // The deviation of a Poisson count of 6000 is 77.
    assert!((arrivals - 6000.0).abs() < 300.0, "{arrivals}");
    let queue = |burstiness| {
        let workload = Workload::Synthetic(Synthetic {
            arrivals: Arrivals::Rate {
                per_second: 6.0,
                burstiness,
            },
            prompts: Lengths::Fixed(50),
            outputs: Lengths::Fixed(1),
            ..Synthetic::default()
        });
        play(&engines(), &workload, &span).unwrap().ttft_ms.unwrap().mean
    };
    let (bursts, poisson, regular) = (queue(0.1), queue(1.0), queue(100.0));
    assert!(
        bursts > poisson && poisson > regular,
        "{bursts} {poisson} {regular}"
    );
}
