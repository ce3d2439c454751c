//! Several replicas, one store, and what happens when it comes and goes.

use super::store::{ReferenceStore, Verdict};
use super::*;

/// What becomes of a call to the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    Answered,
    /// It never arrives.
    Lost,
    /// It's done, and its answer is lost.
    AnswerLost,
}

/// Replicas that share a store; each has a clock of its own.
pub(super) struct Replicas {
    pub(super) ledgers: Vec<Ledger>,
    pub(super) store: ReferenceStore,
    limits: Limits,
}

impl Replicas {
    pub(super) fn new(num_replicas: u32, limits: Limits) -> Self {
        Self {
            ledgers: (0..num_replicas)
                .map(|number| Ledger::new(&format!("r{number}"), num_replicas, Mode::Store))
                .collect(),
            store: ReferenceStore::default(),
            limits,
        }
    }

    /// Replica i's clock is `7 i` seconds ahead.
    fn clock(replica: usize, now: Micros) -> Micros {
        Micros(now.0 + replica as u64 * 7_000_000)
    }

    pub(super) fn charge(&mut self, replica: usize, cost: Cost, now: Micros) -> Option<Charge> {
        self.charge_with(replica, cost, Fate::Answered, now)
    }

    /// As the gateway does it.
    pub(super) fn charge_with(
        &mut self,
        replica: usize,
        cost: Cost,
        fate: Fate,
        now: Micros,
    ) -> Option<Charge> {
        let own = Self::clock(replica, now);
        let id = self.ledgers[replica].new_id();
        for _ in 0..3 {
            match self.ledgers[replica].ask(&tenant(), own) {
                Ask::Alone => break,
                Ask::StoreLater => self.tell(replica, fate, now),
                Ask::Store(known) => {
                    let asked = (&id, known.as_ref());
                    let verdict = match fate {
                        Fate::Lost => None,
                        _ => Some(
                            self.store
                                .charge(&tenant(), &self.limits, cost.amounts(), asked, now),
                        ),
                    };
                    let ledger = &mut self.ledgers[replica];
                    match verdict.filter(|_| fate == Fate::Answered) {
                        None => {
                            ledger.doubt(&tenant(), id.clone(), own);
                            ledger.leave();
                        }
                        Some(Verdict::Refused(_)) => return None,
                        Some(Verdict::Elsewhere) => ledger.elsewhere(&tenant(), known.as_ref(), own),
                        Some(Verdict::Admitted(admission)) => {
                            return Some(ledger.record(&tenant(), id, cost, &admission.instance, own));
                        }
                    }
                }
            }
        }
        self.ledgers[replica]
            .charge(&tenant(), &self.limits, cost, own)
            .ok()
    }

    pub(super) fn settle(&mut self, replica: usize, charge: Charge, actual: Cost, now: Micros) {
        let own = Self::clock(replica, now);
        self.ledgers[replica].settle(charge, actual, own);
    }

    /// Tells the store what it must hear.
    pub(super) fn tell(&mut self, replica: usize, fate: Fate, now: Micros) {
        let own = Self::clock(replica, now);
        for _ in 0..100 {
            if self.ledgers[replica].mode() == Mode::Alone {
                return;
            }
            let Some(call) = self.ledgers[replica].next_call(&tenant(), own) else {
                return;
            };
            let told = match (&call, fate) {
                (_, Fate::Lost) => None,
                (Call::HandOver(handover), _) => Some(self.store.merge(&tenant(), handover, now)),
                (Call::Settle { instance, ended }, _) => {
                    Some(self.store.settle(&tenant(), instance, ended, now))
                }
            };
            match told.filter(|_| fate == Fate::Answered) {
                Some(told) => self.ledgers[replica].told(&tenant(), &call, &told),
                None => return self.ledgers[replica].leave(),
            }
        }
        panic!("it never ends");
    }

    /// Asks whether the store's account is still the same one, and prolongs leases.
    pub(super) fn renew(&mut self, replica: usize, now: Micros) {
        let own = Self::clock(replica, now);
        for (tenant, instance, ids) in self.ledgers[replica].leases(own) {
            if self.store.renew(&tenant, &instance, &ids, now) == Told::Elsewhere {
                self.ledgers[replica].elsewhere(&tenant, Some(&instance), own);
            }
        }
    }

    pub(super) fn rejoin(&mut self, replica: usize, now: Micros) {
        self.ledgers[replica].rejoin();
        self.renew(replica, now);
        self.tell(replica, Fate::Answered, now);
    }

    pub(super) fn used(&mut self, now: Micros) -> u64 {
        self.store.used(&tenant(), Dimension::Tokens, now)
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
    replicas.tell(0, Fate::Answered, at(2));
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
    assert_eq!(replicas.used(at(8)), 0);
    replicas.rejoin(1, at(8));
    assert_eq!(replicas.used(at(8)), 50);
    assert_eq!(replicas.store.num_running(&tenant(), at(8)), 1);
    replicas.settle(1, charge, tokens(20, 1), at(9));
    replicas.tell(1, Fate::Answered, at(9));
    assert_eq!(replicas.used(at(9)), 21);
    assert_eq!(replicas.used(at(66)), 0);
}

#[test]
fn a_lease_that_nobody_renews_frees_its_place() {
    let limits = Limits {
        concurrency: Some(1),
        ..Limits::default()
    };
    let mut replicas = Replicas::new(2, limits);
    let _first = replicas.charge(0, tokens(1, 1), at(0)).unwrap();
    assert!(replicas.charge(1, tokens(1, 1), at(29)).is_none());
    replicas.renew(0, at(29));
    assert!(replicas.charge(1, tokens(1, 1), at(58)).is_none());
    assert!(replicas.charge(1, tokens(1, 1), at(59)).is_some());
}

#[test]
fn a_request_that_runs_longer_than_a_minute_keeps_its_place_and_frees_it() {
    let limits = Limits {
        concurrency: Some(1),
        ..per_minute(100, 1000)
    };
    let mut replicas = Replicas::new(2, limits);
    let long = replicas.charge(0, tokens(1, 9), at(0)).unwrap();
    for seconds in (10..200).step_by(10) {
        replicas.renew(0, at(seconds));
        assert!(replicas.charge(1, tokens(1, 1), at(seconds)).is_none());
    }
    replicas.settle(0, long, tokens(1, 5), at(200));
    replicas.tell(0, Fate::Answered, at(200));
    assert!(replicas.charge(1, tokens(1, 1), at(200)).is_some());
    assert_eq!(replicas.used(at(200)), 2);
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
        let mut open: Vec<(usize, usize, u64, Charge)> = Vec::new();
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
                    replicas.tell(replica, Fate::Answered, now);
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
        let mut ledger = alone();
        let mut store = ReferenceStore::default();
        let mut now = at(3);
        for (cost, pause) in costs {
            now.0 += pause;
            let id = ledger.new_id();
            let alone = ledger.charge(&tenant(), &limits, tokens(cost, cost), now);
            let shared = store.charge(&tenant(), &limits, tokens(cost, cost).amounts(), (&id, None), now);
            let refusal = match shared {
                Verdict::Refused(refusal) => Some(refusal),
                _ => None,
            };
            prop_assert_eq!(alone.as_ref().err(), refusal.as_ref());
            if let Ok(charge) = alone {
                ledger.settle(charge, tokens(cost, cost), now);
            }
        }
    }
}
