//! What is read from the prefix cache, when it can be found, and who may share it.

use kvasir_cache_key::{AdapterIdentity, CacheIdentity, CacheRoot};
use kvasir_engine_core::{Request, SchedulerConfig};

use crate::harness::{Engine, request, roomy};

fn blocks_of_16() -> SchedulerConfig {
    SchedulerConfig {
        block_size: 16,
        ..roomy()
    }
}

/// Runs a prompt with one token of output, so that its full blocks are cached.
fn warm(engine: &mut Engine, prompt: impl IntoIterator<Item = u32>) {
    engine.submit(request(prompt, 1));
    engine.run();
}

fn under(root: CacheRoot, request: Request) -> Request {
    Request {
        cache_root: root,
        ..request
    }
}

/// The founding document's table for blocks of four: (shared, prompt, skipped), with a whole prompt cached as the last case.
#[test]
fn reusable_tokens_are_whole_blocks_and_leave_one_token_to_compute() {
    for (shared, len, reusable) in [(6, 9, 4), (7, 9, 4), (8, 9, 8), (8, 8, 4), (1, 1, 0), (0, 9, 0)] {
        let mut engine = Engine::new(roomy());
        // Shares the first tokens, and enough others to be one block longer.
        warm(&mut engine, (0..shared).chain(500..504));
        let id = engine.submit(request((0..shared).chain(900..900 + len - shared), 1));
        engine.step();
        assert_eq!(engine.cached_tokens(id), [reusable], "shared {shared} of {len}");
        assert_eq!(engine.shares(), [(id, (len - reusable) as usize)]);
        assert_eq!(engine.output(id).len(), 1);
    }
}

/// Case T5.
#[test]
fn a_whole_cached_prompt_computes_its_last_block_again() {
    let mut engine = Engine::new(blocks_of_16());
    warm(&mut engine, 0..32);
    let id = engine.submit(request(0..32, 1));
    engine.step();
    assert_eq!(
        (engine.cached_tokens(id), engine.shares()),
        (vec![16], vec![(id, 16)])
    );
}

/// Case T6.
#[test]
fn one_token_behind_a_cached_prefix_is_all_that_is_computed() {
    let mut engine = Engine::new(blocks_of_16());
    warm(&mut engine, 0..32);
    let id = engine.submit(request(0..33, 1));
    engine.step();
    assert_eq!(
        (engine.cached_tokens(id), engine.shares()),
        (vec![32], vec![(id, 1)])
    );
}

/// Cases T7 and T8: tenants, and an adapter named like a salt.
#[test]
fn equal_prompts_under_different_identities_share_nothing() {
    let salted = |salt: &'static [u8]| CacheIdentity {
        client_salt: salt,
        ..CacheIdentity::default()
    };
    let adapter = Some(AdapterIdentity {
        digest: b"a",
        generation: 0,
    });
    let identities = [
        salted(b"a"),
        salted(b"b"),
        CacheIdentity {
            adapter,
            ..CacheIdentity::default()
        },
    ];
    let mut engine = Engine::new(blocks_of_16());
    for identity in identities {
        let id = engine.submit(under(identity.root(), request(0..33, 1)));
        engine.run();
        assert_eq!(engine.cached_tokens(id), [0]);
    }
    let again = engine.submit(under(identities[0].root(), request(0..33, 1)));
    engine.run();
    assert_eq!(engine.cached_tokens(again), [32]);
}

/// Case T17, the scheduler's half of it.
#[test]
fn a_request_that_needs_every_position_reads_no_prefix_but_stores_its_blocks() {
    let mut engine = Engine::new(blocks_of_16());
    let first = engine.submit(Request {
        reads_prefix_cache: false,
        ..request(0..33, 1)
    });
    engine.run();
    let second = engine.submit(Request {
        reads_prefix_cache: false,
        ..request(0..33, 1)
    });
    engine.run();
    assert_eq!(
        (engine.cached_tokens(first), engine.cached_tokens(second)),
        (vec![0], vec![0])
    );
    assert_eq!(engine.scheduler.stats().prefix_cache_queries, 0);
    let reader = engine.submit(request(0..33, 1));
    engine.run();
    assert_eq!(engine.cached_tokens(reader), [32]);
}

#[test]
fn nothing_is_shared_when_caching_is_off() {
    let mut engine = Engine::new(SchedulerConfig {
        enable_prefix_caching: false,
        ..blocks_of_16()
    });
    warm(&mut engine, 0..33);
    let id = engine.submit(request(0..33, 1));
    engine.run();
    assert_eq!(engine.cached_tokens(id), [0]);
    let stats = engine.scheduler.stats();
    assert_eq!(
        (
            stats.num_cached_blocks,
            stats.prefix_cache_queries,
            stats.prefix_cache_hits
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_block_is_found_only_after_the_step_that_filled_it_completed() {
    let mut engine = Engine::new(roomy());
    let first = engine.submit(request(0..9, 20));
    assert!(engine.start());
    let second = engine.submit(request(0..9, 1));
    assert!(!engine.start(), "one step is in flight");
    engine.finish();
    engine.step();
    assert_eq!(engine.cached_tokens(second), [8]);
    // Both now hold the same two blocks.
    assert_eq!(engine.table(first)[..2], engine.table(second)[..2]);
}

#[test]
fn equal_prompts_that_start_in_one_step_are_both_computed_and_keep_their_blocks() {
    let mut engine = Engine::new(roomy());
    let a = engine.submit(request(0..9, 1));
    let b = engine.submit(request(0..9, 1));
    engine.step();
    assert_eq!(
        (engine.cached_tokens(a), engine.cached_tokens(b)),
        (vec![0], vec![0])
    );
    assert_eq!(engine.scheduler.stats().num_cached_blocks, 4);
}

#[test]
fn blocks_that_output_filled_are_found_by_the_next_turn() {
    let mut engine = Engine::new(roomy());
    let first = engine.submit(request(0..6, 7));
    engine.run();
    // Twelve of thirteen tokens have KV: the last one was sampled and never computed.
    let turn: Vec<u32> = (0..6).chain(engine.output(first)).collect();
    assert_eq!(turn.len(), 13);
    let second = engine.submit(request(turn.into_iter().chain([70, 71]), 1));
    engine.run();
    assert_eq!(engine.cached_tokens(second), [12]);
}

#[test]
fn the_block_of_the_last_sampled_token_is_not_found_since_it_was_never_computed() {
    let mut engine = Engine::new(roomy());
    let first = engine.submit(request(0..6, 2));
    engine.run();
    let turn: Vec<u32> = (0..6).chain(engine.output(first)).collect();
    assert_eq!(turn.len(), 8, "the output completes the second block");
    let second = engine.submit(request(turn.into_iter().chain([70]), 1));
    engine.run();
    assert_eq!(engine.cached_tokens(second), [4]);
}

#[test]
fn hits_are_counted_in_tokens_at_admission_only() {
    // The running set is full, so the second sequence is looked at in many steps before it is admitted in one.
    let config = SchedulerConfig {
        max_num_active_seqs: 1,
        num_blocks: 9,
        ..roomy()
    };
    let mut engine = Engine::new(config);
    engine.submit(request(0..9, 8));
    engine.step();
    engine.submit(request(0..9, 1));
    engine.run();
    let stats = engine.scheduler.stats();
    assert_eq!((stats.prefix_cache_queries, stats.prefix_cache_hits), (18, 8));
}

#[test]
fn eviction_takes_the_least_recently_used_prefix() {
    // Six usable blocks; two prompts of two full blocks each.
    let mut engine = Engine::new(SchedulerConfig {
        num_blocks: 7,
        ..roomy()
    });
    warm(&mut engine, 100..108);
    warm(&mut engine, 200..208);
    // Reads the first prompt's prefix, so that the second one is the least recently used.
    warm(&mut engine, (100..108).chain([1]));
    warm(&mut engine, 300..316);
    let first = engine.submit(request((100..108).chain([1]), 1));
    let second = engine.submit(request((200..208).chain([1]), 1));
    engine.run();
    assert_eq!(engine.cached_tokens(first), [8]);
    assert_eq!(engine.cached_tokens(second), [0]);
}

#[test]
fn the_cache_is_reset_only_when_no_block_is_in_use() {
    let mut engine = Engine::new(roomy());
    engine.submit(request(0..9, 3));
    engine.step();
    assert!(!engine.scheduler.reset_prefix_cache());
    engine.run();
    assert!(engine.scheduler.reset_prefix_cache());
    engine.check();
    let id = engine.submit(request(0..9, 1));
    engine.run();
    assert_eq!(engine.cached_tokens(id), [0]);
}
