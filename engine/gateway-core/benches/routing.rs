//! The price of a choice at full size: 10 million blocks over 1,000 engines, a prompt of 2,000 tokens in 125 blocks of 16, hashes at hand.
//!
//! Beside criterion's figures it prints the 50th and 99th percentile of single choices among events at full rate, and the index's memory.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use kvasir_gateway_core::routing::index::{Overlaps, PrefixIndex};
use kvasir_gateway_core::routing::{
    CacheLayout, Capacity, EngineAddress, EngineId, KvBatch, KvGroup, LoadReport, Outcome, Revision,
    RouteRequest, Router, RouterConfig, filed,
};
use kvasir_gateway_core::time::Micros;

const NUM_ENGINES: u64 = 1000;
/// Blocks of one engine: 125 conversations of 80 blocks.
const NUM_CONVERSATIONS: u64 = 125;
const BLOCKS_PER_CONVERSATION: u64 = 80;
/// All engines hold the system prompt of everybody.
const SHARED_BLOCKS: u64 = 45;
const CAPACITY: Capacity = Capacity {
    num_blocks: 20_000,
    block_size: 16,
};

fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn address(engine: u64) -> EngineAddress {
    EngineAddress {
        pod_uid: Arc::from(format!("pod-{engine}")),
        epoch: 1,
        dp_rank: 0,
    }
}

fn shared() -> Vec<u64> {
    (0..SHARED_BLOCKS).map(|block| mix(1 << 60 | block)).collect()
}

fn own(engine: u64, conversation: u64) -> impl Iterator<Item = u64> {
    (0..BLOCKS_PER_CONVERSATION).map(move |block| mix(engine << 40 | conversation << 16 | block))
}

fn prompt(engine: u64, conversation: u64) -> Vec<u64> {
    shared().into_iter().chain(own(engine, conversation)).collect()
}

/// Two groups of a model: full attention, and a window of 1,024 tokens.
const WINDOW: [KvGroup; 2] = [KvGroup::Full, KvGroup::Window { positions: 1024 }];

/// What an engine with these groups files of blocks.
fn of_groups(groups: &[KvGroup], hashes: &[u64]) -> Vec<u64> {
    let numbers = 0..groups.len() as u32;
    numbers
        .flat_map(|group| hashes.iter().map(move |hash| filed(group, *hash)))
        .collect()
}

fn filled(groups: &[KvGroup]) -> (Router, Vec<EngineId>, Revision) {
    let mut router = Router::new(RouterConfig {
        max_index_pairs: 11_000_000,
        ..RouterConfig::default()
    });
    let revision = Revision(Arc::from("r"));
    router.set_layout(&revision, CacheLayout::new(CAPACITY.block_size, groups));
    let num_conversations = NUM_CONVERSATIONS / groups.len() as u64;
    let mut ids = Vec::new();
    for engine in 0..NUM_ENGINES {
        ids.push(
            router
                .join(address(engine), &revision, CAPACITY, Micros(0))
                .expect("a new engine can join"),
        );
        let conversations = (0..num_conversations).flat_map(|conversation| own(engine, conversation));
        let stored: Vec<u64> = shared().into_iter().chain(conversations).collect();
        let stored = of_groups(groups, &stored);
        let batch = KvBatch {
            stored: &stored,
            ..KvBatch::default()
        };
        router.apply(&address(engine), &batch);
    }
    (router, ids, revision)
}

/// The time that this thread has computed, so that other work on the machine shows less.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One choice, its first token and its end.
fn route(router: &mut Router, revision: &Revision, hashes: &[u64], now: Micros) -> Duration {
    let request = RouteRequest {
        revision,
        prompt_tokens: 2000,
        num_sequences: 1,
        hashes,
        session: None,
        excluded: &[],
        random: 0,
    };
    let begin = thread_time();
    let choice = router
        .choose(black_box(&request), now)
        .expect("all engines are usable");
    let took = thread_time().saturating_sub(begin);
    router.finish(choice.ticket, Outcome::Completed, now);
    took
}

/// Choices between batches and reports of all engines, each ten times a second with ten new and ten old blocks.
fn percentiles(groups: &[KvGroup], router: &mut Router, ids: &[EngineId], revision: &Revision) {
    let mut took = Vec::new();
    let mut num_events = 0;
    let begin = thread_time();
    for round in 1..=10_u64 {
        for engine in 0..NUM_ENGINES {
            let now = Micros(round * 100_000 + engine * 100);
            let stored: Vec<u64> = (0..10)
                .map(|block| mix(engine << 40 | (1000 + round) << 16 | block))
                .collect();
            let removed: Vec<u64> = own(engine, round).skip(70).collect();
            let (stored, removed) = (of_groups(groups, &stored), of_groups(groups, &removed));
            let batch = KvBatch {
                seq: round,
                is_cleared: false,
                stored: &stored,
                removed: &removed,
            };
            router.apply(&address(engine), &batch);
            let report = LoadReport {
                num_running: (mix(engine) % 30) as u32,
                num_waiting: 0,
                num_free_blocks: 10_000,
            };
            router.report(ids[engine as usize], report, now);
            num_events += 1 + 20 * groups.len();
            let hashes = prompt(mix(engine + round) % NUM_ENGINES, 20 + round);
            took.push(route(router, revision, &hashes, now));
        }
    }
    took.sort();
    let at = |permille: usize| took[took.len() * permille / 1000];
    eprintln!(
        "choices among events, groups {}: p50 {:?}, p99 {:?}, p99.9 {:?}; {num_events} changes and {} choices in {:?}",
        groups.len(),
        at(500),
        at(990),
        at(999),
        took.len(),
        thread_time().saturating_sub(begin)
    );
    eprintln!(
        "index: {} blocks in {} MiB",
        router.index().num_pairs(),
        router.index().num_bytes() / (1 << 20)
    );
}

fn choices(criterion: &mut Criterion) {
    {
        let (mut router, ids, revision) = filled(&WINDOW);
        percentiles(&WINDOW, &mut router, &ids, &revision);
    }
    let (mut router, ids, revision) = filled(&[KvGroup::Full]);
    percentiles(&[KvGroup::Full], &mut router, &ids, &revision);
    let mut group = criterion.benchmark_group("choice");
    for (name, hashes) in [
        ("everything cached", prompt(77, 50)),
        ("system prompt cached", prompt(5000, 0)),
        (
            "nothing cached",
            (0..125).map(|block| mix(3 << 60 | block)).collect(),
        ),
    ] {
        let mut now = 2_000_000;
        group.bench_with_input(BenchmarkId::from_parameter(name), &hashes, |bencher, hashes| {
            bencher.iter(|| {
                now += 10;
                route(&mut router, &revision, hashes, Micros(now))
            });
        });
    }
    group.finish();
}

/// The worst prompt that engines can bring about: each of its blocks is held by another large set.
fn ragged(criterion: &mut Criterion) {
    let mut index = PrefixIndex::new(10_000_000);
    let hashes: Vec<u64> = (0..125).map(|block| mix(5 << 60 | block)).collect();
    for engine in 0..NUM_ENGINES {
        let Some(holder) = index.attach() else {
            return;
        };
        // Engine e lacks block b in one of a thousand cases, so nearly all stay in the run to its end.
        let held: Vec<u64> = (0..125)
            .filter(|block| !mix(engine << 20 | block).is_multiple_of(1000))
            .map(|block| hashes[block as usize])
            .collect();
        index.store(holder, &held);
    }
    let mut overlaps = Overlaps::default();
    criterion.bench_function("overlap/ragged sets of 1000", |bencher| {
        bencher.iter(|| index.overlaps(black_box(&hashes), &mut overlaps));
    });
}

criterion_group!(benches, choices, ragged);
criterion_main!(benches);
