//! The accounts of one replica.
//!
//! A replica is in one of two modes. While the store answers ([`Mode::Store`]) the store decides, and the ledger records what it admitted.
//! While it's away, or none is configured ([`Mode::Alone`]), the ledger decides by this replica's share of the limits.
//!
//! Both modes write the same window, so a replica that loses the store counts what it has already had. Law: over any 60 seconds, with any
//! number of changes of mode, all replicas together admit at most twice the limit: at most the limit through the store, and at most the sum
//! of all shares without it. Without a change in the last 61 seconds it's at most the limit. (Where there are more replicas than the limit
//! has units, a share is 1; read the number of replicas for the limit.)
//!
//! What the store must hear is part of the accounts: [`next_call`](Ledger::next_call) says it, and [`told`](Ledger::told) takes the answer.
//! Every request has an id, under which the store counts it once and settles it once, however often it's told; and every account of the
//! store has an [`Instance`], so that a store that came back empty is noticed and hears everything of the last minute again. Law: after any
//! losses, of calls, of answers and of the store's memory, as soon as nothing is left to be told the store holds of this replica exactly
//! what it admitted: running requests at their estimates, others at what they came to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::account::Account;
use super::window::Slot;
use super::{Amounts, Cost, Exhausted, Instance, Limits, RequestId, Usage};
use crate::names::TenantName;
use crate::time::Micros;

/// All accounts of one replica.
#[derive(Debug)]
pub struct Ledger {
    accounts: BTreeMap<TenantName, Account>,
    ids: Ids,
    replicas: u32,
    mode: Mode,
    num_forgotten: u64,
}

#[derive(Debug)]
struct Ids {
    replica: Arc<str>,
    next: u64,
}

/// Who decides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// The store.
    Store,
    /// This replica, by its share.
    Alone,
}

/// Who is to be asked for a tenant's next request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ask {
    /// This replica: [`charge`](Ledger::charge).
    Alone,
    /// The store, after it has heard what it must ([`next_call`](Ledger::next_call)).
    StoreLater,
    /// The store, whose account must be this one; any if there is none.
    Store(Option<Instance>),
}

/// An admitted request. It must be settled or cancelled; a charge that is dropped keeps its place in the tenant's concurrency for ever.
#[must_use = "a charge that is dropped occupies its tenant's concurrency for ever"]
#[derive(Debug)]
pub struct Charge {
    tenant: TenantName,
    id: RequestId,
}

/// What the store must hear of one tenant.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Call {
    /// What it hasn't heard.
    HandOver(Handover),
    /// What became of requests that it knows.
    Settle {
        /// Its account; another one hasn't heard of them.
        instance: Instance,
        /// The requests.
        ended: Vec<Ended>,
    },
}

/// What the store hasn't heard of one tenant. Told twice, it counts once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Handover {
    /// Its name, unique among all requests and handovers of all replicas.
    pub id: RequestId,
    /// The account that it's for; any if there is none.
    pub expected: Option<Instance>,
    /// What was settled, by its age in seconds.
    pub settled: Vec<(u64, Amounts)>,
    /// What runs, with its age and estimate. What the store knows already it doesn't count again.
    pub open: Vec<(RequestId, u64, Amounts)>,
}

/// What became of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ended {
    /// The request.
    pub id: RequestId,
    /// What it came to; nothing if it never ran.
    pub actual: Amounts,
}

/// The store's answer to a call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Told {
    /// It's done, by this account.
    Done(Instance),
    /// The store has another account, or none, and did nothing.
    Elsewhere,
}

/// What a tenant has had since the ledger began, exact to the token.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// What was settled.
    pub settled: Amounts,
    /// The estimates of what is still running.
    pub reserved: Amounts,
    /// Requests that are running.
    pub num_running: u32,
}

impl Ledger {
    /// An empty ledger of one of `replicas` replicas, as the operator counts them. No other replica, now or before, has this name.
    pub fn new(replica: &str, replicas: u32, mode: Mode) -> Self {
        Self {
            accounts: BTreeMap::new(),
            ids: Ids {
                replica: replica.into(),
                next: 0,
            },
            replicas: replicas.max(1),
            mode,
            num_forgotten: 0,
        }
    }

    /// Who decides.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Takes over a new number of replicas.
    pub fn set_replicas(&mut self, replicas: u32) {
        self.replicas = replicas.max(1);
    }

    /// An id for a request.
    pub fn new_id(&mut self) -> RequestId {
        self.ids.next()
    }

    /// Who is to be asked for a tenant's next request.
    pub fn ask(&mut self, tenant: &TenantName, now: Micros) -> Ask {
        if self.mode == Mode::Alone {
            return Ask::Alone;
        }
        let account = self.account(tenant, now);
        if account.has_unheard() {
            Ask::StoreLater
        } else {
            Ask::Store(account.known())
        }
    }

    /// Admits a request by this replica's share of the limits, or refuses it and changes nothing.
    ///
    /// # Errors
    /// There is no room.
    pub fn charge(
        &mut self,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
        now: Micros,
    ) -> Result<Charge, Exhausted> {
        let share = limits.share(self.replicas);
        let amounts = estimate.amounts();
        let id = self.ids.next();
        let account = self.account(tenant, now);
        if let Some(limit) = share.concurrency
            && account.totals.num_running >= limit
        {
            return Err(Exhausted::Concurrency { limit });
        }
        account.window.check(&share, amounts, now)?;
        account.admit(id.clone(), amounts);
        let tenant = tenant.clone();
        Ok(Charge { tenant, id })
    }

    /// Records a request that an account of the store admitted.
    pub fn record(
        &mut self,
        tenant: &TenantName,
        id: RequestId,
        estimate: Cost,
        by: &Instance,
        now: Micros,
    ) -> Charge {
        let fresh = self.ids.next();
        let account = self.account(tenant, now);
        let id = account.admit_by(id, fresh, estimate.amounts(), by);
        let tenant = tenant.clone();
        Charge { tenant, id }
    }

    /// The store was asked for a request and its answer was lost: it must take it back if it has it. If the request runs all the same, it's
    /// [charged](Self::charge) like one that the store wasn't asked for.
    pub fn doubt(&mut self, tenant: &TenantName, id: RequestId, now: Micros) {
        self.account(tenant, now).doubt(id);
    }

    /// The store said that its account isn't the one which it was asked as.
    pub fn elsewhere(&mut self, tenant: &TenantName, known: Option<&Instance>, now: Micros) {
        self.account(tenant, now).forget_instance(known);
    }

    /// Corrects a charge to what the request really had.
    pub fn settle(&mut self, charge: Charge, actual: Cost, now: Micros) {
        let Charge { tenant, id } = charge;
        self.account(&tenant, now).settle(&id, actual.amounts());
    }

    /// Takes a charge back: the request never reached an engine.
    pub fn cancel(&mut self, charge: Charge, now: Micros) {
        let Charge { tenant, id } = charge;
        self.account(&tenant, now).settle(&id, Amounts::default());
    }

    /// The store is away: from now on [`charge`](Self::charge) decides.
    pub fn leave(&mut self) {
        self.mode = Mode::Alone;
    }

    /// The store is back: from now on it decides, on each tenant as soon as it has heard what it must.
    pub fn rejoin(&mut self) {
        self.mode = Mode::Store;
    }

    /// Tenants of whom the store must hear something.
    pub fn untold(&self) -> Vec<TenantName> {
        let untold = self.accounts.iter().filter(|(_, account)| account.has_calls());
        untold.map(|(tenant, _)| tenant.clone()).collect()
    }

    /// What the store must hear next of a tenant; the same again until it's [`told`](Self::told). One call for a tenant at a time.
    pub fn next_call(&mut self, tenant: &TenantName, now: Micros) -> Option<Call> {
        let account = self.accounts.get_mut(tenant)?;
        account.advance(Slot::at(now));
        self.num_forgotten += account.forget_old_ends() as u64;
        account.next_call(|| self.ids.next())
    }

    /// The store has answered a call. (If it hasn't, nothing changes.)
    pub fn told(&mut self, tenant: &TenantName, call: &Call, told: &Told) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.told(call, told);
        }
    }

    /// The accounts of the store that know requests of this replica, and those of them that run: their leases must be renewed, and whether
    /// the store still has these accounts must be asked from time to time.
    pub fn leases(&mut self, now: Micros) -> Vec<(TenantName, Instance, Vec<RequestId>)> {
        let mut leases = Vec::new();
        for (tenant, account) in &mut self.accounts {
            account.advance(Slot::at(now));
            leases.extend(
                account
                    .leases()
                    .map(|(instance, ids)| (tenant.clone(), instance, ids)),
            );
        }
        leases
    }

    /// Ends of requests that the store never heard of, because it was away for too long.
    pub fn num_forgotten(&self) -> u64 {
        self.num_forgotten
    }

    /// The state of this replica's share of a tenant's limits. For [`Mode::Alone`]; the store's word is in
    /// [`Admission::usage`](super::store::Admission::usage).
    pub fn usage(&mut self, tenant: &TenantName, limits: &Limits, now: Micros) -> Usage {
        let share = limits.share(self.replicas);
        self.account(tenant, now).window.usage(&share, now)
    }

    /// What a tenant has had; nothing for an unknown one.
    pub fn totals(&self, tenant: &TenantName) -> Totals {
        self.accounts
            .get(tenant)
            .map(|account| account.totals)
            .unwrap_or_default()
    }

    /// Forgets the accounts of tenants that are gone and have nothing running.
    pub fn retain(&mut self, is_kept: impl Fn(&TenantName) -> bool) {
        self.accounts
            .retain(|name, account| is_kept(name) || account.totals.num_running > 0);
    }

    fn account(&mut self, tenant: &TenantName, now: Micros) -> &mut Account {
        let account = self.accounts.entry(tenant.clone()).or_default();
        account.advance(Slot::at(now));
        account
    }
}

impl Ids {
    fn next(&mut self) -> RequestId {
        self.next += 1;
        RequestId {
            replica: Arc::clone(&self.replica),
            number: self.next,
        }
    }
}
