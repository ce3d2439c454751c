//! The waiting queue: an order that is a key, so that entering, leaving and finding the next one cost the same however long it is.
//!
//! Law: under [`Order::Arrival`] sequences come out in the order they came in, but for the preempted, who go before all others, the last one
//! preempted first. Under [`Order::Priority`] they come out by (priority, arrival, id), preempted or not (S15). A deferred sequence is in
//! nobody's way (S9); when it is ready it takes the place that it would have had.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::arena::Slot;
use crate::ids::TenantId;
use crate::policy::Order;
use crate::sequence::Sequence;

/// A place in the queue; smaller is earlier.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct QueueKey {
    pub(crate) priority: i64,
    pub(super) rank: i64,
    id: u64,
}

/// Sequences that hold no blocks, by the reason why they don't run.
#[derive(Debug, Default)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct WaitingQueue {
    /// For room alone.
    ready: BTreeMap<QueueKey, Slot>,
    /// The same, split by tenant; kept only if tenants matter.
    by_tenant: Option<BTreeMap<(TenantId, QueueKey), Slot>>,
    /// For something outside of the engine.
    deferred: BTreeMap<QueueKey, Slot>,
    num_tokens: u64,
    num_preempted: u32,
    last_rank: i64,
    first_rank: i64,
}

impl WaitingQueue {
    pub(super) fn new(by_tenant: bool) -> Self {
        Self {
            by_tenant: by_tenant.then(BTreeMap::new),
            ..Self::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.deferred.len()
    }

    pub(super) fn num_ready(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn num_deferred(&self) -> usize {
        self.deferred.len()
    }

    /// Prompt tokens of all sequences in it.
    pub(crate) fn num_tokens(&self) -> u64 {
        self.num_tokens
    }

    /// Sequences in it that lost their blocks.
    pub(super) fn num_preempted(&self) -> u32 {
        self.num_preempted
    }

    /// A new sequence, behind all others of its class.
    pub(super) fn push_back(&mut self, seq: &mut Sequence, slot: Slot, order: Order) {
        self.last_rank += 1;
        let rank = self.last_rank;
        self.insert(seq, slot, order, rank);
    }

    /// A preempted sequence, in front of all others of its class.
    pub(super) fn push_front(&mut self, seq: &mut Sequence, slot: Slot, order: Order) {
        self.first_rank -= 1;
        let rank = self.first_rank;
        self.insert(seq, slot, order, rank);
    }

    /// The ranks at the front and at the back.
    pub(super) fn ranks(&self) -> (i64, i64) {
        (self.first_rank, self.last_rank)
    }

    pub(super) fn set_ranks(&mut self, (first, last): (i64, i64)) {
        (self.first_rank, self.last_rank) = (first, last);
    }

    /// A sequence of an image, at the place that it had.
    pub(super) fn insert_restored(&mut self, seq: &mut Sequence, slot: Slot, order: Order) {
        let rank = seq.key.rank;
        self.insert(seq, slot, order, rank);
    }

    fn insert(&mut self, seq: &mut Sequence, slot: Slot, order: Order, rank: i64) {
        seq.key = match order {
            Order::Arrival => QueueKey {
                priority: 0,
                rank,
                id: seq.id.0,
            },
            Order::Priority => QueueKey {
                priority: seq.priority,
                rank: i64::try_from(seq.arrival.0).unwrap_or(i64::MAX),
                id: seq.id.0,
            },
        };
        self.num_tokens += u64::from(seq.prompt_len);
        self.num_preempted += u32::from(seq.num_preemptions > 0);
        if seq.options.deferral.is_some() {
            self.deferred.insert(seq.key, slot);
        } else {
            self.make_ready(seq, slot);
        }
    }

    fn make_ready(&mut self, seq: &Sequence, slot: Slot) {
        self.ready.insert(seq.key, slot);
        if let Some(by_tenant) = &mut self.by_tenant {
            by_tenant.insert((seq.options.tenant, seq.key), slot);
        }
    }

    /// What a sequence was deferred for has happened.
    pub(super) fn undefer(&mut self, seq: &mut Sequence) {
        seq.options.deferral = None;
        if let Some(slot) = self.deferred.remove(&seq.key) {
            self.make_ready(seq, slot);
        }
    }

    pub(super) fn remove(&mut self, seq: &Sequence) {
        if self.ready.remove(&seq.key).is_none() {
            self.deferred.remove(&seq.key);
        }
        if let Some(by_tenant) = &mut self.by_tenant {
            by_tenant.remove(&(seq.options.tenant, seq.key));
        }
        self.num_tokens -= u64::from(seq.prompt_len);
        self.num_preempted -= u32::from(seq.num_preemptions > 0);
    }

    pub(super) fn front(&self) -> Option<(QueueKey, Slot)> {
        self.ready.first_key_value().map(|(&key, &slot)| (key, slot))
    }

    /// The next one behind a place.
    pub(super) fn after(&self, key: QueueKey) -> Option<(QueueKey, Slot)> {
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        self.ready.range(behind).next().map(|(&key, &slot)| (key, slot))
    }

    /// The first one of each tenant that waits.
    pub(super) fn fronts(&self) -> impl Iterator<Item = (TenantId, QueueKey, Slot)> {
        let by_tenant = self.by_tenant.as_ref();
        let next = move |from: Bound<(TenantId, QueueKey)>| {
            let (&(tenant, key), &slot) = by_tenant?.range((from, Bound::Unbounded)).next()?;
            Some((tenant, key, slot))
        };
        std::iter::successors(next(Bound::Unbounded), move |&(tenant, ..)| {
            let last = QueueKey {
                priority: i64::MAX,
                rank: i64::MAX,
                id: u64::MAX,
            };
            next(Bound::Excluded((tenant, last)))
        })
    }

    /// Everybody in it, for checks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> {
        self.ready.values().chain(self.deferred.values()).copied()
    }

    /// Whether the books agree with each other, for checks.
    pub(crate) fn is_consistent(&self) -> bool {
        self.by_tenant
            .as_ref()
            .is_none_or(|by_tenant| by_tenant.len() == self.ready.len())
    }
}
