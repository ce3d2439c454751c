//! Keeps the store in step with this gateway, in a task of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::future::join_all;
use kvasir_gateway_core::limits::{MergeItem, Mode, StoreAdjustment};
use kvasir_gateway_core::names::TenantName;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};

use super::accounts::Shared;
use super::{LimitStore, StoreError};

/// How long a request counts as running after its gateway last said so. A gateway that dies frees its places after this time.
pub(super) const LEASE: Duration = Duration::from_secs(30);
/// Three chances to renew before a lease runs out.
const RENEWAL: Duration = Duration::from_secs(10);
/// How often the keeper looks whether a store that was lost is back.
const TICK: Duration = Duration::from_secs(1);
/// Leases that one call renews: a script stops the whole store while it runs.
const MAX_LEASES_PER_CALL: usize = 1000;
/// Updates that are sent at one time.
const MAX_BATCH: usize = 64;
/// Updates that are kept for a store that is away.
const MAX_BACKLOG: usize = 65_536;
/// The store's window: older corrections change nothing there.
const WINDOW: Duration = Duration::from_secs(61);

/// What the store must hear.
#[derive(Debug)]
pub(super) enum Update {
    /// A charge came to something else, or a request ended.
    Settle {
        adjustment: StoreAdjustment,
        /// Empty for a charge without a lease.
        request: String,
        at: Instant,
    },
    /// Answer when everything before is sent.
    Flush(oneshot::Sender<()>),
}

/// Runs until it's aborted or the accounts are gone.
pub(super) async fn keep(shared: Arc<Shared>, mut updates: mpsc::Receiver<Update>) {
    let Some(store) = shared.store.clone() else {
        return;
    };
    let mut keeper = Keeper {
        shared,
        store,
        backlog: VecDeque::new(),
        renewed: Instant::now(),
    };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            _ = tick.tick() => keeper.look_after().await,
            taken = updates.recv_many(&mut batch, MAX_BATCH) => {
                if taken == 0 {
                    return;
                }
                keeper.take(std::mem::take(&mut batch)).await;
            }
        }
    }
}

struct Keeper {
    shared: Arc<Shared>,
    store: Arc<dyn LimitStore>,
    /// Settlements that the store hasn't taken, oldest first.
    backlog: VecDeque<(StoreAdjustment, String, Instant)>,
    renewed: Instant,
}

impl Keeper {
    fn mode(&self) -> Mode {
        self.shared.lock().ledger.mode()
    }

    /// Takes updates, and sends them if the store is there.
    async fn take(&mut self, updates: Vec<Update>) {
        let mut flushed = Vec::new();
        for update in updates {
            match update {
                Update::Settle {
                    adjustment,
                    request,
                    at,
                } => self.backlog.push_back((adjustment, request, at)),
                Update::Flush(done) => flushed.push(done),
            }
        }
        while self.backlog.len() > MAX_BACKLOG {
            self.backlog.pop_front();
            self.shared.num_dropped_updates.fetch_add(1, Relaxed);
        }
        if self.mode() == Mode::Store {
            self.send_backlog().await;
        }
        for done in flushed {
            if done.send(()).is_err() {
                tracing::debug!("nobody waits for the store any more");
            }
        }
    }

    async fn look_after(&mut self) {
        if self.mode() == Mode::Alone && self.come_back().await {
            self.renewed = Instant::now();
            self.renew().await;
        }
        if self.mode() != Mode::Store {
            return;
        }
        self.send_backlog().await;
        if self.renewed.elapsed() >= RENEWAL {
            self.renewed = Instant::now();
            self.renew().await;
        }
    }

    /// Hands over what was admitted meanwhile, if the store answers.
    async fn come_back(&self) -> bool {
        if self.store.ping().await.is_err() {
            return false;
        }
        let now = self.shared.now();
        let merge = self.shared.lock().ledger.rejoin(now);
        let mut by_tenant: BTreeMap<TenantName, Vec<MergeItem>> = BTreeMap::new();
        for item in &merge.items {
            by_tenant
                .entry(item.tenant.clone())
                .or_default()
                .push(item.clone());
        }
        let mut slots = BTreeMap::new();
        for (tenant, items) in by_tenant {
            match self.store.merge(&tenant, &items).await {
                Ok(slot) => drop(slots.insert(tenant, slot)),
                Err(error) => {
                    self.shared.lost(&error);
                    break;
                }
            }
        }
        self.shared.lock().ledger.merged(&merge, &slots);
        let is_back = self.mode() == Mode::Store;
        if is_back {
            tracing::info!("the limit store is back");
        }
        is_back
    }

    /// Sends settlements until there are none, or the store is lost again.
    async fn send_backlog(&mut self) {
        while !self.backlog.is_empty() && self.mode() == Mode::Store {
            let num_taken = self.backlog.len().min(MAX_BATCH);
            let batch: Vec<_> = self.backlog.drain(..num_taken).collect();
            let sent = join_all(batch.iter().map(|entry| self.send(entry))).await;
            for (entry, result) in batch.into_iter().zip(sent).rev() {
                if let Err(error) = result {
                    self.shared.lost(&error);
                    self.backlog.push_front(entry);
                }
            }
        }
    }

    async fn send(&self, entry: &(StoreAdjustment, String, Instant)) -> Result<(), StoreError> {
        let (adjustment, request, at) = entry;
        if at.elapsed() >= WINDOW {
            self.shared.num_dropped_updates.fetch_add(1, Relaxed);
            return Ok(());
        }
        self.store.settle(adjustment, request).await
    }

    async fn renew(&self) {
        let leases: Vec<(TenantName, Vec<String>)> = {
            let mut state = self.shared.lock();
            state.leases.retain(|_, requests| !requests.is_empty());
            let all = state.leases.iter();
            all.map(|(tenant, requests)| (tenant.clone(), requests.iter().cloned().collect()))
                .collect()
        };
        for (tenant, requests) in leases {
            for some in requests.chunks(MAX_LEASES_PER_CALL) {
                if let Err(error) = self.store.renew(&tenant, some, LEASE).await {
                    return self.shared.lost(&error);
                }
            }
        }
    }
}
