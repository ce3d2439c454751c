//! Whatever is lost, in whatever order, the store ends up with exactly what was admitted.

use super::sharing::{Fate, Replicas};
use super::store::ReferenceStore;
use super::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Charge(usize, Fate),
    /// The oldest running request of the replica.
    SettleOldest(usize),
    SettleNewest(usize),
    Tell(usize, Fate),
    /// The replica sees the store again, or asks whether it's the same one.
    ComeBack(usize),
    /// The store forgets everything.
    Forget,
    Wait(u64),
}

/// What each request came to, or its estimate, and when it was admitted.
struct History {
    replicas: Replicas,
    open: [Vec<(Charge, usize)>; 2],
    all: Vec<(Micros, u64)>,
    now: Micros,
}

const ESTIMATE: u64 = 10;

impl History {
    fn new(num_replicas: u32) -> Self {
        Self {
            replicas: Replicas::new(num_replicas, per_minute(1_000_000, 1_000_000)),
            open: [Vec::new(), Vec::new()],
            all: Vec::new(),
            now: at(1000),
        }
    }

    fn step(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Charge(replica, fate) => {
                let charge = self.replicas.charge_with(replica, tokens(ESTIMATE, 0), fate, now);
                self.open[replica].push((charge.unwrap(), self.all.len()));
                self.all.push((now, ESTIMATE));
            }
            Event::SettleOldest(replica) if !self.open[replica].is_empty() => {
                let ended = self.open[replica].remove(0);
                self.settle(replica, ended);
            }
            Event::SettleNewest(replica) => {
                if let Some(ended) = self.open[replica].pop() {
                    self.settle(replica, ended);
                }
            }
            Event::SettleOldest(_) => {}
            Event::Tell(replica, fate) => self.replicas.tell(replica, fate, now),
            Event::ComeBack(replica) => self.replicas.rejoin(replica, now),
            Event::Forget => self.replicas.store = ReferenceStore::default(),
            Event::Wait(seconds) => self.now.0 += seconds * SECOND,
        }
    }

    fn settle(&mut self, replica: usize, (charge, index): (Charge, usize)) {
        // Each comes to something else, so that one can't stand for another.
        let actual = 1 + index as u64;
        self.all[index].1 = actual;
        self.replicas.settle(replica, charge, tokens(actual, 0), self.now);
    }

    /// Everybody comes back and tells everything: twice, because one may find an account that the other is about to leave.
    fn assert_exact(mut self, events: &[Event]) {
        for replica in (0..self.replicas.ledgers.len()).chain(0..self.replicas.ledgers.len()) {
            self.replicas.rejoin(replica, self.now);
        }
        let second = |at: Micros| at.0 / SECOND;
        let now = self.now;
        let counts = self.all.iter().filter(|(at, _)| second(*at) + 61 > second(now));
        let expected: u64 = counts.map(|(_, amount)| amount).sum();
        assert_eq!(self.replicas.used(now), expected, "{events:?}");
        let num_open: usize = self.open.iter().map(Vec::len).sum();
        let num_running = self.replicas.store.num_running(&tenant(), now);
        assert_eq!(num_running, num_open, "running after {events:?}");
    }
}

#[test]
fn one_replica_is_exact_after_every_order_of_charges_settlements_losses_and_returns() {
    const EVENTS: [Event; 10] = [
        Event::Charge(0, Fate::Answered),
        Event::Charge(0, Fate::Lost),
        Event::Charge(0, Fate::AnswerLost),
        Event::SettleOldest(0),
        Event::SettleNewest(0),
        Event::Tell(0, Fate::Answered),
        Event::Tell(0, Fate::Lost),
        Event::Tell(0, Fate::AnswerLost),
        Event::ComeBack(0),
        Event::Forget,
    ];
    const LENGTH: u32 = 5;
    for number in 0..EVENTS.len().pow(LENGTH) {
        let digit = |place: u32| EVENTS[number / EVENTS.len().pow(place) % EVENTS.len()];
        let events: Vec<Event> = (0..LENGTH).map(digit).collect();
        let mut history = History::new(1);
        for event in &events {
            history.step(*event);
        }
        history.assert_exact(&events);
    }
}

#[test]
fn a_charge_that_arrives_after_it_was_taken_back_does_not_count() {
    let limits = per_minute(10, 100);
    let (mut ledger, mut store) = (Ledger::new("r", 1, Mode::Store), ReferenceStore::default());
    let id = ledger.new_id();
    let Ask::Store(known) = ledger.ask(&tenant(), at(0)) else {
        panic!("it decides alone");
    };
    ledger.leave();
    ledger.doubt(&tenant(), id.clone(), at(0));
    ledger.rejoin();
    while let Some(call) = ledger.next_call(&tenant(), at(1)) {
        let told = match &call {
            Call::HandOver(handover) => store.merge(&tenant(), handover, at(1)),
            Call::Settle { instance, ended } => store.settle(&tenant(), instance, ended, at(1)),
        };
        ledger.told(&tenant(), &call, &told);
    }
    let late = store.charge(
        &tenant(),
        &limits,
        tokens(5, 5).amounts(),
        (&id, known.as_ref()),
        at(2),
    );
    assert_eq!(late, store::Verdict::Elsewhere);
    assert_eq!(store.used(&tenant(), Dimension::Tokens, at(2)), 0);
}

#[test]
fn ends_that_the_store_never_hears_of_are_forgotten_after_a_minute_and_counted() {
    let mut replicas = Replicas::new(1, per_minute(100, 1000));
    let charge = replicas.charge(0, tokens(5, 5), at(0)).unwrap();
    replicas.ledgers[0].leave();
    replicas.settle(0, charge, tokens(5, 1), at(1));
    assert_eq!(replicas.ledgers[0].untold(), [tenant()]);
    replicas.rejoin(0, at(100));
    assert_eq!(replicas.ledgers[0].untold(), []);
    assert_eq!(replicas.ledgers[0].num_forgotten(), 1);
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![4 => Just(Fate::Answered), 1 => Just(Fate::Lost), 1 => Just(Fate::AnswerLost)]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0_usize..2, fate()).prop_map(|(replica, fate)| Event::Charge(replica, fate)),
        2 => (0_usize..2).prop_map(Event::SettleOldest),
        2 => (0_usize..2).prop_map(Event::SettleNewest),
        4 => (0_usize..2, fate()).prop_map(|(replica, fate)| Event::Tell(replica, fate)),
        3 => (0_usize..2).prop_map(Event::ComeBack),
        1 => Just(Event::Forget),
        2 => (0_u64..15).prop_map(Event::Wait),
    ]
}

proptest! {
    #[test]
    fn two_replicas_are_exact_after_any_history(events in prop::collection::vec(event(), 1..60)) {
        let mut history = History::new(2);
        for event in &events {
            history.step(*event);
        }
        history.assert_exact(&events);
    }
}
