//! The shared account: scripts for Redis, and what they mean.
//!
//! Each script is atomic, so that replicas never admit the same room twice. Time is the server's, so that replicas need no common clock.
//! [`ReferenceStore`] states the semantics; the gateway's tests run both against the same histories.

use std::collections::BTreeMap;

use super::window::{Slot, Window};
use super::{Amounts, Dimension, Exhausted, Limits, MergeItem, StoreAdjustment, Usage};
use crate::names::TenantName;
use crate::time::Micros;

/// Admits a request. The head of each script says what its arguments and its answer are; [`script`](super::script) writes and reads them.
/// They need Redis 7.
pub const CHARGE_SCRIPT: &str = include_str!("charge.lua");
/// Corrects a charge and ends its lease.
pub const SETTLE_SCRIPT: &str = include_str!("settle.lua");
/// Adds what was admitted without the store.
pub const MERGE_SCRIPT: &str = include_str!("merge.lua");
/// Prolongs leases.
pub const RENEW_SCRIPT: &str = include_str!("renew.lua");

/// The keys of a tenant's account: the window's hash and the leases' sorted set. The braces keep both on one node of a cluster.
pub fn keys(prefix: &str, tenant: &TenantName) -> [String; 2] {
    [
        format!("{prefix}:{{{tenant}}}:window"),
        format!("{prefix}:{{{tenant}}}:leases"),
    ]
}

/// What the store admitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Admission {
    /// The store's slot of the charge.
    pub slot: u64,
    /// The requests that run, with this one.
    pub num_running: u32,
    /// What the window holds, with this one.
    pub used: Amounts,
}

/// The semantics of the scripts, slow and plain.
#[derive(Debug, Default)]
pub struct ReferenceStore {
    accounts: BTreeMap<TenantName, Account>,
}

#[derive(Debug, Default)]
struct Account {
    window: Window,
    /// Ends of leases by request.
    leases: BTreeMap<String, Micros>,
}

impl ReferenceStore {
    /// What [`CHARGE_SCRIPT`] does.
    ///
    /// # Errors
    /// There is no room; nothing changed.
    pub fn charge(
        &mut self,
        tenant: &TenantName,
        limits: &Limits,
        cost: Amounts,
        lease: (&str, std::time::Duration),
        now: Micros,
    ) -> Result<Admission, Exhausted> {
        let account = self.account(tenant, now);
        if let Some(limit) = limits.concurrency
            && account.leases.len() >= limit as usize
        {
            return Err(Exhausted::Concurrency { limit });
        }
        account.window.check(limits, cost, now)?;
        let slot = account.window.newest();
        account.window.add(slot, cost);
        let (request, length) = lease;
        account.leases.insert(request.to_owned(), now.plus(length));
        Ok(Admission {
            slot: slot.0,
            num_running: account.leases.len() as u32,
            used: account.window.sum(),
        })
    }

    /// What [`SETTLE_SCRIPT`] does.
    pub fn settle(&mut self, adjustment: &StoreAdjustment, request: &str, now: Micros) {
        let account = self.account(&adjustment.tenant, now);
        account.leases.remove(request);
        account.window.take(Slot(adjustment.slot), adjustment.charged);
        account.window.add(Slot(adjustment.slot), adjustment.actual);
    }

    /// What [`MERGE_SCRIPT`] does, for the items of all tenants; answers the store's slot.
    pub fn merge(&mut self, items: &[MergeItem], now: Micros) -> u64 {
        for item in items {
            let account = self.account(&item.tenant, now);
            let slot = account.window.newest().0.checked_sub(item.age_seconds);
            if let Some(slot) = slot {
                account.window.add(Slot(slot), item.amounts);
            }
        }
        Slot::at(now).0
    }

    /// What [`RENEW_SCRIPT`] does.
    pub fn renew(
        &mut self,
        tenant: &TenantName,
        requests: &[&str],
        length: std::time::Duration,
        now: Micros,
    ) -> u32 {
        let account = self.account(tenant, now);
        let mut num_renewed = 0;
        for request in requests {
            if let Some(end) = account.leases.get_mut(*request) {
                *end = now.plus(length).max(*end);
                num_renewed += 1;
            }
        }
        num_renewed
    }

    /// The state of a tenant's limits.
    pub fn usage(&mut self, tenant: &TenantName, limits: &Limits, now: Micros) -> Usage {
        self.account(tenant, now).window.usage(limits, now)
    }

    /// What the window holds in one dimension.
    pub fn used(&mut self, tenant: &TenantName, dimension: Dimension, now: Micros) -> u64 {
        self.account(tenant, now).window.sum().get(dimension)
    }

    fn account(&mut self, tenant: &TenantName, now: Micros) -> &mut Account {
        let account = self.accounts.entry(tenant.clone()).or_default();
        account.window.advance(Slot::at(now));
        account.leases.retain(|_, end| *end > now);
        account
    }
}
