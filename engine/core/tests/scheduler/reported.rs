//! Faults that other engines had with caches and pools, each as the behaviour wanted here. The rest of those that apply are among the worked cases:
//! see `prefix.rs` (one position of a cached prompt is computed), `refusal.rs`, `ahead.rs`, `abort.rs` and `group.rs`.

use kvasir_cache_key::CacheIdentity;
use kvasir_engine_core::{FinishReason, KvGroup, Policies, Reject, Request, SchedulerConfig};

use crate::harness::{Engine, expected_output, request, roomy};

fn under(identity: CacheIdentity<'_>, request: Request) -> Request {
    Request {
        cache_root: identity.root(),
        ..request
    }
}

/// Sleep and wake, or new weights in place: old KV is not read (vllm#17103, lmdeploy#4917).
#[test]
fn new_weights_find_nothing_of_the_old_ones_from_the_next_request_on() {
    let mut engine = Engine::new(roomy());
    let version = |weights_version| CacheIdentity {
        weights_version,
        ..CacheIdentity::default()
    };
    let mut cached = Vec::new();
    for weights_version in [1, 1, 2, 2, 1] {
        let id = engine.submit(under(version(weights_version), request(0..9, 1)));
        engine.run();
        cached.extend(engine.cached_tokens(id));
    }
    assert_eq!(cached, [0, 8, 0, 8, 8]);
}

/// Two images whose digests begin alike (vllm#20261, sglang#2151).
#[test]
fn prompts_with_other_media_share_nothing_however_alike_the_digests_are() {
    let mut engine = Engine::new(roomy());
    for last in [0, 1] {
        let mut digest = [7; 32];
        digest[31] = last;
        let identity = CacheIdentity {
            media_digests: &[digest],
            ..CacheIdentity::default()
        };
        let id = engine.submit(under(identity, request(0..9, 1)));
        engine.run();
        assert_eq!(engine.cached_tokens(id), [0]);
    }
}

/// 50 blocks of 16 tokens and a prompt of 1,002 (vllm#35541, vllm#39734).
#[test]
fn a_prompt_that_the_model_takes_and_the_pool_does_not_is_refused_with_the_limit() {
    let limits = SchedulerConfig {
        block_size: 16,
        num_blocks: 51,
        max_model_len: 4096,
        ..roomy()
    };
    let mut engine = Engine::new(limits);
    let refused = engine.try_submit(&request(0..1002, 16));
    assert_eq!(
        refused,
        Err(Reject::NeverFits {
            needed: 63,
            usable: 50,
            limit: 800
        })
    );
    let id = engine.submit(request(0..700, 16));
    engine.run();
    assert_eq!(engine.output(id).len(), 16);
}

/// Five at a time, many samples each: the cache gives way, and nobody else (mistral.rs#167).
#[test]
fn what_is_cached_is_evicted_before_anybody_gives_way() {
    for groups in [
        vec![KvGroup::Full],
        vec![KvGroup::Full, KvGroup::Window { positions: 6 }],
    ] {
        let limits = SchedulerConfig {
            max_num_seqs: 5,
            max_num_active_seqs: 5,
            max_num_batched_tokens: 64,
            // Five sequences of at most five blocks in each group.
            num_blocks: 25 * groups.len() as u32 + 1,
            groups,
            ..roomy()
        };
        let mut engine = Engine::new(limits);
        for round in 0..8 {
            let prompts = vec![request(10 * round..10 * round + 12, 8); 16];
            let ids = engine.try_submit_group(&prompts).expect("the queue is long");
            engine.run();
            assert!(
                ids.iter()
                    .all(|&id| engine.finish_reason(id) == Some(FinishReason::Length))
            );
        }
        let stats = engine.scheduler.stats();
        assert_eq!(stats.num_preemptions, 0);
        assert!(
            stats.num_cached_blocks > 20 && stats.prefix_cache_hits > 0,
            "{stats:?}"
        );
    }
}

/// A cache of eight entries must not hang requests (mistral.rs#1470).
#[test]
fn the_size_of_the_cache_never_keeps_requests_from_ending() {
    let groups = [
        vec![KvGroup::Full],
        vec![KvGroup::Window { positions: 3 }],
        vec![KvGroup::Full, KvGroup::Window { positions: 3 }],
    ];
    for (groups, num_usable) in groups
        .iter()
        .flat_map(|groups| (8..16).map(move |usable| (groups, usable)))
    {
        let limits = SchedulerConfig {
            block_size: 2,
            num_blocks: num_usable + 1,
            max_num_batched_tokens: 4,
            max_num_seqs: 4,
            max_num_active_seqs: 4,
            groups: groups.clone(),
            ..roomy()
        };
        let policies = Policies {
            max_in_flight: 2,
            ..Policies::vllm()
        };
        let mut engine = Engine::with_policies(limits, policies);
        let prompts: Vec<_> = (0..12).map(|i| request(i % 3..i % 3 + 5, 4)).collect();
        let ids: Vec<_> = prompts
            .iter()
            .map(|prompt| engine.submit(prompt.clone()))
            .collect();
        engine.run_ahead();
        for (id, prompt) in ids.into_iter().zip(&prompts) {
            assert_eq!(engine.output(id), expected_output(prompt, &engine.config).0);
        }
    }
}
