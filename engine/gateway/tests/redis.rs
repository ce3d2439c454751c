//! The accounts in a real Redis server: the scripts do what the core's reference store says, and a server that goes and comes back.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

#[path = "support/redis_server.rs"]
mod redis_server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_gateway::store::{Accounts, LimitStore, RedisStore, StoreError};
use kvasir_gateway_core::limits::store::{ReferenceStore, Verdict, keys};
use kvasir_gateway_core::limits::{
    Amounts, Cost, Dimension, Ended, Exhausted, Handover, Instance, Ledger, Limits, Mode, RequestId,
};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::time::Micros;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use crate::redis_server::Server;

const DEADLINE: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
enum Action {
    Charge {
        tenant: usize,
        cost: (u64, u64),
        /// Whether it's meant for an account that isn't there.
        is_elsewhere: bool,
    },
    Settle {
        which: prop::sample::Index,
        percent: u64,
        is_twice: bool,
    },
    /// Something settled, something that runs, something that's known already, and all of it once more if it `is_twice`.
    HandOver {
        tenant: usize,
        age: u64,
        amount: u64,
        known: prop::sample::Index,
        is_twice: bool,
    },
    Renew {
        which: prop::sample::Index,
    },
    Age(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        8 => (0_usize..2, (0_u64..40, 0_u64..40), prop::bool::weighted(0.1))
            .prop_map(|(tenant, cost, is_elsewhere)| Action::Charge { tenant, cost, is_elsewhere }),
        4 => (index(), 0_u64..150, any::<bool>())
            .prop_map(|(which, percent, is_twice)| Action::Settle { which, percent, is_twice }),
        2 => (0_usize..2, 0_u64..70, 0_u64..50, index(), any::<bool>())
            .prop_map(|(tenant, age, amount, known, is_twice)| Action::HandOver { tenant, age, amount, known, is_twice }),
        1 => index().prop_map(|which| Action::Renew { which }),
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
    open: Vec<(usize, RequestId, Amounts)>,
    /// Makes ids.
    ids: Ledger,
    instances: [Option<Instance>; 2],
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
            ids: Ledger::new("r", 1, Mode::Store),
            instances: [None, None],
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
        match *action {
            Action::Charge {
                tenant,
                cost,
                is_elsewhere,
            } => self.charge(tenant, cost, is_elsewhere, before).await,
            Action::Settle {
                which,
                percent,
                is_twice,
            } if !self.open.is_empty() => {
                let (place, id, charged) = self.open.swap_remove(which.index(self.open.len()));
                let actual = Amounts::from(charged.as_array().map(|amount| amount * percent / 100));
                let ended = [Ended { id, actual }];
                for _ in 0..=usize::from(is_twice) {
                    let instance = self.instances[place].clone().unwrap();
                    let there = self.redis.settle(&tenant(place), &instance, &ended).await;
                    let here = self.reference.settle(&tenant(place), &instance, &ended, before);
                    assert_eq!(there.unwrap(), here);
                }
            }
            Action::HandOver {
                tenant,
                age,
                amount,
                known,
                is_twice,
            } => {
                for _ in 0..=usize::from(is_twice) {
                    self.hand_over(tenant, (age, amount), known, before).await;
                }
            }
            Action::Renew { which } if !self.open.is_empty() => {
                let (place, request, _) = self.open[which.index(self.open.len())].clone();
                let instance = self.instances[place].clone().unwrap();
                let ids = [request];
                let there = self.redis.renew(&tenant(place), &instance, &ids).await;
                let here = self.reference.renew(&tenant(place), &instance, &ids, before);
                assert_eq!(there.unwrap(), here);
            }
            Action::Age(seconds) => self.age(seconds).await,
            Action::Settle { .. } | Action::Renew { .. } => {}
        }
        self.compare().await
    }

    async fn hand_over(
        &mut self,
        place: usize,
        (age, amount): (u64, u64),
        known: prop::sample::Index,
        before: Micros,
    ) {
        let amounts = Amounts::from([1, 2 * amount, amount, amount]);
        let fresh = self.ids.new_id();
        let mut open = vec![(fresh.clone(), age, amounts)];
        let of_tenant: Vec<_> = self.open.iter().filter(|(of, ..)| *of == place).collect();
        if !of_tenant.is_empty() {
            let (_, id, charged) = of_tenant[known.index(of_tenant.len())];
            open.push((id.clone(), age / 2, *charged));
        }
        let handover = Handover {
            id: self.ids.new_id(),
            expected: self.instances[place].clone(),
            settled: vec![(age, amounts), (age / 3, amounts)],
            open,
        };
        let there = self.redis.merge(&tenant(place), &handover).await.unwrap();
        let here = self.reference.merge(&tenant(place), &handover, before);
        assert_eq!(there, here);
        if let kvasir_gateway_core::limits::Told::Done(instance) = here {
            self.instances[place] = Some(instance);
            self.open.push((place, fresh, amounts));
        }
    }

    async fn charge(&mut self, place: usize, cost: (u64, u64), is_elsewhere: bool, before: Micros) {
        let cost = Cost {
            input_tokens: cost.0,
            output_tokens: cost.1,
        };
        let id = self.ids.new_id();
        let (of, within) = (tenant(place), limits(place));
        let known = if is_elsewhere {
            Some(Instance("another".into()))
        } else {
            self.instances[place].clone()
        };
        let request = (&id, known.as_ref());
        let there = self.redis.charge(&of, &within, cost, request).await.unwrap();
        let here = self
            .reference
            .charge(&of, &within, cost.amounts(), request, before);
        match (there, here) {
            (Verdict::Refused(there), Verdict::Refused(here)) => assert_same_refusal(there, here),
            (there, here) => {
                assert_eq!(there, here);
                if let Verdict::Admitted(admission) = here {
                    self.instances[place] = Some(admission.instance);
                    self.open.push((place, id, cost.amounts()));
                }
            }
        }
    }

    /// Moves the server's records into the past.
    async fn age(&mut self, seconds: u64) {
        let script = redis::Script::new(
            "local fields = redis.call('HGETALL', KEYS[1])
             for i = 1, #fields, 2 do
               if fields[i] ~= 'instance' then redis.call('HDEL', KEYS[1], fields[i]) end
             end
             for i = 1, #fields, 2 do
               local at, dimension = string.match(fields[i], '^(%d+):(%d)$')
               if at then redis.call('HSET', KEYS[1], string.format('%d:%s', at - ARGV[1], dimension), fields[i + 1]) end
             end
             for _, request in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
               redis.call('ZINCRBY', KEYS[2], -1000 * ARGV[1], request)
             end
             local records = redis.call('HGETALL', KEYS[3])
             for i = 1, #records, 2 do
               local at, rest = string.match(records[i + 1], '^(%d+)(:.*)$')
               if at then redis.call('HSET', KEYS[3], records[i], string.format('%d%s', at - ARGV[1], rest)) end
             end
             for _, request in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
               redis.call('ZINCRBY', KEYS[4], -ARGV[1], request)
             end",
        );
        for place in 0..2 {
            let mut call = script.prepare_invoke();
            for key in keys(&self.prefix, &tenant(place)) {
                call.key(key);
            }
            let _: () = call
                .arg(seconds)
                .invoke_async(&mut self.connection)
                .await
                .unwrap();
        }
        self.offset += seconds;
    }

    /// Compares all sums by charges of nothing, which are cancelled.
    async fn compare(&mut self) -> Option<()> {
        for place in 0..2 {
            let now = self.now().await;
            let id = self.ids.new_id();
            let (of, unlimited) = (tenant(place), Limits::default());
            let request = (&id, None);
            let there = self.redis.charge(&of, &unlimited, Cost::default(), request);
            let there = there.await.unwrap();
            let after = self.now().await;
            let nothing = Cost::default().amounts();
            let here = self.reference.charge(&of, &unlimited, nothing, request, now);
            if now.0 / 1_000_000 != after.0 / 1_000_000 {
                return None;
            }
            assert_eq!(there, here, "{:?}", Dimension::ALL);
            let Verdict::Admitted(admission) = here else {
                panic!("{here:?}");
            };
            let ended = [Ended {
                id,
                actual: Amounts::default(),
            }];
            let settled = self.redis.settle(&of, &admission.instance, &ended).await;
            let here = self.reference.settle(&of, &admission.instance, &ended, now);
            assert_eq!(settled.unwrap(), here);
            self.instances[place] = Some(admission.instance);
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
    // They decide by the server as soon as it answers, and tell it first what they admitted; a flush waits for all of it.
    for gateway in &gateways {
        gateway.flush(DEADLINE).await;
    }
    // The server came back empty, and has heard of everything again: the 100 that the first one settled meanwhile, and the 500.
    assert_room(&gateways[0], &limits, 400).await;
    alone.charge.settle(cost(10));
    gateways[1].flush(DEADLINE).await;
    assert_room(&gateways[0], &limits, 890).await;
    assert_room(&gateways[1], &limits, 890).await;
}

/// There is room for exactly so many tokens.
async fn assert_room(gateway: &Accounts, limits: &Limits, tokens: u64) {
    let cost = |input_tokens| Cost {
        input_tokens,
        output_tokens: 0,
    };
    let of = tenant(0);
    let refused = gateway.charge(&of, limits, cost(tokens + 1)).await;
    assert!(refused.is_err(), "there is room for more than {tokens}");
    let admitted = gateway.charge(&of, limits, cost(tokens)).await;
    admitted.unwrap().charge.cancel();
    gateway.flush(DEADLINE).await;
    assert_eq!(gateway.figures().mode, Mode::Store);
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
