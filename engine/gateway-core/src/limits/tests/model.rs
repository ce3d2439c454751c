//! The ledger against a list of everything that ever happened.

use super::*;

#[derive(Clone, Debug)]
enum Action {
    Charge(Cost),
    /// The n-th open charge, with this part of its estimate in percent.
    Settle(prop::sample::Index, u64),
    Cancel(prop::sample::Index),
    Wait(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0_u64..60, 0_u64..60).prop_map(|(input, output)| Action::Charge(tokens(input, output))),
        3 => (any::<prop::sample::Index>(), 0_u64..=100).prop_map(|(at, percent)| Action::Settle(at, percent)),
        1 => any::<prop::sample::Index>().prop_map(Action::Cancel),
        2 => (0_u64..30_000_000).prop_map(Action::Wait),
    ]
}

/// A charge and what became of it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Micros,
    amounts: Amounts,
}

/// Everything that happened, looked through anew for each question.
#[derive(Default)]
struct Slow(Vec<Entry>);

impl Slow {
    fn used(&self, dimension: Dimension, now: Micros) -> u64 {
        let second = |at: Micros| at.0 / SECOND;
        let counts = |entry: &&Entry| second(entry.at) + 61 > second(now);
        self.0
            .iter()
            .filter(counts)
            .map(|entry| entry.amounts.get(dimension))
            .sum()
    }

    fn has_room(&self, limits: &Limits, wanted: Amounts, now: Micros) -> bool {
        Dimension::ALL.into_iter().all(|dimension| {
            let limit = limits.per_minute(dimension).unwrap_or(u64::MAX);
            self.used(dimension, now) + wanted.get(dimension) <= limit
        })
    }

    /// The most that any 60 seconds hold; they may begin at any entry.
    fn most_per_minute(&self, dimension: Dimension) -> u64 {
        let sum_from = |from: Micros| -> u64 {
            let within = |entry: &&Entry| entry.at >= from && entry.at.0 < from.0 + 60 * SECOND;
            self.0
                .iter()
                .filter(within)
                .map(|entry| entry.amounts.get(dimension))
                .sum()
        };
        self.0.iter().map(|entry| sum_from(entry.at)).max().unwrap_or(0)
    }
}

proptest! {
    #[test]
    fn the_ledger_equals_the_slow_one_and_keeps_its_law(actions in prop::collection::vec(action(), 1..80)) {
        let limits = Limits {
            input_tokens_per_minute: Some(120),
            output_tokens_per_minute: Some(150),
            ..per_minute(5, 200)
        };
        let mut ledger = alone();
        let mut slow = Slow::default();
        let mut open: Vec<(Charge, usize)> = Vec::new();
        let mut now = Micros(12_345_678);
        for action in actions {
            match action {
                Action::Wait(micros) => now.0 += micros,
                Action::Charge(cost) => {
                    let has_room = slow.has_room(&limits, cost.amounts(), now);
                    let charged = ledger.charge(&tenant(), &limits, cost, now);
                    prop_assert_eq!(charged.is_ok(), has_room);
                    if let Ok(charge) = charged {
                        open.push((charge, slow.0.len()));
                        slow.0.push(Entry { at: now, amounts: cost.amounts() });
                    }
                }
                Action::Settle(at, percent) if !open.is_empty() => {
                    let (charge, index) = open.swap_remove(at.index(open.len()));
                    let held = slow.0[index].amounts.as_array();
                    let actual = tokens(held[2], held[3] * percent / 100);
                    slow.0[index].amounts = actual.amounts();
                    ledger.settle(charge, actual, now);
                }
                Action::Cancel(at) if !open.is_empty() => {
                    let (charge, index) = open.swap_remove(at.index(open.len()));
                    slow.0[index].amounts = Amounts::default();
                    ledger.cancel(charge, now);
                }
                Action::Settle(..) | Action::Cancel(_) => {}
            }
            let usage = ledger.usage(&tenant(), &limits, now);
            for dimension in Dimension::ALL {
                prop_assert_eq!(usage.0[dimension as usize].unwrap().used, slow.used(dimension, now));
            }
            prop_assert_eq!(ledger.totals(&tenant()).num_running as usize, open.len());
        }
        for dimension in Dimension::ALL {
            prop_assert!(slow.most_per_minute(dimension) <= limits.per_minute(dimension).unwrap());
        }
    }

    #[test]
    fn settlements_in_any_order_give_the_same_account(
        costs in prop::collection::vec((0_u64..50, 0_u64..50, 0_u64..=100), 1..20),
        order in any::<u64>(),
    ) {
        let limits = per_minute(1000, 100_000);
        let run = |reversed: bool| {
            let mut ledger = alone();
            let mut open = Vec::new();
            for (i, (input, output, percent)) in costs.iter().enumerate() {
                let now = at(i as u64 * 3);
                let charge = ledger.charge(&tenant(), &limits, tokens(*input, *output), now).unwrap();
                open.push((charge, tokens(*input, output * percent / 100)));
            }
            if reversed {
                open.reverse();
                let len = open.len();
                open.rotate_left((order % len as u64) as usize);
            }
            let end = at(costs.len() as u64 * 3);
            for (charge, actual) in open {
                ledger.settle(charge, actual, end);
            }
            (ledger.usage(&tenant(), &limits, end), ledger.totals(&tenant()))
        };
        prop_assert_eq!(run(false), run(true));
    }

    #[test]
    fn a_refused_request_fits_exactly_after_its_retry_after(
        costs in prop::collection::vec((0_u64..80, 0_u64..20_000_000), 1..20),
        wanted in 0_u64..100,
    ) {
        let limits = per_minute(6, 100);
        let mut ledger = alone();
        let mut now = Micros(0);
        for (cost, pause) in costs {
            now.0 += pause;
            if let Ok(charge) = ledger.charge(&tenant(), &limits, tokens(cost, 0), now) {
                ledger.settle(charge, tokens(cost, 0), now);
            }
        }
        if let Err(Exhausted::PerMinute { retry_after, .. }) = ledger.charge(&tenant(), &limits, tokens(wanted, 0), now) {
            let after = retry_after.unwrap().as_micros() as u64;
            prop_assert!(ledger.charge(&tenant(), &limits, tokens(wanted, 0), Micros(now.0 + after - 1)).is_err());
            prop_assert!(ledger.charge(&tenant(), &limits, tokens(wanted, 0), Micros(now.0 + after)).is_ok());
        }
    }
}
