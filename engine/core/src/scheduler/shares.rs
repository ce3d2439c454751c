//! Weighted fair sharing of computed tokens between tenants.
//!
//! Law: of the tenants that wait, the one that has computed the fewest tokens per weight is admitted next (within the highest class,
//! under priorities). Tenants that always have work therefore get tokens in proportion to their weights, up to what one set of running
//! sequences computes. A tenant that comes, or comes back, starts level with the least served of those that have work: it neither
//! pays for having been away nor saves it up. One that leaves keeps what it was served beyond that.
//!
//! Off, it costs nothing: nobody is counted. Source: start-time fair queueing (Goyal, Vin and Cheng 1996), with tokens for packets.

use std::collections::BTreeMap;

use super::Scheduler;
use super::queue::QueueKey;
use crate::arena::Slot;
use crate::ids::TenantId;
use crate::request::RequestOptions;

/// Units of service that one token of a tenant of weight 1 counts. Divisible by all small weights.
const UNITS_PER_TOKEN: u64 = 5040;

/// What each tenant was served.
#[derive(Debug, Default)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct Shares {
    is_on: bool,
    tenants: BTreeMap<TenantId, Tenant>,
    /// Where one that comes begins: what the least served of those with work had, at any time so far.
    floor: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tenant {
    /// In units per weight.
    served: u64,
    /// Its sequences that haven't ended.
    num_seqs: u32,
}

impl Shares {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            ..Self::default()
        }
    }

    /// One of the tenant's sequences was queued.
    pub(super) fn enter(&mut self, tenant: TenantId) {
        if !self.is_on {
            return;
        }
        let busy = self.tenants.values().filter(|tenant| tenant.num_seqs > 0);
        let least = busy.map(|tenant| tenant.served).min();
        self.floor = self.floor.max(least.unwrap_or(0));
        let entry = self.tenants.entry(tenant).or_default();
        if entry.num_seqs == 0 {
            entry.served = entry.served.max(self.floor);
        }
        entry.num_seqs += 1;
    }

    /// One of the tenant's sequences ended.
    pub(super) fn leave(&mut self, tenant: TenantId) {
        let Some(entry) = self.tenants.get_mut(&tenant) else {
            return;
        };
        entry.num_seqs -= 1;
        if entry.num_seqs == 0 {
            // An idle tenant at the floor would begin there anyhow.
            let floor = self.floor;
            self.tenants
                .retain(|_, tenant| tenant.num_seqs > 0 || tenant.served > floor);
        }
    }

    pub(super) fn charge(&mut self, of: &RequestOptions, num_tokens: u32) {
        if let Some(tenant) = self.tenants.get_mut(&of.tenant) {
            tenant.served += units(of, num_tokens);
        }
    }

    /// The tokens were not computed after all.
    pub(super) fn refund(&mut self, of: &RequestOptions, num_tokens: u32) {
        if let Some(tenant) = self.tenants.get_mut(&of.tenant) {
            tenant.served -= units(of, num_tokens);
        }
    }

    fn served(&self, tenant: TenantId) -> u64 {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.served)
    }

    /// What each tenant was served, and where one that comes begins.
    pub(super) fn image(&self) -> (Vec<(TenantId, u64)>, u64) {
        let served = self.tenants.iter().map(|(&id, tenant)| (id, tenant.served));
        (served.collect(), self.floor)
    }

    /// Puts back what was served; `with_work` has a tenant once for each of its sequences.
    pub(super) fn restore(
        &mut self,
        served: &[(TenantId, u64)],
        floor: u64,
        with_work: impl Iterator<Item = TenantId>,
    ) {
        if !self.is_on {
            return;
        }
        self.floor = floor;
        for &(id, served) in served {
            self.tenants.insert(id, Tenant { served, num_seqs: 0 });
        }
        for id in with_work {
            self.tenants.entry(id).or_default().num_seqs += 1;
        }
    }

    /// What every tenant was served, for fingerprints of states.
    #[cfg(feature = "model")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantId, u64, u32)> {
        self.tenants
            .iter()
            .map(|(&id, tenant)| (id, tenant.served, tenant.num_seqs))
    }
}

/// At least one unit, so that no weight makes tokens free.
fn units(of: &RequestOptions, num_tokens: u32) -> u64 {
    (u64::from(num_tokens) * UNITS_PER_TOKEN / u64::from(of.weight.max(1))).max(1)
}

impl Scheduler {
    /// Who is admitted next if there is room.
    pub(super) fn head(&self) -> Option<(QueueKey, Slot)> {
        if !self.shares.is_on {
            return self.waiting.front();
        }
        let fronts = self.waiting.fronts();
        let least = fronts.min_by_key(|&(tenant, key, _)| (key.priority, self.shares.served(tenant), key));
        least.map(|(_, key, slot)| (key, slot))
    }
}
