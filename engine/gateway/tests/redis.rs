//! The accounts in a real Redis server: the scripts do what the core's reference store says, and a server that goes and comes back.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_gateway::store::{Accounts, LimitStore, RedisStore, StoreError};
use kvasir_gateway_core::limits::store::{ReferenceStore, keys};
use kvasir_gateway_core::limits::{Amounts, Cost, Dimension, Exhausted, Limits, Mode, StoreAdjustment};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::time::Micros;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_mins(1);
const LEASE: Duration = Duration::from_secs(30);

/// A server on a Unix socket in a folder of its own.
struct Server {
    process: Option<Child>,
    folder: TempDir,
}

impl Server {
    async fn start() -> Self {
        let mut server = Self {
            process: None,
            folder: TempDir::new().unwrap(),
        };
        server.run().await;
        server
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    fn url(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    fn store(&self, prefix: &str) -> RedisStore {
        RedisStore::new(&self.url(), prefix, None).unwrap()
    }

    async fn run(&mut self) {
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is needed: apt-get install redis-server");
        self.process = Some(process);
        let store = self.store("ping");
        let start = Instant::now();
        while store.ping().await.is_err() {
            assert!(start.elapsed() < DEADLINE, "the server doesn't answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
            std::fs::remove_file(self.socket()).ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Clone, Debug)]
enum Action {
    Charge {
        tenant: usize,
        cost: (u64, u64),
    },
    Settle {
        which: prop::sample::Index,
        percent: u64,
    },
    Merge {
        tenant: usize,
        age: u64,
        amount: u64,
    },
    Renew {
        which: prop::sample::Index,
    },
    Age(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0_usize..2, (0_u64..40, 0_u64..40)).prop_map(|(tenant, cost)| Action::Charge { tenant, cost }),
        4 => (any::<prop::sample::Index>(), 0_u64..150).prop_map(|(which, percent)| Action::Settle { which, percent }),
        1 => (0_usize..2, 0_u64..70, 0_u64..50).prop_map(|(tenant, age, amount)| Action::Merge { tenant, age, amount }),
        1 => any::<prop::sample::Index>().prop_map(|which| Action::Renew { which }),
        2 => (0_u64..40).prop_map(Action::Age),
    ]
}

/// Both stores, and what was charged. The server's clock can't be moved, so its records are moved into the past instead; `offset` is how far.
struct Pair {
    redis: RedisStore,
    connection: MultiplexedConnection,
    prefix: String,
    reference: ReferenceStore,
    offset: u64,
    open: Vec<(usize, String, u64, Amounts)>,
    num_requests: usize,
}

fn tenant(place: usize) -> TenantName {
    TenantName::new(["team-a", "team-b"][place]).unwrap()
}

fn limits(place: usize) -> Limits {
    let both = Limits {
        requests_per_minute: Some(9),
        tokens_per_minute: Some(220),
        input_tokens_per_minute: Some(140),
        output_tokens_per_minute: None,
        concurrency: Some(6),
    };
    let second = Limits {
        output_tokens_per_minute: Some(60),
        concurrency: None,
        ..both
    };
    [both, second][place]
}

impl Pair {
    async fn new(server: &Server, number: usize) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        let prefix = format!("history-{number}");
        Self {
            redis: server.store(&prefix),
            connection: client.get_multiplexed_async_connection().await.unwrap(),
            prefix,
            reference: ReferenceStore::default(),
            offset: 0,
            open: Vec::new(),
            num_requests: 0,
        }
    }

    /// The reference's time.
    async fn now(&mut self) -> Micros {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME")
            .query_async(&mut self.connection)
            .await
            .unwrap();
        Micros((seconds + self.offset) * 1_000_000 + micros)
    }

    /// Waits until nothing of a step can fall into the next second, and answers the time.
    async fn early_in_a_second(&mut self) -> Micros {
        loop {
            let now = self.now().await;
            if now.0 % 1_000_000 < 700_000 {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Takes a step at both. `None` if a second began meanwhile, so that nobody knows in which one it fell.
    async fn step(&mut self, action: &Action) -> Option<()> {
        let before = self.early_in_a_second().await;
        match action {
            Action::Charge { tenant, cost } => self.charge(*tenant, *cost, before).await,
            Action::Settle { which, percent } if !self.open.is_empty() => {
                let (place, request, slot, charged) = self.open.swap_remove(which.index(self.open.len()));
                let actual = Amounts::from(charged.as_array().map(|amount| amount * percent / 100));
                let adjustment = |slot| StoreAdjustment {
                    tenant: tenant(place),
                    slot,
                    charged,
                    actual,
                };
                // Slots of before the beginning of Redis' clock don't count there, nor here.
                self.redis
                    .settle(&adjustment(slot - self.offset), &request)
                    .await
                    .unwrap();
                self.reference.settle(&adjustment(slot), &request, before);
            }
            Action::Merge {
                tenant: place,
                age,
                amount,
            } => {
                let items = [kvasir_gateway_core::limits::MergeItem {
                    tenant: tenant(*place),
                    age_seconds: *age,
                    amounts: [1, 2 * amount, *amount, *amount].into(),
                }];
                let slot = self.redis.merge(&tenant(*place), &items).await.unwrap();
                assert_eq!(slot + self.offset, self.reference.merge(&items, before));
            }
            Action::Renew { which } if !self.open.is_empty() => {
                let (place, request, ..) = &self.open[which.index(self.open.len())];
                let requests = [request.clone(), "unknown".to_owned()];
                self.redis.renew(&tenant(*place), &requests, LEASE).await.unwrap();
                self.reference
                    .renew(&tenant(*place), &[request, "unknown"], LEASE, before);
            }
            Action::Age(seconds) => self.age(*seconds).await,
            Action::Settle { .. } | Action::Renew { .. } => {}
        }
        self.compare().await
    }

    async fn charge(&mut self, place: usize, cost: (u64, u64), before: Micros) {
        let cost = Cost {
            input_tokens: cost.0,
            output_tokens: cost.1,
        };
        self.num_requests += 1;
        let request = self.num_requests.to_string();
        let (of, within) = (tenant(place), limits(place));
        let there = self
            .redis
            .charge(&of, &within, cost, (&request, LEASE))
            .await
            .unwrap();
        let here = self
            .reference
            .charge(&of, &within, cost.amounts(), (&request, LEASE), before);
        match (there, here) {
            (Ok(there), Ok(here)) => {
                assert_eq!((there.num_running, there.used), (here.num_running, here.used));
                assert_eq!(there.slot + self.offset, here.slot);
                self.open.push((place, request, here.slot, cost.amounts()));
            }
            (Err(there), Err(here)) => assert_same_refusal(there, here),
            (there, here) => panic!("Redis says {there:?}, the reference {here:?}"),
        }
    }

    /// Moves the server's records into the past.
    async fn age(&mut self, seconds: u64) {
        let script = redis::Script::new(
            "local fields = redis.call('HGETALL', KEYS[1])
             redis.call('DEL', KEYS[1])
             for i = 1, #fields, 2 do
               local at, dimension = string.match(fields[i], '^(%d+):(%d)$')
               redis.call('HSET', KEYS[1], string.format('%d:%s', at - ARGV[1], dimension), fields[i + 1])
             end
             for _, request in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
               redis.call('ZINCRBY', KEYS[2], -1000 * ARGV[1], request)
             end",
        );
        for place in 0..2 {
            let [window, leases] = keys(&self.prefix, &tenant(place));
            let mut call = script.prepare_invoke();
            call.key(window).key(leases).arg(seconds);
            let _: () = call.invoke_async(&mut self.connection).await.unwrap();
        }
        self.offset += seconds;
    }

    /// Compares all sums by charges of nothing, which have no place to take.
    async fn compare(&mut self) -> Option<()> {
        for place in 0..2 {
            let now = self.now().await;
            let (of, unlimited) = (tenant(place), Limits::default());
            let there = self.redis.charge(
                &of,
                &unlimited,
                Cost::default(),
                ("probe", Duration::from_millis(1)),
            );
            let there = there.await.unwrap().unwrap();
            let after = self.now().await;
            let probe = ("probe", Duration::from_millis(1));
            let here = self
                .reference
                .charge(&of, &unlimited, Cost::default().amounts(), probe, now)
                .unwrap();
            if now.0 / 1_000_000 != after.0 / 1_000_000 {
                return None;
            }
            assert_eq!(there.used, here.used, "{:?}", Dimension::ALL);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Some(())
    }
}

/// The time until there is room is known to the millisecond there, and to the time that the call took.
fn assert_same_refusal(there: Exhausted, here: Exhausted) {
    let without_time = |refusal: Exhausted| match refusal {
        Exhausted::PerMinute {
            dimension,
            limit,
            used,
            wanted,
            retry_after,
        } => (
            Some((dimension, limit, used, wanted, retry_after.is_some())),
            retry_after,
        ),
        Exhausted::Concurrency { .. } => (None, None),
    };
    let ((there, there_after), (here, here_after)) = (without_time(there), without_time(here));
    assert_eq!(there, here);
    if let (Some(there), Some(here)) = (there_after, here_after) {
        assert!(there <= here + Duration::from_millis(1), "{there:?} {here:?}");
        assert!(there + Duration::from_millis(500) >= here, "{there:?} {here:?}");
    }
}

#[tokio::test]
async fn the_scripts_do_what_the_reference_store_says() {
    let server = Server::start().await;
    let mut runner = TestRunner::deterministic();
    let history = prop::collection::vec(action(), 10..60);
    let (mut num_whole, mut num_steps) = (0, 0);
    for number in 0..40 {
        let actions = history.new_tree(&mut runner).unwrap().current();
        let mut pair = Pair::new(&server, number).await;
        let mut is_whole = true;
        for action in &actions {
            num_steps += 1;
            if pair.step(action).await.is_none() {
                // A busy machine let a second pass: the rest of this history proves nothing.
                is_whole = false;
                break;
            }
        }
        num_whole += usize::from(is_whole);
    }
    assert!(num_whole >= 5, "{num_whole} whole histories of {num_steps} steps");
}

#[tokio::test]
async fn gateways_share_limits_lose_the_server_and_come_back() {
    let mut server = Server::start().await;
    let gateways: Vec<Accounts> = (0..2)
        .map(|_| Accounts::with_store(2, Arc::new(server.store("shared"))))
        .collect();
    let limits = Limits {
        tokens_per_minute: Some(1000),
        ..Limits::default()
    };
    let cost = |input_tokens| Cost {
        input_tokens,
        output_tokens: 0,
    };
    let of = tenant(0);
    let first = gateways[0].charge(&of, &limits, cost(400)).await.unwrap();
    assert!(gateways[1].charge(&of, &limits, cost(700)).await.is_err());
    server.kill();
    // Each has a share of 500 now, and the first one has used 400 of it; a share refills by 8 tokens a second.
    assert!(gateways[0].charge(&of, &limits, cost(400)).await.is_err());
    let alone = gateways[1].charge(&of, &limits, cost(500)).await.unwrap();
    for gateway in &gateways {
        assert_eq!(gateway.figures().mode, Mode::Alone);
    }
    first.charge.settle(cost(100));
    server.run().await;
    let start = Instant::now();
    while gateways
        .iter()
        .any(|gateway| gateway.figures().mode == Mode::Alone)
    {
        assert!(start.elapsed() < DEADLINE, "they don't come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // They decide by the server as soon as it answers, and tell it at the same time what they admitted: that's done when this is.
    for gateway in &gateways {
        gateway.flush(DEADLINE).await;
    }
    // The server came back empty, and has heard of the 500 only. It refills by 17 tokens a second.
    assert!(gateways[0].charge(&of, &limits, cost(950)).await.is_err());
    alone.charge.cancel();
}

#[tokio::test]
async fn a_server_that_says_nothing_costs_a_bounded_time() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("silent.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let store = RedisStore::new(&format!("unix:{}", socket.display()), "p", None).unwrap();
    let asked = tokio::time::timeout(DEADLINE, store.ping()).await.unwrap();
    assert!(matches!(asked, Err(StoreError::TimedOut { .. })), "{asked:?}");
}

#[test]
fn urls_that_are_none_are_refused_without_being_repeated() {
    for url in ["", "http://a", "redis//x", "secret", "postgres://user:secret@a/"] {
        let refused = RedisStore::new(url, "p", None).unwrap_err();
        assert!(!format!("{refused} {refused:?}").contains("secret"), "{refused}");
    }
    for url in [
        "redis://h/",
        "redis://:secret@h:1/2",
        "unix:/tmp/x.sock",
        "redis://u:secret@h",
    ] {
        let store = RedisStore::new(url, "p", None).unwrap();
        assert!(!format!("{store:?}").contains("secret"), "{store:?}");
    }
}
