//! What the gateway asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvasir_gateway_core::limits::{
    Charge, Cost, Exhausted, Ledger, Limits, Mode, StoreAdjustment, Totals, Usage,
};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::time::Micros;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::keeper::{self, LEASE, Update};
use super::{LimitStore, StoreError};

/// Updates that wait to be sent to the store: a few seconds of a busy gateway. More are dropped, and the account keeps their estimates until they
/// are a minute old.
const MAX_UPDATES: usize = 65_536;

/// All accounts of one gateway. A clone is the same accounts.
#[derive(Clone, Debug)]
pub struct Accounts {
    shared: Arc<Shared>,
    _keeper: Option<Arc<AbortOnDropHandle<()>>>,
}

/// A request that may run.
#[derive(Debug)]
pub struct Admitted {
    /// To be settled when it has ended.
    pub charge: OpenCharge,
    /// The state of the tenant's limits, for the client.
    pub usage: Usage,
}

/// What a running request was charged. One that is dropped is settled on its estimate.
#[derive(Debug)]
pub struct OpenCharge {
    shared: Arc<Shared>,
    /// `None` once it's settled.
    open: Option<Open>,
    estimate: Cost,
}

#[derive(Debug)]
struct Open {
    charge: Charge,
    lease: Option<(TenantName, String)>,
}

/// How the accounts and their store fare.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AccountsFigures {
    /// Who decides at the moment.
    pub mode: Mode,
    /// Whether a store is configured.
    pub has_store: bool,
    /// Calls of the store that failed.
    pub num_failures: u64,
    /// How often the store was lost.
    pub num_losses: u64,
    /// Updates that the store will never get: the queue was full, or they were too old when it came back.
    pub num_dropped_updates: u64,
}

/// What the keeper shares.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) store: Option<Arc<dyn LimitStore>>,
    updates: mpsc::Sender<Update>,
    /// The beginning of the ledger's clock.
    start: Instant,
    /// What this gateway's requests are called in the store.
    name: String,
    num_requests: AtomicU64,
    num_failures: AtomicU64,
    num_losses: AtomicU64,
    pub(super) num_dropped_updates: AtomicU64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) ledger: Ledger,
    /// Leases of running requests.
    pub(super) leases: BTreeMap<TenantName, BTreeSet<String>>,
}

impl Accounts {
    /// Accounts of one of `replicas` gateways that share nothing.
    pub fn alone(replicas: u32) -> Self {
        let (shared, _) = Shared::new(replicas, None);
        Self {
            shared,
            _keeper: None,
        }
    }

    /// Accounts that are shared through a store. Call it within a runtime.
    pub fn with_store(replicas: u32, store: Arc<dyn LimitStore>) -> Self {
        let (shared, updates) = Shared::new(replicas, Some(store));
        let keeper = tokio::spawn(keeper::keep(Arc::clone(&shared), updates));
        Self {
            shared,
            _keeper: Some(Arc::new(AbortOnDropHandle::new(keeper))),
        }
    }

    /// Admits a request of a tenant, or says which of its limits leaves no room.
    ///
    /// # Errors
    /// There is no room. Nothing was charged.
    pub async fn charge(
        &self,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
    ) -> Result<Admitted, Exhausted> {
        let store = match &self.shared.store {
            Some(store) if self.shared.lock().ledger.mode() == Mode::Store => Arc::clone(store),
            _ => return self.shared.charge_alone(tenant, limits, estimate),
        };
        let (sender, answer) = oneshot::channel();
        let (shared, of, within) = (Arc::clone(&self.shared), tenant.clone(), *limits);
        // In a task of its own, because a caller that is dropped meanwhile must not leave a charge behind that nobody knows.
        tokio::spawn(async move {
            let decided = shared.charge_in(&*store, &of, &within, estimate).await;
            if let Err(Ok(admitted)) = sender.send(decided) {
                admitted.charge.cancel();
            }
        });
        match answer.await {
            Ok(decided) => decided,
            // The task was lost, which only happens when the runtime ends.
            Err(_) => self.shared.charge_alone(tenant, limits, estimate),
        }
    }

    /// What a tenant has had since this gateway began, exact to the token.
    pub fn totals(&self, tenant: &TenantName) -> Totals {
        self.shared.lock().ledger.totals(tenant)
    }

    /// How many gateways there are now.
    pub fn set_replicas(&self, replicas: u32) {
        self.shared.lock().ledger.set_replicas(replicas);
    }

    /// Forgets tenants that are gone from the configuration and have nothing running.
    pub fn retain(&self, is_kept: impl Fn(&TenantName) -> bool) {
        self.shared.lock().ledger.retain(is_kept);
    }

    /// Waits until all settlements so far have been sent to the store, at most so long: for the end of the process.
    pub async fn flush(&self, at_most: Duration) {
        let (sender, done) = oneshot::channel();
        if self.shared.store.is_some() && self.shared.updates.send(Update::Flush(sender)).await.is_ok() {
            // Whether it's done or out of time, there is nothing more to do.
            drop(tokio::time::timeout(at_most, done).await);
        }
    }

    /// How the accounts and their store fare.
    pub fn figures(&self) -> AccountsFigures {
        let shared = &self.shared;
        AccountsFigures {
            mode: shared.lock().ledger.mode(),
            has_store: shared.store.is_some(),
            num_failures: shared.num_failures.load(Relaxed),
            num_losses: shared.num_losses.load(Relaxed),
            num_dropped_updates: shared.num_dropped_updates.load(Relaxed),
        }
    }
}

impl OpenCharge {
    /// What the request was estimated to cost.
    pub fn estimate(&self) -> Cost {
        self.estimate
    }

    /// The request has ended, and had this.
    pub fn settle(mut self, actual: Cost) {
        self.close(Some(actual));
    }

    /// The request never reached an engine and costs nothing.
    pub fn cancel(mut self) {
        self.close(None);
    }

    fn close(&mut self, actual: Option<Cost>) {
        let Some(Open { charge, lease }) = self.open.take() else {
            return;
        };
        let now = self.shared.now();
        let adjustment = {
            let mut state = self.shared.lock();
            if let Some((tenant, request)) = &lease
                && let Some(leases) = state.leases.get_mut(tenant)
            {
                leases.remove(request);
            }
            match actual {
                Some(actual) => state.ledger.settle(charge, actual, now),
                None => state.ledger.cancel(charge, now),
            }
        };
        self.shared.queue(adjustment, lease);
    }
}

impl Drop for OpenCharge {
    fn drop(&mut self) {
        self.close(Some(self.estimate));
    }
}

impl Shared {
    fn new(replicas: u32, store: Option<Arc<dyn LimitStore>>) -> (Arc<Self>, mpsc::Receiver<Update>) {
        let (updates, receiver) = mpsc::channel(MAX_UPDATES);
        let mode = if store.is_some() { Mode::Store } else { Mode::Alone };
        let shared = Self {
            state: Mutex::new(State {
                ledger: Ledger::new(replicas, mode),
                leases: BTreeMap::new(),
            }),
            store,
            updates,
            start: Instant::now(),
            name: Uuid::new_v4().simple().to_string(),
            num_requests: AtomicU64::new(0),
            num_failures: AtomicU64::new(0),
            num_losses: AtomicU64::new(0),
            num_dropped_updates: AtomicU64::new(0),
        };
        (Arc::new(shared), receiver)
    }

    /// No code that can panic runs while it's held, and all of the state is valid between calls.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Micros {
        Micros(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// The store failed: from now on this gateway decides by its share.
    pub(super) fn lost(&self, error: &StoreError) {
        self.num_failures.fetch_add(1, Relaxed);
        let mut state = self.lock();
        if state.ledger.mode() == Mode::Store {
            state.ledger.leave();
            self.num_losses.fetch_add(1, Relaxed);
            tracing::warn!(%error, "limits are enforced by this gateway's share until the store is back");
        }
    }

    fn charge_alone(
        self: &Arc<Self>,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
    ) -> Result<Admitted, Exhausted> {
        let now = self.now();
        let mut state = self.lock();
        let charge = state.ledger.charge(tenant, limits, estimate, now)?;
        let usage = state.ledger.usage(tenant, limits, now);
        drop(state);
        Ok(self.admitted(charge, None, usage, estimate))
    }

    async fn charge_in(
        self: &Arc<Self>,
        store: &dyn LimitStore,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
    ) -> Result<Admitted, Exhausted> {
        let request = format!("{}-{}", self.name, self.num_requests.fetch_add(1, Relaxed));
        let admission = match store.charge(tenant, limits, estimate, (&request, LEASE)).await {
            Ok(decided) => decided?,
            Err(error) => {
                // If the store did charge it after all, that lasts for a minute and a lease: too little is admitted, never too much.
                self.lost(&error);
                return self.charge_alone(tenant, limits, estimate);
            }
        };
        let charge = {
            let mut state = self.lock();
            let leases = state.leases.entry(tenant.clone()).or_default();
            leases.insert(request.clone());
            state.ledger.record(tenant, estimate, self.now(), admission.slot)
        };
        let lease = Some((tenant.clone(), request));
        Ok(self.admitted(charge, lease, admission.usage(limits), estimate))
    }

    fn admitted(
        self: &Arc<Self>,
        charge: Charge,
        lease: Option<(TenantName, String)>,
        usage: Usage,
        estimate: Cost,
    ) -> Admitted {
        let charge = OpenCharge {
            shared: Arc::clone(self),
            open: Some(Open { charge, lease }),
            estimate,
        };
        Admitted { charge, usage }
    }

    /// Tells the store what a settlement changed there: amounts, the end of a lease, or both.
    fn queue(&self, adjustment: Option<StoreAdjustment>, lease: Option<(TenantName, String)>) {
        let (tenant, request) = match lease {
            Some((tenant, request)) => (Some(tenant), request),
            None => (None, String::new()),
        };
        let only_lease = |tenant| StoreAdjustment {
            tenant,
            slot: 0,
            charged: [0; 4].into(),
            actual: [0; 4].into(),
        };
        let Some(adjustment) = adjustment.or(tenant.map(only_lease)) else {
            return;
        };
        let update = Update::Settle {
            adjustment,
            request,
            at: Instant::now(),
        };
        if self.store.is_some() && self.updates.try_send(update).is_err() {
            self.num_dropped_updates.fetch_add(1, Relaxed);
        }
    }
}
