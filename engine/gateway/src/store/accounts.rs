//! What the gateway asks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvasir_gateway_core::limits::store::Verdict;
use kvasir_gateway_core::limits::{
    Ask, Charge, Cost, Exhausted, Instance, Ledger, Limits, Mode, RequestId, Totals, Usage,
};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::time::Micros;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::keeper::{self, Task};
use super::{LimitStore, StoreError};

/// Tasks that wait for the keeper. It looks for more by itself, so that none is lost.
const MAX_TASKS: usize = 65_536;
/// How often a charge comes back to the store after it had to be told something first.
const MAX_ASKS: usize = 3;

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
    tenant: TenantName,
    charge: Charge,
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
    /// Settlements that the store will never get: they were too old when it came back.
    pub num_dropped_updates: u64,
}

/// What the keeper shares.
#[derive(Debug)]
pub(super) struct Shared {
    ledger: Mutex<Ledger>,
    store: Option<Arc<dyn LimitStore>>,
    tasks: mpsc::Sender<Task>,
    /// The beginning of the ledger's clock.
    start: Instant,
    num_failures: AtomicU64,
    num_losses: AtomicU64,
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
        let (shared, tasks) = Shared::new(replicas, Some(Arc::clone(&store)));
        let keeper = tokio::spawn(keeper::keep(Arc::clone(&shared), store, tasks));
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
            Some(store) if self.shared.lock().mode() == Mode::Store => Arc::clone(store),
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
        self.shared.lock().totals(tenant)
    }

    /// How many gateways there are now.
    pub fn set_replicas(&self, replicas: u32) {
        self.shared.lock().set_replicas(replicas);
    }

    /// Forgets tenants that are gone from the configuration and have nothing running.
    pub fn retain(&self, is_kept: impl Fn(&TenantName) -> bool) {
        self.shared.lock().retain(is_kept);
    }

    /// Waits until all settlements so far have been sent to the store, at most so long: for the end of the process.
    pub async fn flush(&self, at_most: Duration) {
        if self.shared.store.is_some() {
            let flushed = self.shared.ask(Task::Flush);
            // Whether it's done or out of time, there is nothing more to do.
            drop(tokio::time::timeout(at_most, flushed).await);
        }
    }

    /// How the accounts and their store fare.
    pub fn figures(&self) -> AccountsFigures {
        let shared = &self.shared;
        let ledger = shared.lock();
        AccountsFigures {
            mode: ledger.mode(),
            has_store: shared.store.is_some(),
            num_failures: shared.num_failures.load(Relaxed),
            num_losses: shared.num_losses.load(Relaxed),
            num_dropped_updates: ledger.num_forgotten(),
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
        let Some(Open { tenant, charge }) = self.open.take() else {
            return;
        };
        let now = self.shared.now();
        {
            let mut ledger = self.shared.lock();
            match actual {
                Some(actual) => ledger.settle(charge, actual, now),
                None => ledger.cancel(charge, now),
            }
        }
        // If the keeper has too much to do, it finds this one in its own time.
        if self.shared.store.is_some() && self.shared.tasks.try_send(Task::Tell(tenant)).is_err() {
            tracing::debug!("a settlement waits for the keeper's next round");
        }
    }
}

impl Drop for OpenCharge {
    fn drop(&mut self) {
        self.close(Some(self.estimate));
    }
}

impl Shared {
    fn new(replicas: u32, store: Option<Arc<dyn LimitStore>>) -> (Arc<Self>, mpsc::Receiver<Task>) {
        let (tasks, receiver) = mpsc::channel(MAX_TASKS);
        let mode = if store.is_some() { Mode::Store } else { Mode::Alone };
        let name = Uuid::new_v4().simple().to_string();
        let shared = Self {
            ledger: Mutex::new(Ledger::new(&name, replicas, mode)),
            store,
            tasks,
            start: Instant::now(),
            num_failures: AtomicU64::new(0),
            num_losses: AtomicU64::new(0),
        };
        (Arc::new(shared), receiver)
    }

    /// No code that can panic runs while it's held, and all of the state is valid between calls.
    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Micros {
        Micros(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// The store failed: from now on this gateway decides by its share.
    pub(super) fn lost(&self, error: &StoreError) {
        self.num_failures.fetch_add(1, Relaxed);
        let mut ledger = self.lock();
        if ledger.mode() == Mode::Store {
            ledger.leave();
            self.num_losses.fetch_add(1, Relaxed);
            tracing::warn!(%error, "limits are enforced by this gateway's share until the store is back");
        }
    }

    /// Waits for the keeper to do something; at once if it's gone.
    async fn ask(&self, task: impl FnOnce(oneshot::Sender<()>) -> Task) {
        let (sender, done) = oneshot::channel();
        if self.tasks.send(task(sender)).await.is_ok() {
            // An error means that the keeper went meanwhile: then nobody tells the store anything more.
            done.await.unwrap_or_default();
        }
    }

    fn charge_alone(
        self: &Arc<Self>,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
    ) -> Result<Admitted, Exhausted> {
        let now = self.now();
        let mut ledger = self.lock();
        let charge = ledger.charge(tenant, limits, estimate, now)?;
        let usage = ledger.usage(tenant, limits, now);
        drop(ledger);
        Ok(self.admitted(tenant, charge, usage, estimate))
    }

    async fn charge_in(
        self: &Arc<Self>,
        store: &dyn LimitStore,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
    ) -> Result<Admitted, Exhausted> {
        for _ in 0..MAX_ASKS {
            let ask = self.lock().ask(tenant, self.now());
            match ask {
                Ask::Alone => break,
                Ask::StoreLater => self.ask(|done| Task::TellFirst(tenant.clone(), done)).await,
                Ask::Store(known) => {
                    let asked = self.lock().new_id();
                    let request = (&asked, known.as_ref());
                    let verdict = store.charge(tenant, limits, estimate, request).await;
                    if let Some(decided) = self.decided(tenant, limits, estimate, (asked, known), verdict) {
                        return decided;
                    }
                }
            }
        }
        self.charge_alone(tenant, limits, estimate)
    }

    /// What the store decided; nothing if it decided nothing.
    fn decided(
        self: &Arc<Self>,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
        (asked, known): (RequestId, Option<Instance>),
        verdict: Result<Verdict, StoreError>,
    ) -> Option<Result<Admitted, Exhausted>> {
        let now = self.now();
        match verdict {
            Ok(Verdict::Admitted(admission)) => {
                let usage = admission.usage(limits);
                let charge = self
                    .lock()
                    .record(tenant, asked, estimate, &admission.instance, now);
                Some(Ok(self.admitted(tenant, charge, usage, estimate)))
            }
            Ok(Verdict::Refused(exhausted)) => Some(Err(exhausted)),
            Ok(Verdict::Elsewhere) => {
                self.lock().elsewhere(tenant, known.as_ref(), now);
                None
            }
            Err(error) => {
                // It may have been charged there after all.
                self.lock().doubt(tenant, asked, now);
                self.lost(&error);
                None
            }
        }
    }

    fn admitted(
        self: &Arc<Self>,
        tenant: &TenantName,
        charge: Charge,
        usage: Usage,
        estimate: Cost,
    ) -> Admitted {
        let tenant = tenant.clone();
        let charge = OpenCharge {
            shared: Arc::clone(self),
            open: Some(Open { tenant, charge }),
            estimate,
        };
        Admitted { charge, usage }
    }
}
