//! The requests that wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::names::TenantName;
use crate::policy::Priority;
use crate::time::Micros;

/// Every so many turns, the one who has waited longest goes.
pub(super) const TURNS_PER_OLDEST: u64 = 4;

/// Units of service that one token of a tenant of weight 1 counts. Divisible by all small weights.
const UNITS_PER_TOKEN: u64 = 5040;

/// Bounds of a room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RoomConfig {
    /// Most requests that wait.
    pub capacity: usize,
    /// How long a request waits before it may go out of turn.
    pub patience: Duration,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Whose it is.
    pub tenant: TenantName,
    /// Its class; lower goes first.
    pub priority: Priority,
    /// Its tenant's share among those of its class, 1 or more.
    pub weight: u32,
    /// What it will cost, in tokens.
    pub cost: u64,
    /// The part of the room that its tenant may fill, in percent; 0 counts as 100.
    pub queue_share_percent: u8,
    /// The end of its time.
    pub until: Micros,
}

/// A request in the room; later ones have larger numbers.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct WaiterId(u64);

/// Why nobody more can wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Full {
    /// The room is full.
    #[error("{capacity} requests wait, which is the limit")]
    Room {
        /// Most requests that wait.
        capacity: usize,
    },
    /// The tenant's part is full.
    #[error("{part} requests of the tenant wait, which is its part of the queue")]
    TenantsPart {
        /// Most of its requests that wait.
        part: usize,
    },
}

/// What waits, for scaling and metrics.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Signal {
    /// Requests.
    pub num_waiting: usize,
    /// Their tokens.
    pub num_tokens: u64,
    /// How long the first of them has waited.
    pub longest_wait: Duration,
}

/// The room.
#[derive(Debug)]
pub struct WaitingRoom {
    config: RoomConfig,
    tenants: BTreeMap<TenantName, Tenant>,
    /// Where each one stands.
    places: BTreeMap<WaiterId, Place>,
    deadlines: BTreeSet<(Micros, WaiterId)>,
    /// Where a tenant that comes begins: what the least served of those that waited had, at any time so far.
    floor: u64,
    num_tokens: u64,
    num_turns: u64,
    next: u64,
}

#[derive(Debug, Default)]
struct Tenant {
    lines: BTreeMap<Priority, VecDeque<WaiterId>>,
    num_waiting: usize,
    /// In units per weight.
    served: u64,
}

#[derive(Debug)]
struct Place {
    waiter: Waiter,
    since: Micros,
}

impl Default for RoomConfig {
    /// A thousand requests, ten seconds.
    fn default() -> Self {
        Self {
            capacity: 1024,
            patience: Duration::from_secs(10),
        }
    }
}

impl WaitingRoom {
    /// An empty room.
    pub fn new(config: RoomConfig) -> Self {
        Self {
            config,
            tenants: BTreeMap::new(),
            places: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            floor: 0,
            num_tokens: 0,
            num_turns: 0,
            next: 0,
        }
    }

    /// A request comes in.
    ///
    /// # Errors
    /// The room or the tenant's part of it is full.
    pub fn enter(&mut self, waiter: Waiter, now: Micros) -> Result<WaiterId, Full> {
        let capacity = self.config.capacity;
        if self.places.len() >= capacity {
            return Err(Full::Room { capacity });
        }
        let percent = match waiter.queue_share_percent {
            0 => 100,
            percent => usize::from(percent.min(100)),
        };
        let part = (capacity * percent / 100).max(1);
        let floor = self.floor;
        let tenant = self.tenants.entry(waiter.tenant.clone()).or_default();
        if tenant.num_waiting >= part {
            return Err(Full::TenantsPart { part });
        }
        if tenant.num_waiting == 0 {
            tenant.served = tenant.served.max(floor);
        }
        let id = WaiterId(self.next);
        self.next += 1;
        tenant.num_waiting += 1;
        tenant.lines.entry(waiter.priority).or_default().push_back(id);
        self.deadlines.insert((waiter.until, id));
        self.num_tokens = self.num_tokens.saturating_add(waiter.cost);
        self.places.insert(id, Place { waiter, since: now });
        Ok(id)
    }

    /// The next one goes; `None` if nobody waits. Those whose time has run out must have been [expired](Self::expire) before.
    pub fn next(&mut self, now: Micros) -> Option<(WaiterId, Waiter)> {
        let overdue = || {
            let (id, place) = self.places.first_key_value()?;
            (now.since(place.since) >= self.config.patience).then_some(*id)
        };
        let is_turn_of_oldest = self.num_turns % TURNS_PER_OLDEST == TURNS_PER_OLDEST - 1;
        let out_of_turn = if is_turn_of_oldest { overdue() } else { None };
        let id = out_of_turn.or_else(|| self.fairest())?;
        self.num_turns += 1;
        self.raise_floor();
        let waiter = self.take(id)?;
        if let Some(tenant) = self.tenants.get_mut(&waiter.tenant) {
            let units = waiter.cost.saturating_mul(UNITS_PER_TOKEN) / u64::from(waiter.weight.max(1));
            tenant.served = tenant.served.saturating_add(units);
        }
        self.forget_idle();
        Some((id, waiter))
    }

    /// A request leaves without going, because its client did; `None` if it isn't here any more.
    pub fn leave(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.take(id);
        self.forget_idle();
        waiter
    }

    /// Those whose time has run out, who leave.
    pub fn expire(&mut self, now: Micros) -> Vec<(WaiterId, Waiter)> {
        let mut expired = Vec::new();
        while let Some((until, id)) = self.deadlines.first().copied()
            && until <= now
        {
            expired.extend(self.take(id).map(|waiter| (id, waiter)));
        }
        self.forget_idle();
        expired
    }

    /// What waits.
    pub fn signal(&self, now: Micros) -> Signal {
        let first = self.places.values().next();
        Signal {
            num_waiting: self.places.len(),
            num_tokens: self.num_tokens,
            longest_wait: first.map_or(Duration::ZERO, |place| now.since(place.since)),
        }
    }

    /// Requests of one tenant that wait.
    pub fn num_waiting(&self, tenant: &TenantName) -> usize {
        self.tenants.get(tenant).map_or(0, |tenant| tenant.num_waiting)
    }

    /// The oldest request of the least served tenant in the most urgent class; names decide between equals.
    fn fairest(&self) -> Option<WaiterId> {
        let heads = self.tenants.iter().filter_map(|(name, tenant)| {
            let (priority, line) = tenant.lines.first_key_value()?;
            Some(((*priority, tenant.served, name), *line.front()?))
        });
        heads.min_by_key(|(key, _)| *key).map(|(_, id)| id)
    }

    fn raise_floor(&mut self) {
        let waiting = self.tenants.values().filter(|tenant| tenant.num_waiting > 0);
        let least = waiting.map(|tenant| tenant.served).min();
        self.floor = self.floor.max(least.unwrap_or(0));
    }

    fn take(&mut self, id: WaiterId) -> Option<Waiter> {
        let Place { waiter, .. } = self.places.remove(&id)?;
        self.deadlines.remove(&(waiter.until, id));
        self.num_tokens = self.num_tokens.saturating_sub(waiter.cost);
        let tenant = self.tenants.get_mut(&waiter.tenant)?;
        tenant.num_waiting -= 1;
        let line = tenant.lines.get_mut(&waiter.priority)?;
        // Numbers rise along a line.
        if let Ok(place) = line.binary_search(&id) {
            line.remove(place);
        }
        if line.is_empty() {
            tenant.lines.remove(&waiter.priority);
        }
        Some(waiter)
    }

    /// A tenant that doesn't wait and has been served no more than the floor would begin there anyway.
    fn forget_idle(&mut self) {
        let floor = self.floor;
        self.tenants
            .retain(|_, tenant| tenant.num_waiting > 0 || tenant.served > floor);
    }
}
