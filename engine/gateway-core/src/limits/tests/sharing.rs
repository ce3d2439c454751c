//! Several replicas, one store, and what happens when it comes and goes.

use std::collections::BTreeMap;

use super::store::ReferenceStore;
use super::*;

const LEASE: Duration = Duration::from_secs(30);

/// Replicas that share a store; each has a clock of its own.
struct Replicas {
    ledgers: Vec<Ledger>,
    store: ReferenceStore,
    limits: Limits,
    num_charges: usize,
}

impl Replicas {
    fn new(num_replicas: u32, limits: Limits) -> Self {
        Self {
            ledgers: (0..num_replicas)
                .map(|_| Ledger::new(num_replicas, Mode::Store))
                .collect(),
            store: ReferenceStore::default(),
            limits,
            num_charges: 0,
        }
    }

    /// Replica i's clock is `7 i` seconds and a bit ahead.
    fn clock(replica: usize, now: Micros) -> Micros {
        Micros(now.0 + replica as u64 * 7_300_000)
    }

    fn charge(&mut self, replica: usize, cost: Cost, now: Micros) -> Option<(Charge, String)> {
        let ledger = &mut self.ledgers[replica];
        let own = Self::clock(replica, now);
        self.num_charges += 1;
        let id = self.num_charges.to_string();
        let charge = match ledger.mode() {
            Mode::Alone => ledger.charge(&tenant(), &self.limits, cost, own).ok()?,
            Mode::Store => {
                let admitted = self
                    .store
                    .charge(&tenant(), &self.limits, cost.amounts(), (&id, LEASE), now)
                    .ok()?;
                ledger.record(&tenant(), cost, own, admitted.slot)
            }
        };
        Some((charge, id))
    }

    fn settle(&mut self, replica: usize, charge: (Charge, String), actual: Cost, now: Micros) {
        let (charge, id) = charge;
        let own = Self::clock(replica, now);
        if let Some(adjustment) = self.ledgers[replica].settle(charge, actual, own) {
            self.store.settle(&adjustment, &id, now);
        }
    }

    fn rejoin(&mut self, replica: usize, now: Micros) {
        let merge = self.ledgers[replica].rejoin(Self::clock(replica, now));
        let slot = self.store.merge(&merge.items, now);
        self.ledgers[replica].merged(&merge, &BTreeMap::from([(tenant(), slot)]));
    }
}

#[test]
fn replicas_share_one_account_through_the_store() {
    let mut replicas = Replicas::new(2, per_minute(3, 1000));
    assert!(replicas.charge(0, tokens(1, 1), at(0)).is_some());
    assert!(replicas.charge(1, tokens(1, 1), at(0)).is_some());
    assert!(replicas.charge(0, tokens(1, 1), at(0)).is_some());
    assert!(replicas.charge(1, tokens(1, 1), at(59)).is_none());
    assert!(replicas.charge(1, tokens(1, 1), at(61)).is_some());
}

#[test]
fn a_settlement_at_one_replica_makes_room_at_the_other() {
    let mut replicas = Replicas::new(2, per_minute(10, 100));
    let charge = replicas.charge(0, tokens(50, 50), at(0)).unwrap();
    assert!(replicas.charge(1, tokens(1, 0), at(1)).is_none());
    replicas.settle(0, charge, tokens(50, 20), at(2));
    assert!(replicas.charge(1, tokens(31, 0), at(2)).is_none());
    assert!(replicas.charge(1, tokens(30, 0), at(2)).is_some());
}

#[test]
fn a_replica_that_loses_the_store_counts_what_it_had() {
    let mut replicas = Replicas::new(2, per_minute(10, 1000));
    for _ in 0..5 {
        assert!(replicas.charge(0, tokens(1, 0), at(0)).is_some());
    }
    replicas.ledgers[0].leave();
    replicas.ledgers[1].leave();
    assert!(replicas.charge(0, tokens(1, 0), at(1)).is_none());
    assert!(replicas.charge(1, tokens(1, 0), at(1)).is_some());
}

#[test]
fn what_was_admitted_alone_counts_in_the_store_afterwards_and_is_settled_there() {
    let mut replicas = Replicas::new(2, per_minute(100, 100));
    replicas.ledgers[1].leave();
    let charge = replicas.charge(1, tokens(20, 30), at(5)).unwrap();
    assert_eq!(replicas.store.used(&tenant(), Dimension::Tokens, at(8)), 0);
    replicas.rejoin(1, at(8));
    assert_eq!(replicas.store.used(&tenant(), Dimension::Tokens, at(8)), 50);
    replicas.settle(1, charge, tokens(20, 1), at(9));
    assert_eq!(replicas.store.used(&tenant(), Dimension::Tokens, at(9)), 21);
    assert_eq!(replicas.store.used(&tenant(), Dimension::Tokens, at(66)), 0);
}

#[test]
fn a_settlement_between_handing_over_and_its_receipt_is_not_counted_twice() {
    let mut ledger = Ledger::new(1, Mode::Alone);
    let limits = per_minute(100, 100);
    let charge = ledger.charge(&tenant(), &limits, tokens(10, 10), at(0)).unwrap();
    let merge = ledger.rejoin(at(1));
    assert_eq!(merge.items.len(), 1);
    assert_eq!(ledger.settle(charge, tokens(10, 0), at(1)), None);
    ledger.merged(&merge, &BTreeMap::from([(tenant(), 77)]));
    ledger.leave();
    assert_eq!(ledger.rejoin(at(2)).items, []);
}

#[test]
fn a_store_that_takes_tenants_in_different_seconds_settles_each_in_its_own() {
    let other = TenantName::new("other").unwrap();
    let mut ledger = Ledger::new(1, Mode::Alone);
    let limits = per_minute(100, 100);
    let first = ledger.charge(&tenant(), &limits, tokens(10, 0), at(0)).unwrap();
    let second = ledger.charge(&other, &limits, tokens(10, 0), at(0)).unwrap();
    let merge = ledger.rejoin(at(1));
    ledger.merged(&merge, &BTreeMap::from([(tenant(), 77), (other, 78)]));
    assert_eq!(ledger.settle(first, tokens(1, 0), at(2)).unwrap().slot, 76);
    assert_eq!(ledger.settle(second, tokens(1, 0), at(2)).unwrap().slot, 77);
}

#[test]
fn a_part_of_a_merge_that_failed_is_settled_nowhere() {
    let mut ledger = Ledger::new(1, Mode::Alone);
    let limits = per_minute(100, 100);
    let charge = ledger.charge(&tenant(), &limits, tokens(10, 0), at(0)).unwrap();
    let merge = ledger.rejoin(at(1));
    ledger.merged(&merge, &BTreeMap::new());
    ledger.leave();
    assert_eq!(ledger.settle(charge, tokens(1, 0), at(2)), None);
}

#[test]
fn a_lease_that_nobody_renews_frees_its_place() {
    let mut store = ReferenceStore::default();
    let limits = Limits {
        concurrency: Some(1),
        ..Limits::default()
    };
    let cost = tokens(1, 1).amounts();
    let charge = |store: &mut ReferenceStore, id: &str, now| {
        store.charge(&tenant(), &limits, cost, (id, LEASE), now).is_ok()
    };
    assert!(charge(&mut store, "a", at(0)));
    assert!(!charge(&mut store, "b", at(29)));
    assert_eq!(store.renew(&tenant(), &["a", "unknown"], LEASE, at(29)), 1);
    assert!(!charge(&mut store, "b", at(58)));
    assert!(charge(&mut store, "b", at(59)));
    assert_eq!(store.renew(&tenant(), &["a"], LEASE, at(59)), 0);
}

#[derive(Clone, Debug)]
enum Action {
    Charge(usize, u64),
    Settle(prop::sample::Index, u64),
    Leave(usize),
    Rejoin(usize),
    Wait(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (0_usize..3, 0_u64..40).prop_map(|(replica, cost)| Action::Charge(replica, cost)),
        2 => (any::<prop::sample::Index>(), 0_u64..=100).prop_map(|(at, percent)| Action::Settle(at, percent)),
        1 => (0_usize..3).prop_map(Action::Leave),
        1 => (0_usize..3).prop_map(Action::Rejoin),
        2 => (0_u64..25_000_000).prop_map(Action::Wait),
    ]
}

proptest! {
    #[test]
    fn no_minute_holds_more_than_twice_the_limit_however_often_the_store_comes_and_goes(
        actions in prop::collection::vec(action(), 1..150),
    ) {
        let limit = 100;
        let mut replicas = Replicas::new(3, per_minute(1_000_000, limit));
        let mut now = at(1000);
        let mut open: Vec<(usize, usize, u64, (Charge, String))> = Vec::new();
        // When, and how much it came to.
        let mut admitted: Vec<(Micros, u64)> = Vec::new();
        let mut last_change = Micros(0);
        for action in actions {
            match action {
                Action::Wait(micros) => now.0 += micros,
                Action::Charge(replica, cost) => {
                    if let Some(charge) = replicas.charge(replica, tokens(cost, 0), now) {
                        open.push((replica, admitted.len(), cost, charge));
                        admitted.push((now, cost));
                    }
                }
                Action::Settle(at, percent) if !open.is_empty() => {
                    let (replica, index, cost, charge) = open.swap_remove(at.index(open.len()));
                    admitted[index].1 = cost * percent / 100;
                    replicas.settle(replica, charge, tokens(cost * percent / 100, 0), now);
                }
                Action::Settle(..) => {}
                Action::Leave(replica) => {
                    replicas.ledgers[replica].leave();
                    last_change = now;
                }
                Action::Rejoin(replica) => {
                    if replicas.ledgers[replica].mode() == Mode::Alone {
                        replicas.rejoin(replica, now);
                        last_change = now;
                    }
                }
            }
            let minute: u64 = admitted.iter().filter(|(at, _)| at.0 + 60 * SECOND > now.0).map(|(_, amount)| amount).sum();
            prop_assert!(minute <= 2 * limit, "{minute}");
            let all_with_store = replicas.ledgers.iter().all(|ledger| ledger.mode() == Mode::Store);
            if all_with_store && last_change.0 + 61 * SECOND <= now.0 {
                prop_assert!(minute <= limit, "{minute} without a change");
            }
        }
    }

    #[test]
    fn the_store_admits_what_a_single_ledger_would(costs in prop::collection::vec((0_u64..60, 0_u64..20_000_000), 1..60)) {
        let limits = per_minute(6, 150);
        let mut ledger = Ledger::new(1, Mode::Alone);
        let mut store = ReferenceStore::default();
        let mut now = at(3);
        for (i, (cost, pause)) in costs.into_iter().enumerate() {
            now.0 += pause;
            let id = i.to_string();
            let alone = ledger.charge(&tenant(), &limits, tokens(cost, cost), now);
            let shared = store.charge(&tenant(), &limits, tokens(cost, cost).amounts(), (&id, LEASE), now);
            prop_assert_eq!(alone.as_ref().map(|_| ()).map_err(|error| *error), shared.map(|_| ()));
            if let Ok(charge) = alone {
                ledger.settle(charge, tokens(cost, cost), now);
            }
        }
    }
}
