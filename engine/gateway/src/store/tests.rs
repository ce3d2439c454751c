//! Accounts over a store that can be taken away.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use kvasir_gateway_core::limits::store::ReferenceStore;
use kvasir_gateway_core::limits::{Dimension, Exhausted, Mode};
use kvasir_gateway_core::time::Micros;
use tokio::time::Instant;

use super::*;

/// The reference store on the test's clock.
#[derive(Debug)]
struct Memory {
    store: Mutex<ReferenceStore>,
    start: Instant,
    is_away: std::sync::atomic::AtomicBool,
    /// Charges wait for a permit.
    gate: tokio::sync::Semaphore,
    num_charges: AtomicU64,
    num_connections: AtomicU64,
    /// The next call needs a new connection.
    is_cut: std::sync::atomic::AtomicBool,
}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            store: Mutex::default(),
            start: Instant::now(),
            is_away: false.into(),
            gate: tokio::sync::Semaphore::new(1000),
            num_charges: AtomicU64::new(0),
            num_connections: AtomicU64::new(0),
            is_cut: false.into(),
        })
    }

    fn now(&self) -> Micros {
        Micros(1_000_000_000 + self.start.elapsed().as_micros() as u64)
    }

    fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Relaxed);
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut ReferenceStore, Micros) -> T) -> Result<T, StoreError> {
        if self.is_away.load(Relaxed) {
            let reason = "gone".to_owned();
            return Err(StoreError::Unavailable { reason });
        }
        if self.is_cut.swap(false, Relaxed) {
            self.num_connections.fetch_add(1, Relaxed);
        }
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(use_it(&mut store, self.now()))
    }

    /// Another server answers, which knows nothing.
    fn restart(&self) {
        *self.store.lock().unwrap() = ReferenceStore::default();
        self.is_cut.store(true, Relaxed);
    }

    fn used(&self) -> u64 {
        let store = &mut self.store.lock().unwrap();
        store.used(&tenant(), Dimension::Tokens, self.now())
    }
}

#[async_trait]
impl LimitStore for Memory {
    async fn charge(
        &self,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
        request: (&RequestId, Option<&Instance>),
    ) -> Result<Verdict, StoreError> {
        self.gate.acquire().await.unwrap().forget();
        self.num_charges.fetch_add(1, Relaxed);
        self.with(|store, now| store.charge(tenant, limits, estimate.amounts(), request, now))
    }

    async fn settle(
        &self,
        tenant: &TenantName,
        instance: &Instance,
        ended: &[Ended],
    ) -> Result<Told, StoreError> {
        self.with(|store, now| store.settle(tenant, instance, ended, now))
    }

    async fn merge(&self, tenant: &TenantName, handover: &Handover) -> Result<Told, StoreError> {
        self.with(|store, now| store.merge(tenant, handover, now))
    }

    async fn renew(
        &self,
        tenant: &TenantName,
        instance: &Instance,
        requests: &[RequestId],
    ) -> Result<Told, StoreError> {
        self.with(|store, now| store.renew(tenant, instance, requests, now))
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.with(|_, _| ())
    }

    fn num_connections(&self) -> u64 {
        self.num_connections.load(Relaxed)
    }
}

fn tenant() -> TenantName {
    TenantName::new("team-a").unwrap()
}

fn tokens(input_tokens: u64, output_tokens: u64) -> Cost {
    Cost {
        input_tokens,
        output_tokens,
    }
}

fn limits(tokens: u64, concurrency: u32) -> Limits {
    Limits {
        tokens_per_minute: Some(tokens),
        concurrency: Some(concurrency),
        ..Limits::default()
    }
}

const ENOUGH: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn what_one_gateway_charges_the_other_lacks_until_it_is_settled() {
    let store = Memory::new();
    let (one, other) = (
        Accounts::with_store(2, store.clone()),
        Accounts::with_store(2, store.clone()),
    );
    let limits = limits(100, 10);
    let admitted = one.charge(&tenant(), &limits, tokens(50, 50)).await.unwrap();
    assert!(other.charge(&tenant(), &limits, tokens(1, 0)).await.is_err());
    admitted.charge.settle(tokens(50, 20));
    one.flush(ENOUGH).await;
    assert!(other.charge(&tenant(), &limits, tokens(31, 0)).await.is_err());
    assert!(other.charge(&tenant(), &limits, tokens(30, 0)).await.is_ok());
    assert_eq!(one.totals(&tenant()).settled.get(Dimension::Tokens), 70);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ends_as_estimated_frees_its_place_at_once() {
    let store = Memory::new();
    let accounts = Accounts::with_store(1, store.clone());
    let limits = limits(1000, 1);
    let admitted = accounts.charge(&tenant(), &limits, tokens(1, 1)).await.unwrap();
    let refused = accounts
        .charge(&tenant(), &limits, tokens(1, 1))
        .await
        .unwrap_err();
    assert_eq!(refused, Exhausted::Concurrency { limit: 1 });
    admitted.charge.settle(tokens(1, 1));
    accounts.flush(ENOUGH).await;
    assert!(accounts.charge(&tenant(), &limits, tokens(1, 1)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_as_long_as_its_request_runs() {
    let store = Memory::new();
    let accounts = Accounts::with_store(1, store.clone());
    let other = Accounts::with_store(1, store.clone());
    let limits = limits(1000, 1);
    let admitted = accounts.charge(&tenant(), &limits, tokens(1, 1)).await.unwrap();
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(other.charge(&tenant(), &limits, tokens(1, 1)).await.is_err());
    }
    drop(admitted);
    accounts.flush(ENOUGH).await;
    assert!(other.charge(&tenant(), &limits, tokens(1, 1)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn without_the_store_each_gateway_enforces_its_share_and_hands_it_over_afterwards() {
    let store = Memory::new();
    let accounts = Accounts::with_store(2, store.clone());
    let limits = limits(100, 10);
    store.set_away(true);
    let first = accounts.charge(&tenant(), &limits, tokens(30, 0)).await.unwrap();
    assert!(accounts.charge(&tenant(), &limits, tokens(21, 0)).await.is_err());
    let second = accounts.charge(&tenant(), &limits, tokens(20, 0)).await.unwrap();
    let figures = accounts.figures();
    assert_eq!((figures.mode, figures.num_losses), (Mode::Alone, 1));
    first.charge.settle(tokens(10, 0));
    store.set_away(false);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(accounts.figures().mode, Mode::Store);
    assert_eq!(store.used(), 30);
    // A charge of the time without the store is settled in the store after it.
    second.charge.settle(tokens(1, 0));
    accounts.flush(ENOUGH).await;
    assert_eq!(store.used(), 11);
}

#[tokio::test(start_paused = true)]
async fn settlements_that_the_store_missed_reach_it_when_it_is_back() {
    let store = Memory::new();
    let accounts = Accounts::with_store(1, store.clone());
    let limits = limits(1000, 10);
    let admitted = accounts
        .charge(&tenant(), &limits, tokens(100, 100))
        .await
        .unwrap();
    store.set_away(true);
    admitted.charge.settle(tokens(100, 1));
    accounts.flush(ENOUGH).await;
    assert_eq!((store.used(), accounts.figures().mode), (200, Mode::Alone));
    store.set_away(false);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((store.used(), accounts.figures().mode), (101, Mode::Store));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_during_a_charge_costs_nothing() {
    let store = Memory::new();
    let accounts = Accounts::with_store(1, store.clone());
    store.gate.forget_permits(1000);
    let limits = limits(1000, 10);
    let of = tenant();
    let charge = accounts.charge(&of, &limits, tokens(100, 100));
    assert!(
        tokio::time::timeout(Duration::from_millis(1), charge)
            .await
            .is_err()
    );
    store.gate.add_permits(1000);
    while store.num_charges.load(Relaxed) == 0 || accounts.totals(&tenant()).num_running > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    accounts.flush(ENOUGH).await;
    assert_eq!(store.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_costs_nothing_and_a_forgotten_one_its_estimate() {
    let accounts = Accounts::alone(1);
    let limits = limits(1000, 2);
    let cancelled = accounts.charge(&tenant(), &limits, tokens(5, 5)).await.unwrap();
    let forgotten = accounts.charge(&tenant(), &limits, tokens(3, 4)).await.unwrap();
    assert!(accounts.charge(&tenant(), &limits, tokens(1, 1)).await.is_err());
    cancelled.charge.cancel();
    drop(forgotten);
    let totals = accounts.totals(&tenant());
    assert_eq!(
        (totals.settled.get(Dimension::Tokens), totals.num_running),
        (7, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_comes_back_empty_hears_the_last_minute_from_everybody() {
    let store = Memory::new();
    let (one, other) = (
        Accounts::with_store(2, store.clone()),
        Accounts::with_store(2, store.clone()),
    );
    let limits = Limits {
        concurrency: Some(2),
        ..limits(100, 2)
    };
    let ended = one.charge(&tenant(), &limits, tokens(20, 20)).await.unwrap();
    ended.charge.settle(tokens(20, 5));
    let _running = one.charge(&tenant(), &limits, tokens(10, 10)).await.unwrap();
    let lost = other.charge(&tenant(), &limits, tokens(10, 20)).await.unwrap();
    store.restart();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(store.used(), 25 + 20 + 30);
    let refused = other.charge(&tenant(), &limits, tokens(1, 0)).await.unwrap_err();
    assert_eq!(refused, Exhausted::Concurrency { limit: 2 });
    lost.charge.settle(tokens(10, 1));
    other.flush(ENOUGH).await;
    assert_eq!(store.used(), 25 + 20 + 11);
    assert_eq!(one.figures().num_losses, 0);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_without_requests_tells_an_emptied_store_of_the_last_minute_too() {
    let store = Memory::new();
    let idle = Accounts::with_store(1, store.clone());
    let limits = limits(100, 10);
    let admitted = idle.charge(&tenant(), &limits, tokens(40, 20)).await.unwrap();
    admitted.charge.settle(tokens(40, 20));
    idle.flush(ENOUGH).await;
    store.restart();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(store.used(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_without_requests_notices_that_the_store_is_gone() {
    let store = Memory::new();
    let idle = Accounts::with_store(1, store.clone());
    store.set_away(true);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(idle.figures().mode, Mode::Alone);
}
