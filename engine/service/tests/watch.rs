//! Readers of an engine's news, in process and over gRPC: what its cache holds, its load, and the timelines of its requests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kvasir_cache_key::{BlockHash, CacheIdentity, block_hash};
use kvasir_client::types::kv_cache_update::Kind as Update;
use kvasir_client::types::{
    ErrorCode, GenerateRequest, KvCachePosition, KvCacheStart, TimelineEntry, TimelineKind,
};
use kvasir_client::{EngineClient, GrpcClient, KvCacheChange, KvCacheFollower, KvCacheStream, LoadStream};
use kvasir_service::ServiceLimits;
use support::{DEADLINE, Fixture, Kind, Options, collect, expected, finish_of, prompt, request};

/// What the cache holds after a request: the full blocks of its prompt and its computed output.
fn hashes(prompt: &[u32], output: &[u32], salt: &str) -> Vec<u64> {
    let root = CacheIdentity {
        weights_digest: &[1; 32],
        kv_dtype: "f32",
        client_salt: salt.as_bytes(),
        ..CacheIdentity::default()
    }
    .root();
    let mut computed = [prompt, output].concat();
    // The last token is sampled and never computed.
    computed.pop();
    let chain = computed.chunks_exact(4).scan(root.as_parent(), |parent, tokens| {
        *parent = block_hash(parent, tokens);
        Some(*parent)
    });
    chain.map(|hash: BlockHash| hash.short()).collect()
}

async fn run(fixture: &Fixture, id: &str, prompt: &[u32], max_tokens: u32) -> Vec<u64> {
    collect(fixture.start(request(id, prompt, max_tokens)).await).await;
    hashes(prompt, &expected(prompt, 7, max_tokens as usize), "")
}

/// Follows until the set is exactly `wanted`.
async fn follow(follower: &mut KvCacheFollower, wanted: &BTreeSet<u64>) -> Vec<KvCacheChange> {
    let mut changes = Vec::new();
    let reached = async {
        loop {
            let held: BTreeSet<u64> = follower.view().iter().map(|(_, hash)| hash).collect();
            if follower.view().is_complete() && held == *wanted {
                return;
            }
            changes.push(follower.next().await);
        }
    };
    tokio::time::timeout(DEADLINE, reached)
        .await
        .expect("the follower never held what the cache holds");
    changes
}

async fn start_of(stream: &mut KvCacheStream) -> KvCacheStart {
    let update = tokio::time::timeout(DEADLINE, stream.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    match update.kind.unwrap() {
        Update::Start(start) => start,
        other => panic!("{other:?} came before the start"),
    }
}

async fn next_load(stream: &mut LoadStream) -> kvasir_client::types::LoadReport {
    tokio::time::timeout(DEADLINE, stream.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap()
}

async fn both(test: impl AsyncFn(Fixture)) {
    for kind in [Kind::Local, Kind::Tcp] {
        test(Fixture::new(kind).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_holds_what_was_cached_before_it_came_and_after() {
    both(async |fixture| {
        let mut wanted = BTreeSet::new();
        wanted.extend(run(&fixture, "before", &prompt(21, 0), 6).await);
        let mut follower = KvCacheFollower::new(Arc::clone(&fixture.client), 1 << 16);
        let changes = follow(&mut follower, &wanted).await;
        assert_eq!(changes[0], KvCacheChange::Reset);
        // The set is what was told; the change that says so follows.
        assert_eq!(follower.next().await, KvCacheChange::Complete);
        wanted.extend(run(&fixture, "after", &prompt(33, 1), 6).await);
        let changes = follow(&mut follower, &wanted).await;
        assert!(
            changes
                .iter()
                .all(|change| matches!(change, KvCacheChange::Stored { .. }))
        );
        let source = follower.view().source().unwrap();
        let address = source.address.clone().unwrap();
        assert_eq!(
            (&*address.instance_id, address.epoch, address.dp_rank),
            ("test", 0, 0)
        );
        assert_eq!(follower.view().block_size(), 4);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_of_a_full_pool_holds_what_is_still_there() {
    let options = Options::default();
    let scheduler = kvasir_engine_core::SchedulerConfig {
        num_blocks: 17,
        ..options.scheduler
    };
    let fixture = Fixture::with(Kind::Tcp, Options { scheduler, ..options }).await;
    let mut follower = KvCacheFollower::new(Arc::clone(&fixture.client), 1 << 16);
    follow(&mut follower, &BTreeSet::new()).await;
    for salt in 0..12 {
        run(&fixture, &format!("r{salt}"), &prompt(25, salt), 4).await;
    }
    // The last request's blocks are certainly there, and nothing beyond the pool is.
    let last = run(&fixture, "again", &prompt(25, 99), 4).await;
    let settled = async {
        while !last.iter().all(|&hash| follower.view().contains(0, hash)) || follower.view().len() > 16 {
            follower.next().await;
        }
    };
    tokio::time::timeout(DEADLINE, settled)
        .await
        .expect("the follower never caught up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_comes_back_goes_on_where_it_was() {
    both(async |fixture| {
        let mut wanted: BTreeSet<_> = run(&fixture, "a", &prompt(9, 0), 2).await.into_iter().collect();
        let mut follower = KvCacheFollower::new(Arc::clone(&fixture.client), 1 << 16);
        follow(&mut follower, &wanted).await;
        let position = follower.view().position().unwrap();
        drop(follower);
        wanted.extend(run(&fixture, "b", &prompt(9, 1), 2).await);
        let mut stream = fixture
            .client
            .watch_kv_cache(Some(position.clone()))
            .await
            .unwrap();
        let start = start_of(&mut stream).await;
        assert!(start.resumed);
        let update = tokio::time::timeout(DEADLINE, stream.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let Some(Update::Batch(batch)) = update.kind else {
            panic!("{update:?} is no batch");
        };
        assert_eq!(batch.sequence, position.sequence + 1);
        let elsewhere = KvCachePosition {
            sequence: position.sequence + 100,
            ..position
        };
        let mut stream = fixture.client.watch_kv_cache(Some(elsewhere)).await.unwrap();
        assert!(!start_of(&mut stream).await.resumed);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_survives_a_lost_connection() {
    let mut fixture = Fixture::new(Kind::Unix).await;
    let mut wanted: BTreeSet<_> = run(&fixture, "a", &prompt(9, 0), 2).await.into_iter().collect();
    let target = fixture.server.as_ref().unwrap().target.clone();
    let client = Arc::new(GrpcClient::connect(&target).await.unwrap());
    let engine: Arc<dyn EngineClient> = Arc::clone(&client) as Arc<dyn EngineClient>;
    let mut follower = KvCacheFollower::new(engine, 1 << 16);
    follow(&mut follower, &wanted).await;
    let old = fixture.server.take().unwrap();
    old.stop.cancel();
    old.task.await.unwrap();
    let lost = async { while !matches!(follower.next().await, KvCacheChange::Lost(_)) {} };
    tokio::time::timeout(DEADLINE, lost).await.unwrap();
    let local = fixture.engine.client();
    collect(local.generate(request("b", &prompt(9, 1), 2)).await.unwrap()).await;
    wanted.extend(hashes(&prompt(9, 1), &expected(&prompt(9, 1), 7, 2), ""));
    let path = target.strip_prefix("unix:").unwrap().into();
    let server = kvasir_service::grpc::Listener::Unix(path).bind().await.unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let serving = tokio::spawn({
        let (engine, stop) = (Arc::clone(&fixture.engine), stop.clone());
        async move { server.serve(&engine, stop).await.unwrap() }
    });
    let changes = follow(&mut follower, &wanted).await;
    assert!(!changes.contains(&KvCacheChange::Reset), "{changes:?}");
    stop.cancel();
    drop((follower, client));
    serving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_starts_readers_over_under_its_number() {
    both(async |fixture| {
        let wanted = run(&fixture, "a", &prompt(9, 0), 2).await.into_iter().collect();
        let mut follower = KvCacheFollower::new(Arc::clone(&fixture.client), 1 << 16);
        follow(&mut follower, &wanted).await;
        fixture.engine.begin_epoch(7);
        let reset = async { while follower.next().await != KvCacheChange::Reset {} };
        tokio::time::timeout(DEADLINE, reset).await.unwrap();
        let address = follower.view().source().unwrap().address.clone().unwrap();
        assert_eq!(address.epoch, 7);
        assert_eq!(fixture.load().await.address, Some(address));
        follow(&mut follower, &wanted).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_never_reads_holds_nobody_up() {
    let fixture = Fixture::new(Kind::Tcp).await;
    let idle: Vec<_> = futures::future::join_all((0..8).map(|_| fixture.client.watch_kv_cache(None))).await;
    assert!(idle.iter().all(Result::is_ok));
    let mut wanted = BTreeSet::new();
    for salt in 0..20 {
        wanted.extend(run(&fixture, &format!("r{salt}"), &prompt(64, salt), 4).await);
    }
    let mut follower = KvCacheFollower::new(Arc::clone(&fixture.client), 1 << 16);
    follow(&mut follower, &wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_readers_than_the_limit_are_refused_and_places_come_back() {
    let options = Options::default();
    let limits = ServiceLimits {
        max_watches: 2,
        ..options.limits
    };
    let fixture = Fixture::with(Kind::Tcp, Options { limits, ..options }).await;
    let mut first = fixture.client.watch_load().await.unwrap();
    let mut second = fixture.client.watch_kv_cache(None).await.unwrap();
    next_load(&mut first).await;
    start_of(&mut second).await;
    let refused = fixture.client.watch_load().await.err().unwrap();
    assert_eq!(refused.code(), ErrorCode::QueueFull);
    drop(first);
    let again = async {
        while fixture.client.watch_load().await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, again).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_end_with_the_engine() {
    let fixture = Fixture::new(Kind::Local).await;
    let mut load = fixture.client.watch_load().await.unwrap();
    let mut cache = fixture.client.watch_kv_cache(None).await.unwrap();
    next_load(&mut load).await;
    fixture.engine.shutdown().await;
    let ended = async {
        while load.next().await.is_some() {}
        while cache.next().await.is_some() {}
    };
    tokio::time::timeout(DEADLINE, ended).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_is_told_at_once_and_when_it_changes() {
    both(async |fixture| {
        let mut load = fixture.client.watch_load().await.unwrap();
        let first = next_load(&mut load).await;
        assert_eq!(first.num_steps, 0);
        assert_eq!(first.address.unwrap().instance_id, "test");
        run(&fixture, "a", &prompt(9, 0), 5).await;
        while next_load(&mut load).await.generation_tokens < 5 {}
        let draining = fixture.client.drain(Duration::ZERO);
        draining.await.unwrap();
        while !next_load(&mut load).await.draining {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_step_is_told_to_readers_of_the_load() {
    let fixture = Fixture::new(Kind::Tcp).await;
    fixture.control.hold();
    let mut load = fixture.client.watch_load().await.unwrap();
    let request = request("stuck", &prompt(5, 0), 5);
    let stuck = async { while next_load(&mut load).await.stalled_us < 1_000_000 {} };
    let generate = fixture.client.generate(request);
    let both = futures::future::select(Box::pin(generate), Box::pin(stuck));
    let _kept = tokio::time::timeout(DEADLINE, async {
        match both.await {
            futures::future::Either::Left((stream, stuck)) => {
                stuck.await;
                stream.ok()
            }
            futures::future::Either::Right(_) => None,
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeline_lists_what_happened_if_asked() {
    both(async |fixture| {
        let prompt = prompt(600, 0);
        let asked = GenerateRequest {
            timeline: true,
            ..request("a", &prompt, 4)
        };
        let finish = finish_of(&collect(fixture.start(asked).await).await, 0);
        let timeline = finish.timeline.unwrap();
        let kinds: Vec<_> = timeline.entries.iter().map(TimelineEntry::kind).collect();
        // A budget of 256 tokens cuts the prompt into three.
        assert_eq!(
            kinds,
            [
                TimelineKind::Queued,
                TimelineKind::Scheduled,
                TimelineKind::Chunk,
                TimelineKind::Chunk,
                TimelineKind::Chunk,
                TimelineKind::FirstToken,
                TimelineKind::Finished,
            ]
        );
        let tokens: Vec<_> = timeline.entries.iter().map(|entry| entry.tokens).collect();
        assert_eq!(tokens, [0, 0, 256, 256, 88, 0, 4]);
        assert!(timeline.entries.iter().is_sorted_by_key(|entry| entry.at_us));
        assert!(timeline.entries[2..5].iter().is_sorted_by_key(|entry| entry.step));
        let unasked = finish_of(&collect(fixture.start(request("b", &prompt, 4)).await).await, 0);
        assert!(unasked.timeline.unwrap().entries.is_empty());
    })
    .await;
}
