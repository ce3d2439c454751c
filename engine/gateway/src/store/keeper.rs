//! Keeps the store in step with this gateway, in a task of its own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kvasir_gateway_core::limits::{Call, Instance, Mode, RequestId, Told};
use kvasir_gateway_core::names::TenantName;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};

use super::accounts::Shared;
use super::{LimitStore, StoreError};

/// How often leases are renewed, and accounts asked whether they are still the same: three chances before a lease runs out.
const RENEWAL: Duration = Duration::from_secs(10);
/// How often the keeper looks whether a store that was lost is back.
const TICK: Duration = Duration::from_secs(1);
/// Leases that one call renews: a script stops the whole store while it runs.
const MAX_LEASES_PER_CALL: usize = 1000;
/// Tasks that are taken, and tenants that are told of, at one time.
const MAX_AT_ONCE: usize = 64;
/// Calls for one tenant in one go. A busy tenant has its next turn with the next task or tick.
const MAX_CALLS: usize = 1000;

/// What the keeper is asked to do.
#[derive(Debug)]
pub(super) enum Task {
    /// The store must hear something of a tenant.
    Tell(TenantName),
    /// The same, and somebody waits for it.
    TellFirst(TenantName, oneshot::Sender<()>),
    /// Answer when all of before is told.
    Flush(oneshot::Sender<()>),
}

/// Runs until it's aborted or the accounts are gone.
pub(super) async fn keep(shared: Arc<Shared>, store: Arc<dyn LimitStore>, mut tasks: mpsc::Receiver<Task>) {
    let num_connections = store.num_connections();
    let mut keeper = Keeper {
        shared,
        store,
        renewed: Instant::now(),
        num_connections,
    };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            _ = tick.tick() => keeper.look_after().await,
            taken = tasks.recv_many(&mut batch, MAX_AT_ONCE) => {
                if taken == 0 {
                    return;
                }
                keeper.take(std::mem::take(&mut batch)).await;
            }
        }
    }
}

/// Running requests of a tenant that an account of the store knows.
type Lease = (TenantName, Instance, Vec<RequestId>);

struct Keeper {
    shared: Arc<Shared>,
    store: Arc<dyn LimitStore>,
    renewed: Instant,
    /// Connections at the last renewal. One more may lead to a server that has lost its memory.
    num_connections: u64,
}

impl Keeper {
    fn mode(&self) -> Mode {
        self.shared.lock().mode()
    }

    async fn take(&self, tasks: Vec<Task>) {
        let (mut tenants, mut waiting, mut is_flush) = (BTreeSet::new(), Vec::new(), false);
        for task in tasks {
            match task {
                Task::Tell(tenant) => drop(tenants.insert(tenant)),
                Task::TellFirst(tenant, done) => {
                    tenants.insert(tenant);
                    waiting.push(done);
                }
                Task::Flush(done) => {
                    is_flush = true;
                    waiting.push(done);
                }
            }
        }
        if is_flush {
            self.tell_all().await;
        } else {
            join_all(tenants.iter().map(|tenant| self.tell(tenant))).await;
        }
        for done in waiting {
            if done.send(()).is_err() {
                tracing::debug!("nobody waits for the store any more");
            }
        }
    }

    async fn look_after(&mut self) {
        let is_back = match self.mode() {
            Mode::Alone => self.come_back().await,
            Mode::Store => {
                self.probe().await;
                false
            }
        };
        let is_other = self.store.num_connections() != self.num_connections;
        if is_back || is_other || self.renewed.elapsed() >= RENEWAL {
            self.renewed = Instant::now();
            self.num_connections = self.store.num_connections();
            self.renew().await;
        }
        self.tell_all().await;
        if is_back && self.mode() == Mode::Store {
            tracing::info!("the limit store is back");
        }
    }

    /// Asks for a sign of life, so that a gateway without requests notices too that the store is gone, or is another one that must hear of the
    /// last minute before others' requests are admitted there. A server that is emptied and keeps its connections is noticed at the next
    /// renewal.
    async fn probe(&self) {
        if let Err(error) = self.store.ping().await {
            self.shared.lost(&error);
        }
    }

    /// Lets the store decide again if it answers.
    async fn come_back(&self) -> bool {
        let is_back = self.store.ping().await.is_ok();
        if is_back {
            self.shared.lock().rejoin();
        }
        is_back
    }

    /// Tells the store all that it must hear.
    async fn tell_all(&self) {
        let untold = self.shared.lock().untold();
        for some in untold.chunks(MAX_AT_ONCE) {
            join_all(some.iter().map(|tenant| self.tell(tenant))).await;
        }
    }

    /// Tells the store what it must hear of one tenant, until there is nothing more or the store is lost.
    async fn tell(&self, tenant: &TenantName) {
        for _ in 0..MAX_CALLS {
            let call = {
                let mut ledger = self.shared.lock();
                match ledger.mode() {
                    Mode::Store => ledger.next_call(tenant, self.shared.now()),
                    Mode::Alone => None,
                }
            };
            let Some(call) = call else {
                return;
            };
            match self.call(tenant, &call).await {
                Ok(told) => self.shared.lock().told(tenant, &call, &told),
                Err(error) => return self.shared.lost(&error),
            }
        }
    }

    async fn call(&self, tenant: &TenantName, call: &Call) -> Result<Told, StoreError> {
        match call {
            Call::HandOver(handover) => self.store.merge(tenant, handover).await,
            Call::Settle { instance, ended } => self.store.settle(tenant, instance, ended).await,
        }
    }

    /// Renews leases, and finds out whether the store's accounts are still those which know what this gateway admitted.
    async fn renew(&self) {
        if self.mode() == Mode::Alone {
            return;
        }
        let leases = self.shared.lock().leases(self.shared.now());
        for some in leases.chunks(MAX_AT_ONCE) {
            join_all(some.iter().map(|lease| self.renew_of(lease))).await;
        }
    }

    async fn renew_of(&self, (tenant, instance, requests): &Lease) {
        // Without a request it's a question alone.
        let first = requests.len().min(MAX_LEASES_PER_CALL);
        let rest = requests[first..].chunks(MAX_LEASES_PER_CALL);
        for some in std::iter::once(&requests[..first]).chain(rest) {
            match self.store.renew(tenant, instance, some).await {
                Ok(Told::Done(_)) => {}
                Ok(Told::Elsewhere) => {
                    let now = self.shared.now();
                    return self.shared.lock().elsewhere(tenant, Some(instance), now);
                }
                Err(error) => return self.shared.lost(&error),
            }
        }
    }
}
