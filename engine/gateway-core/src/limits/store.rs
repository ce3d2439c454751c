//! The shared account: scripts for Redis, and what they mean.
//!
//! Each script is atomic, so that replicas never admit the same room twice. Time is the server's, so that replicas need no common clock.
//! [`ReferenceStore`] states the semantics; the gateway's tests run both against the same histories.

use std::collections::BTreeMap;

use super::window::{NUM_SLOTS, Slot, Window};
use super::{
    Amounts, Dimension, Ended, Exhausted, Handover, Instance, LEASE, Limits, RequestId, Told, Usage,
};
use crate::names::TenantName;
use crate::time::Micros;

/// Admits a request. The head of each script says what its arguments and its answer are; [`script`](super::script) writes and reads them.
/// They need Redis 7.
pub const CHARGE_SCRIPT: &str = include_str!("charge.lua");
/// Corrects charges and ends their leases.
pub const SETTLE_SCRIPT: &str = include_str!("settle.lua");
/// Adds what a replica has to hand over.
pub const MERGE_SCRIPT: &str = include_str!("merge.lua");
/// Prolongs leases.
pub const RENEW_SCRIPT: &str = include_str!("renew.lua");

/// The keys of a tenant's account, in the order of the scripts: the window's hash, the leases' sorted set, the requests of the last minute, and
/// these by age. The braces keep them on one node of a cluster.
pub fn keys(prefix: &str, tenant: &TenantName) -> [String; 4] {
    ["window", "leases", "requests", "ages"].map(|part| format!("{prefix}:{{{tenant}}}:{part}"))
}

/// What the store says to a charge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The request may run.
    Admitted(Admission),
    /// There is no room; nothing changed.
    Refused(Exhausted),
    /// The account isn't the one that was meant; nothing changed.
    Elsewhere,
}

/// What the store admitted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Admission {
    /// The account.
    pub instance: Instance,
    /// The requests that run, with this one.
    pub num_running: u32,
    /// What the window holds, with this one.
    pub used: Amounts,
}

/// The semantics of the scripts, slow and plain.
#[derive(Clone, Debug, Default)]
pub struct ReferenceStore {
    accounts: BTreeMap<TenantName, Account>,
}

#[derive(Clone, Debug, Default)]
struct Account {
    window: Window,
    instance: Option<Instance>,
    /// Ends of leases by request.
    leases: BTreeMap<RequestId, Micros>,
    /// Requests of the last minute and what they were charged; `None` where nothing may be counted under that name any more.
    requests: BTreeMap<RequestId, (Slot, Option<Amounts>)>,
}

impl ReferenceStore {
    /// What [`CHARGE_SCRIPT`] does.
    pub fn charge(
        &mut self,
        tenant: &TenantName,
        limits: &Limits,
        cost: Amounts,
        (request, known): (&RequestId, Option<&Instance>),
        now: Micros,
    ) -> Verdict {
        let account = self.account(tenant, now);
        let is_elsewhere = known.is_some() && known != account.instance.as_ref();
        if is_elsewhere || account.requests.contains_key(request) {
            return Verdict::Elsewhere;
        }
        if let Some(limit) = limits.concurrency
            && account.leases.len() >= limit as usize
        {
            return Verdict::Refused(Exhausted::Concurrency { limit });
        }
        if let Err(exhausted) = account.window.check(limits, cost, now) {
            return Verdict::Refused(exhausted);
        }
        let slot = account.window.newest();
        account.window.add(slot, cost);
        account.leases.insert(request.clone(), now.plus(LEASE));
        account.requests.insert(request.clone(), (slot, Some(cost)));
        Verdict::Admitted(Admission {
            instance: account.named_after(request),
            num_running: account.leases.len() as u32,
            used: account.window.sum(),
        })
    }

    /// What [`SETTLE_SCRIPT`] does.
    pub fn settle(&mut self, tenant: &TenantName, instance: &Instance, ended: &[Ended], now: Micros) -> Told {
        let account = self.account(tenant, now);
        if account.instance.as_ref() != Some(instance) {
            return Told::Elsewhere;
        }
        for Ended { id, actual } in ended {
            account.leases.remove(id);
            let newest = account.window.newest();
            let (slot, charged) = account.requests.entry(id.clone()).or_insert((newest, None));
            if let Some(charged) = charged.take() {
                account.window.take(*slot, charged);
                account.window.add(*slot, *actual);
            }
        }
        Told::Done(instance.clone())
    }

    /// What [`MERGE_SCRIPT`] does.
    pub fn merge(&mut self, tenant: &TenantName, handover: &Handover, now: Micros) -> Told {
        let account = self.account(tenant, now);
        if handover.expected.is_some() && handover.expected != account.instance {
            return Told::Elsewhere;
        }
        let instance = account.named_after(&handover.id);
        let newest = account.window.newest();
        let slot = |age: u64| newest.0.checked_sub(age).map(Slot);
        if account.requests.contains_key(&handover.id) {
            return Told::Done(instance);
        }
        account.requests.insert(handover.id.clone(), (newest, None));
        for (age, amounts) in &handover.settled {
            if let Some(slot) = slot(*age) {
                account.window.add(slot, *amounts);
            }
        }
        for (id, age, amounts) in &handover.open {
            let known = account.requests.get(id);
            if known.is_some_and(|(_, charged)| charged.is_none()) {
                continue;
            }
            account.leases.insert(id.clone(), now.plus(LEASE));
            if let Some(slot) = slot(*age)
                && known.is_none()
                && *age < NUM_SLOTS as u64
            {
                account.window.add(slot, *amounts);
                account.requests.insert(id.clone(), (slot, Some(*amounts)));
            }
        }
        Told::Done(instance)
    }

    /// What [`RENEW_SCRIPT`] does.
    pub fn renew(
        &mut self,
        tenant: &TenantName,
        instance: &Instance,
        requests: &[RequestId],
        now: Micros,
    ) -> Told {
        let account = self.account(tenant, now);
        if account.instance.as_ref() != Some(instance) {
            return Told::Elsewhere;
        }
        for request in requests {
            let end = account.leases.entry(request.clone()).or_insert(now);
            *end = now.plus(LEASE).max(*end);
        }
        Told::Done(instance.clone())
    }

    /// The state of a tenant's limits.
    pub fn usage(&mut self, tenant: &TenantName, limits: &Limits, now: Micros) -> Usage {
        self.account(tenant, now).window.usage(limits, now)
    }

    /// What the window holds in one dimension.
    pub fn used(&mut self, tenant: &TenantName, dimension: Dimension, now: Micros) -> u64 {
        self.account(tenant, now).window.sum().get(dimension)
    }

    /// The requests that run.
    pub fn num_running(&mut self, tenant: &TenantName, now: Micros) -> usize {
        self.account(tenant, now).leases.len()
    }

    fn account(&mut self, tenant: &TenantName, now: Micros) -> &mut Account {
        let account = self.accounts.entry(tenant.clone()).or_default();
        account.window.advance(Slot::at(now));
        account.leases.retain(|_, end| *end > now);
        let newest = account.window.newest();
        account
            .requests
            .retain(|_, (slot, _)| newest.0 - slot.0 < NUM_SLOTS as u64);
        account
    }
}

impl Account {
    fn named_after(&mut self, first: &RequestId) -> Instance {
        let name = || Instance(first.to_string().into());
        self.instance.get_or_insert_with(name).clone()
    }
}
