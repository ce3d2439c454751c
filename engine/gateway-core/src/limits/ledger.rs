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
//! When the store is back, [`rejoin`](Ledger::rejoin) hands over what was admitted without it.

use std::collections::BTreeMap;

use super::window::{Slot, Window};
use super::{Amounts, Cost, Exhausted, Limits, Usage};
use crate::names::TenantName;
use crate::time::Micros;

/// How many periods without the store are remembered, so that their charges can be settled in the store.
const MAX_PERIODS: usize = 16;

/// All accounts of one replica.
#[derive(Debug)]
pub struct Ledger {
    accounts: BTreeMap<TenantName, Account>,
    replicas: u32,
    mode: Mode,
    /// The current or last period without the store, from 1.
    period: u64,
    /// The last period whose charges were handed over to the store.
    handed_over: u64,
    /// What to add to a tenant's slot of a merged period to get the store's.
    merged: BTreeMap<u64, BTreeMap<TenantName, i64>>,
}

/// Who decides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// The store.
    Store,
    /// This replica, by its share.
    Alone,
}

/// An admitted request. It must be settled or cancelled; a charge that is dropped keeps its place in the tenant's concurrency for ever.
#[must_use = "a charge that is dropped occupies its tenant's concurrency for ever"]
#[derive(Debug)]
pub struct Charge {
    tenant: TenantName,
    slot: Slot,
    amounts: Amounts,
    home: Home,
}

#[derive(Clone, Copy, Debug)]
enum Home {
    /// The slot of the store.
    Store(u64),
    /// The period without the store.
    Alone(u64),
}

/// What a settlement changes in the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoreAdjustment {
    /// The account.
    pub tenant: TenantName,
    /// The store's slot of the charge.
    pub slot: u64,
    /// What was charged.
    pub charged: Amounts,
    /// What it came to.
    pub actual: Amounts,
}

/// What was admitted without the store, for the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Merge {
    period: u64,
    /// This replica's slot at the time of the merge; the store's answer says what its own is.
    pub slot: u64,
    /// What to add.
    pub items: Vec<MergeItem>,
}

/// A part of a [`Merge`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MergeItem {
    /// The account.
    pub tenant: TenantName,
    /// How many seconds before the merge it was.
    pub age_seconds: u64,
    /// How much.
    pub amounts: Amounts,
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

#[derive(Debug, Default)]
struct Account {
    window: Window,
    /// What of the window the store hasn't heard of.
    unshared: Window,
    totals: Totals,
}

impl Ledger {
    /// An empty ledger of one of `replicas` replicas, as the operator counts them.
    pub fn new(replicas: u32, mode: Mode) -> Self {
        Self {
            accounts: BTreeMap::new(),
            replicas: replicas.max(1),
            mode,
            period: 1,
            handed_over: 0,
            merged: BTreeMap::new(),
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

    /// Admits a request by this replica's share of the limits, or refuses it and changes nothing. For [`Mode::Alone`].
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
        let account = self.accounts.entry(tenant.clone()).or_default();
        account.advance(now);
        if let Some(limit) = share.concurrency
            && account.totals.num_running >= limit
        {
            return Err(Exhausted::Concurrency { limit });
        }
        account.window.check(&share, amounts, now)?;
        let slot = account.admit(amounts);
        account.unshared.add(slot, amounts);
        Ok(Charge {
            tenant: tenant.clone(),
            slot,
            amounts,
            home: Home::Alone(self.period),
        })
    }

    /// Records a request that the store admitted into its slot `store_slot`. For [`Mode::Store`].
    pub fn record(&mut self, tenant: &TenantName, estimate: Cost, now: Micros, store_slot: u64) -> Charge {
        let amounts = estimate.amounts();
        let account = self.accounts.entry(tenant.clone()).or_default();
        account.advance(now);
        Charge {
            tenant: tenant.clone(),
            slot: account.admit(amounts),
            amounts,
            home: Home::Store(store_slot),
        }
    }

    /// Corrects a charge to what the request really had, and says what to correct in the store.
    pub fn settle(&mut self, charge: Charge, actual: Cost, now: Micros) -> Option<StoreAdjustment> {
        self.correct(charge, actual.amounts(), now)
    }

    /// Takes a charge back: the request never reached an engine.
    pub fn cancel(&mut self, charge: Charge, now: Micros) -> Option<StoreAdjustment> {
        self.correct(charge, Amounts::default(), now)
    }

    /// The store is away: from now on [`charge`](Self::charge) decides.
    pub fn leave(&mut self) {
        if self.mode == Mode::Store {
            self.mode = Mode::Alone;
            self.period += 1;
        }
    }

    /// The store is back: from now on it decides, and the returned value must be added to it; then call [`merged`](Self::merged). If that
    /// fails, [`leave`](Self::leave) again: what was handed over stays in this replica's own window.
    pub fn rejoin(&mut self, now: Micros) -> Merge {
        self.mode = Mode::Store;
        self.handed_over = self.period;
        let slot = Slot::at(now);
        let mut items = Vec::new();
        for (tenant, account) in &mut self.accounts {
            account.advance(now);
            let unshared = std::mem::take(&mut account.unshared);
            items.extend(unshared.filled().map(|(filled, amounts)| MergeItem {
                tenant: tenant.clone(),
                age_seconds: slot.0.saturating_sub(filled.0),
                amounts,
            }));
        }
        Merge {
            period: self.period,
            slot: slot.0,
            items,
        }
    }

    /// The store took these tenants' parts of a merge when its own slots were these. Charges of that time can now be settled there.
    pub fn merged(&mut self, merge: &Merge, store_slots: &BTreeMap<TenantName, u64>) {
        let offsets = store_slots
            .iter()
            .map(|(tenant, slot)| (tenant.clone(), *slot as i64 - merge.slot as i64));
        self.merged.insert(merge.period, offsets.collect());
        while self.merged.len() > MAX_PERIODS {
            self.merged.pop_first();
        }
    }

    /// The state of this replica's share of a tenant's limits. For [`Mode::Alone`]; the store's word is in
    /// [`Admission::usage`](super::store::Admission::usage).
    pub fn usage(&mut self, tenant: &TenantName, limits: &Limits, now: Micros) -> Usage {
        let share = limits.share(self.replicas);
        let account = self.accounts.entry(tenant.clone()).or_default();
        account.advance(now);
        account.window.usage(&share, now)
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

    fn correct(&mut self, charge: Charge, actual: Amounts, now: Micros) -> Option<StoreAdjustment> {
        let Charge {
            tenant,
            slot,
            amounts: charged,
            home,
        } = charge;
        let account = self.accounts.entry(tenant.clone()).or_default();
        account.advance(now);
        account.correct(slot, charged, actual);
        let store_slot = match home {
            Home::Store(store_slot) => store_slot,
            Home::Alone(period) => match self.merged.get(&period).and_then(|of| of.get(&tenant)) {
                Some(offset) => slot.0.saturating_add_signed(*offset),
                // Nobody knows where the store put it; it keeps the estimate until that's a minute old.
                None if period <= self.handed_over => return None,
                None => {
                    account.unshared.take(slot, charged);
                    account.unshared.add(slot, actual);
                    return None;
                }
            },
        };
        (charged != actual).then_some(StoreAdjustment {
            tenant,
            slot: store_slot,
            charged,
            actual,
        })
    }
}

impl Account {
    fn advance(&mut self, now: Micros) {
        self.window.advance(Slot::at(now));
        // One clock for both, so that a slot of one is a slot of the other.
        self.unshared.advance(self.window.newest());
    }

    fn admit(&mut self, amounts: Amounts) -> Slot {
        let slot = self.window.newest();
        self.window.add(slot, amounts);
        self.totals.reserved = self.totals.reserved.zip(amounts, u64::saturating_add);
        self.totals.num_running += 1;
        slot
    }

    fn correct(&mut self, slot: Slot, charged: Amounts, actual: Amounts) {
        self.window.take(slot, charged);
        self.window.add(slot, actual);
        self.totals.reserved = self.totals.reserved.zip(charged, u64::saturating_sub);
        self.totals.settled = self.totals.settled.zip(actual, u64::saturating_add);
        self.totals.num_running = self.totals.num_running.saturating_sub(1);
    }
}
