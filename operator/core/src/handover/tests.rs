//! Every order of events at small scope, beside the rules one by one.

use std::collections::VecDeque;

use super::*;

const SETTLE: SignedDuration = SignedDuration::from_mins(2);

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + minute * 60).unwrap()
}

fn ids(all: &[&str]) -> BTreeSet<AuthorityId> {
    all.iter().map(|id| (*id).to_owned()).collect()
}

fn holder(trusts: &[&str], shows: &[&str]) -> Holder {
    Holder {
        exists: true,
        trusts: ids(trusts),
        shows: ids(shows),
    }
}

fn look(before: &Standings, wanted: &[&str], holders: &[Holder], minute: i64) -> Standings {
    stand(
        before,
        &ids(wanted),
        holders,
        &BTreeSet::new(),
        SETTLE,
        at(minute),
    )
}

fn standings(all: &[(&str, Standing)]) -> Standings {
    all.iter().map(|(id, s)| ((*id).to_owned(), *s)).collect()
}

#[test]
fn the_first_authority_is_shown_at_once() {
    let first = look(&Standings::new(), &["a"], &[Holder::default()], 0);
    assert_eq!(first, standings(&[("a", Standing::Trusted)]));
}

#[test]
fn another_authority_is_trusted_when_it_has_been_in_every_secret_for_as_long_as_they_take() {
    let before = standings(&[("a", Standing::Trusted)]);
    let some = [holder(&["a", "b"], &["a"]), holder(&["a"], &["a"])];
    let all = [holder(&["a", "b"], &["a"]), holder(&["a", "b"], &["a"])];
    let announced = look(&before, &["b"], &some, 0);
    assert_eq!(announced["b"], Standing::Announced);
    let waiting = look(&announced, &["b"], &some, 60);
    assert_eq!(waiting["b"], Standing::Announced, "one Secret lacks it still");
    let spread = look(&waiting, &["b"], &all, 61);
    assert_eq!(spread["b"], Standing::Spread(at(61)));
    assert_eq!(next_change(&spread, SETTLE), Some(at(63)));
    assert_eq!(look(&spread, &["b"], &all, 62)["b"], Standing::Spread(at(61)));
    assert_eq!(look(&spread, &["b"], &all, 63)["b"], Standing::Trusted);
    assert_eq!(look(&spread, &["b"], &some, 63)["b"], Standing::Announced);
}

#[test]
fn an_authority_leaves_when_the_last_certificate_of_it_has_left_every_pod() {
    let before = standings(&[("a", Standing::Trusted), ("b", Standing::Trusted)]);
    let both = ["a", "b"];
    let still = [holder(&both, &["a"]), holder(&both, &["b"])];
    assert_eq!(look(&before, &["b"], &still, 0)["a"], Standing::Trusted);
    let after = [holder(&both, &["b"]), holder(&both, &["b"])];
    let unused = look(&before, &["b"], &after, 1);
    assert_eq!(unused["a"], Standing::Unused(at(1)));
    assert_eq!(look(&unused, &["b"], &after, 2)["a"], Standing::Unused(at(1)));
    assert!(!look(&unused, &["b"], &after, 3).contains_key("a"));
    let back = look(&unused, &["a"], &after, 2);
    assert_eq!(back["a"], Standing::Trusted, "every pod knows it still");
}

#[test]
fn what_the_operator_presents_counts_as_shown() {
    let before = standings(&[("a", Standing::Trusted), ("b", Standing::Trusted)]);
    let pods = [holder(&["a", "b"], &["b"])];
    let after = stand(&before, &ids(&["b"]), &pods, &ids(&["a"]), SETTLE, at(0));
    assert_eq!(after["a"], Standing::Trusted);
}

#[test]
fn a_wish_that_is_taken_back_in_time_leaves_nothing() {
    let before = standings(&[("a", Standing::Trusted), ("b", Standing::Spread(at(0)))]);
    let after = look(&before, &["a"], &[holder(&["a", "b"], &["a"])], 1);
    assert_eq!(after, standings(&[("a", Standing::Trusted)]));
}

#[test]
fn a_clock_that_was_set_back_keeps_nobody_waiting() {
    let before = standings(&[("a", Standing::Trusted), ("b", Standing::Spread(at(1000)))]);
    let after = look(&before, &["b"], &[holder(&["a", "b"], &["a"])], 0);
    assert_eq!(after["b"], Standing::Spread(at(0)));
}

#[test]
fn what_is_offered_waits_as_long_as_there_is_something_that_pods_believe() {
    let known = standings(&[("a", Standing::Trusted), ("b", Standing::Spread(at(0)))]);
    let (a, b) = (ids(&["a"]), ids(&["b"]));
    let candidate = |signed_by| Some(Candidate { signed_by });
    let in_place = |is_valid, is_due| Some(InPlace { is_valid, is_due });
    let choice = |in_place, former| choose(in_place, candidate(&b), former, &known);
    assert_eq!(choice(in_place(true, false), candidate(&a)), Choice::Keep);
    assert_eq!(choice(in_place(true, true), candidate(&a)), Choice::Former);
    assert_eq!(choice(in_place(true, true), None), Choice::Keep);
    assert_eq!(choice(in_place(false, true), candidate(&a)), Choice::Former);
    assert_eq!(choice(in_place(false, true), None), Choice::Offered);
    assert_eq!(choice(None, candidate(&a)), Choice::Former);
    assert_eq!(choice(None, None), Choice::Offered);
    assert_eq!(choose(None, None, None, &known), Choice::Keep);
    let trusted = standings(&[("b", Standing::Trusted)]);
    let now = choose(in_place(true, false), candidate(&b), candidate(&a), &trusted);
    assert_eq!(now, Choice::Offered);
}

/// A service of two pods. Secrets are written one at a time, kubelets bring each to its pod within two steps of time, the user changes
/// their mind at any moment, and the operator may be away at any.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    minute: u8,
    wanted: u8,
    changes: u8,
    standings: Vec<(String, (u8, i64))>,
    /// What each Secret trusts and shows.
    secrets: [(u8, u8); 2],
    /// What each pod trusts and shows.
    pods: [(u8, u8); 2],
    /// How old the version is that a pod lacks, in minutes.
    behind: [u8; 2],
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn set(bits: u8) -> BTreeSet<AuthorityId> {
    let has = |n: &usize| bits & (1 << n) != 0;
    (0..NAMES.len())
        .filter(has)
        .map(|n| NAMES[n].to_owned())
        .collect()
}

fn bits(all: impl Iterator<Item = AuthorityId>) -> u8 {
    all.map(|id| 1 << NAMES.iter().position(|name| *name == id).unwrap())
        .sum()
}

impl World {
    fn standings(&self) -> Standings {
        let read = |(kind, minute): (u8, i64)| match kind {
            0 => Standing::Announced,
            1 => Standing::Spread(at(minute)),
            2 => Standing::Trusted,
            _ => Standing::Unused(at(minute)),
        };
        let all = self.standings.iter().cloned();
        all.map(|(id, standing)| (id, read(standing))).collect()
    }

    fn keep(&mut self, standings: &Standings) {
        let minute = |t: &Timestamp| (t.as_second() - at(0).as_second()) / 60;
        let write = |standing: &Standing| match standing {
            Standing::Announced => (0, 0),
            Standing::Spread(since) => (1, minute(since)),
            Standing::Trusted => (2, 0),
            Standing::Unused(since) => (3, minute(since)),
        };
        let all = standings.iter();
        self.standings = all.map(|(id, standing)| (id.clone(), write(standing))).collect();
    }

    /// The operator looks; it writes at most `most` Secrets before it is stopped.
    fn operate(&mut self, most: usize) {
        let holders: Vec<Holder> = self
            .secrets
            .iter()
            .map(|(trusts, shows)| Holder {
                exists: true,
                trusts: set(*trusts),
                shows: set(*shows),
            })
            .collect();
        let wanted = set(1 << self.wanted);
        let now = at(self.minute.into());
        let standings = stand(
            &self.standings(),
            &wanted,
            &holders,
            &BTreeSet::new(),
            SETTLE,
            now,
        );
        self.keep(&standings);
        let trusts = bits(standings.keys().cloned());
        for number in 0..most {
            let in_place = Some(InPlace {
                is_valid: true,
                is_due: false,
            });
            let offered = Some(Candidate { signed_by: &wanted });
            let shows = match choose(in_place, offered, None, &standings) {
                Choice::Offered => 1 << self.wanted,
                Choice::Keep | Choice::Former => self.secrets[number].1,
            };
            self.write(number, (trusts, shows));
        }
    }

    fn write(&mut self, number: usize, content: (u8, u8)) {
        self.secrets[number] = content;
        if self.pods[number] == content {
            self.behind[number] = 0;
        }
    }

    /// Everything that may happen next.
    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for most in 0..=self.secrets.len() {
            let mut next = self.clone();
            next.operate(most);
            all.push(next);
        }
        for (number, content) in self.secrets.iter().enumerate() {
            if self.pods[number] != *content {
                let mut next = self.clone();
                next.pods[number] = *content;
                next.behind[number] = 0;
                all.push(next);
            }
        }
        // Kubelets are never later than the time that is allowed for them.
        if self.minute < 9 && self.behind.iter().all(|minutes| *minutes < 1) {
            let mut next = self.clone();
            next.minute += 1;
            for number in 0..next.pods.len() {
                next.behind[number] += u8::from(next.pods[number] != next.secrets[number]);
            }
            all.push(next);
        }
        if self.changes > 0 {
            for wanted in (0..3).filter(|wanted| *wanted != self.wanted) {
                let mut next = self.clone();
                next.wanted = wanted;
                next.changes -= 1;
                all.push(next);
            }
        }
        all
    }
}

#[test]
fn in_every_order_of_events_each_pod_believes_what_every_other_one_shows() {
    let first = World {
        minute: 0,
        wanted: 0,
        changes: 2,
        standings: vec![("a".to_owned(), (2, 0))],
        secrets: [(1, 1); 2],
        pods: [(1, 1); 2],
        behind: [0; 2],
    };
    let mut seen = BTreeSet::from([first.clone()]);
    let mut queue = VecDeque::from([first]);
    let mut switched = 0;
    while let Some(world) = queue.pop_front() {
        for (trusts, _) in world.pods {
            for (_, shows) in world.pods {
                assert!(trusts & shows != 0, "{world:#?}");
            }
        }
        switched += usize::from(world.pods == [(1 << 1, 1 << 1); 2]);
        for next in world.next() {
            if seen.insert(next.clone()) {
                queue.push_back(next);
            }
        }
    }
    assert!(seen.len() > 10_000, "{}", seen.len());
    assert!(switched > 0, "some order leads to the new authority alone");
}
