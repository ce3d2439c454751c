use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::room::TURNS_PER_OLDEST;
use super::*;
use crate::names::TenantName;
use crate::time::Micros;

fn at(seconds: u64) -> Micros {
    Micros(seconds * 1_000_000)
}

fn waiter(tenant: &str) -> Waiter {
    Waiter {
        tenant: TenantName::new(tenant).unwrap(),
        priority: 0,
        weight: 1,
        cost: 10,
        queue_share_percent: 100,
        until: at(1000),
    }
}

fn room(capacity: usize) -> WaitingRoom {
    WaitingRoom::new(RoomConfig {
        capacity,
        patience: Duration::from_secs(10),
    })
}

/// The tenants of the next ones, in order.
fn next_tenants(room: &mut WaitingRoom, now: Micros, count: usize) -> String {
    let next = (0..count).map_while(|_| room.next(now));
    next.map(|(_, waiter)| waiter.tenant.to_string()).collect()
}

#[test]
fn tenants_take_turns_however_long_their_lines_are() {
    let mut room = room(100);
    for _ in 0..6 {
        room.enter(waiter("a"), at(0)).unwrap();
    }
    room.enter(waiter("b"), at(1)).unwrap();
    room.enter(waiter("b"), at(1)).unwrap();
    assert_eq!(next_tenants(&mut room, at(2), 8), "ababaaaa");
}

#[test]
fn weights_divide_tokens_not_requests() {
    let mut room = room(100);
    for _ in 0..12 {
        let heavy = Waiter {
            weight: 3,
            cost: 20,
            ..waiter("a")
        };
        room.enter(heavy, at(0)).unwrap();
        room.enter(waiter("b"), at(0)).unwrap();
    }
    // 3 to 1 in tokens is 3 to 2 in requests here.
    let order = next_tenants(&mut room, at(1), 10);
    assert_eq!(order.matches('a').count(), 6, "{order}");
}

#[test]
fn the_more_urgent_class_goes_first() {
    let mut room = room(100);
    for (tenant, priority) in [("a", 5), ("b", 0), ("c", -3), ("d", 0)] {
        room.enter(
            Waiter {
                priority,
                ..waiter(tenant)
            },
            at(0),
        )
        .unwrap();
    }
    assert_eq!(next_tenants(&mut room, at(1), 4), "cbda");
}

#[test]
fn every_fourth_turn_goes_to_the_one_who_ran_out_of_patience() {
    let mut room = room(100);
    for _ in 0..2 {
        room.enter(
            Waiter {
                priority: 9,
                ..waiter("z")
            },
            at(0),
        )
        .unwrap();
    }
    for _ in 0..20 {
        room.enter(waiter("a"), at(5)).unwrap();
    }
    assert_eq!(next_tenants(&mut room, at(9), 8), "aaaaaaaa");
    assert_eq!(next_tenants(&mut room, at(10), 8), "aaazaaaz");
}

#[test]
fn a_tenant_that_comes_back_has_saved_up_nothing() {
    let mut room = room(100);
    for _ in 0..10 {
        room.enter(waiter("a"), at(0)).unwrap();
    }
    assert_eq!(next_tenants(&mut room, at(1), 6), "aaaaaa");
    for _ in 0..4 {
        room.enter(waiter("b"), at(1)).unwrap();
    }
    let order = next_tenants(&mut room, at(1), 8);
    assert_eq!(order.matches('b').count(), 4, "{order}");
    assert!(!order.starts_with("bbb"), "{order}");
}

#[test]
fn the_room_and_each_part_of_it_are_bounded() {
    let mut room = room(10);
    let half = || Waiter {
        queue_share_percent: 50,
        ..waiter("a")
    };
    for _ in 0..5 {
        room.enter(half(), at(0)).unwrap();
    }
    let full = room.enter(half(), at(0)).unwrap_err();
    assert_eq!(
        (full, Refusal::from(full).status()),
        (Full::TenantsPart { part: 5 }, 429)
    );
    for _ in 0..5 {
        room.enter(waiter("b"), at(0)).unwrap();
    }
    let full = room.enter(waiter("c"), at(0)).unwrap_err();
    assert_eq!(
        (full, Refusal::from(full).status()),
        (Full::Room { capacity: 10 }, 503)
    );
    let small = Waiter {
        queue_share_percent: 1,
        ..waiter("c")
    };
    room.next(at(0)).unwrap();
    assert!(room.enter(small, at(0)).is_ok(), "the smallest part is one");
}

#[test]
fn those_who_leave_or_run_out_of_time_do_not_go() {
    let mut room = room(10);
    let first = room.enter(waiter("a"), at(0)).unwrap();
    let second = room
        .enter(
            Waiter {
                until: at(5),
                ..waiter("b")
            },
            at(0),
        )
        .unwrap();
    let third = room
        .enter(
            Waiter {
                until: at(6),
                ..waiter("a")
            },
            at(0),
        )
        .unwrap();
    assert!(room.leave(first).is_some());
    assert!(room.leave(first).is_none());
    assert!(room.expire(at(4)).is_empty());
    let expired: Vec<WaiterId> = room.expire(at(5)).into_iter().map(|(id, _)| id).collect();
    assert_eq!(expired, [second]);
    assert_eq!(room.next(at(5)).map(|(id, _)| id), Some(third));
    assert!(room.next(at(5)).is_none());
    assert_eq!(room.signal(at(5)), Signal::default());
}

#[test]
fn the_signal_tells_how_many_how_much_and_how_long() {
    let mut room = room(10);
    room.enter(waiter("a"), at(3)).unwrap();
    room.enter(
        Waiter {
            cost: 7,
            ..waiter("b")
        },
        at(4),
    )
    .unwrap();
    let expected = Signal {
        num_waiting: 2,
        num_tokens: 17,
        longest_wait: Duration::from_secs(2),
    };
    assert_eq!(room.signal(at(5)), expected);
    let tenant = TenantName::new("a").unwrap();
    assert_eq!(room.num_waiting(&tenant), 1);
}

const HOLDING: DoorConfig = DoorConfig {
    max_wait: Duration::from_mins(1),
    hold: Duration::from_secs(30),
    retry_after: Duration::from_secs(5),
};

fn arrival(engines: Engines, others_wait: bool, config: &DoorConfig) -> Arrival {
    Door { engines, others_wait }.arrival(config, at(1))
}

#[test]
fn a_request_goes_on_only_if_there_is_room_and_nobody_to_overtake() {
    assert_eq!(arrival(Engines::Free, false, &HOLDING), Arrival::Go);
    let wait = Arrival::Wait {
        until: at(61),
        then: Refusal::WaitEnded,
    };
    assert_eq!(arrival(Engines::Busy, false, &HOLDING), wait);
    assert_eq!(arrival(Engines::Free, true, &HOLDING), wait);
}

#[test]
fn a_request_without_an_engine_is_parked_or_sent_away_at_once() {
    let parked = Arrival::Wait {
        until: at(31),
        then: Refusal::HoldEnded,
    };
    assert_eq!(arrival(Engines::MayCome, true, &HOLDING), parked);
    let without_hold = DoorConfig {
        hold: Duration::ZERO,
        ..HOLDING
    };
    let sent_away = Arrival::SendAway(Refusal::NoEngine);
    assert_eq!(arrival(Engines::MayCome, false, &without_hold), sent_away);
    assert_eq!(arrival(Engines::None, false, &HOLDING), sent_away);
    assert_eq!(
        (Refusal::NoEngine.status(), Refusal::HoldEnded.status()),
        (503, 503)
    );
}

#[test]
fn a_gateway_is_ready_when_requests_can_be_served_or_parked() {
    let is_ready = |engines, config: &DoorConfig| {
        Door {
            engines,
            others_wait: true,
        }
        .is_ready(config)
    };
    let states = [Engines::Free, Engines::Busy, Engines::MayCome, Engines::None];
    assert_eq!(
        states.map(|engines| is_ready(engines, &HOLDING)),
        [true, true, true, false]
    );
    assert_eq!(
        states.map(|engines| is_ready(engines, &DoorConfig::default())),
        [true, true, false, false]
    );
}

#[derive(Clone, Debug)]
enum Action {
    Enter {
        tenant: u8,
        priority: i32,
        weight: u32,
        cost: u64,
        wait: u64,
    },
    Next,
    Leave(prop::sample::Index),
    Expire,
    Wait(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let enter = (0_u8..4, 0_i32..3, 1_u32..4, 1_u64..50, 1_u64..60);
    prop_oneof![
        5 => enter.prop_map(|(tenant, priority, weight, cost, wait)| Action::Enter { tenant, priority, weight, cost, wait }),
        4 => Just(Action::Next),
        1 => any::<prop::sample::Index>().prop_map(Action::Leave),
        1 => Just(Action::Expire),
        2 => (0_u64..8).prop_map(Action::Wait),
    ]
}

proptest! {
    #[test]
    fn who_enters_leaves_once_and_in_a_permitted_order(actions in prop::collection::vec(action(), 1..200)) {
        let mut room = room(12);
        // Everybody who waits: class, tenant, end.
        let mut inside: BTreeMap<WaiterId, (i32, u8, Micros)> = BTreeMap::new();
        let mut now = at(0);
        for action in actions {
            match action {
                Action::Enter { tenant, priority, weight, cost, wait } => {
                    let until = Micros(now.0 + wait * 1_000_000);
                    let name = TenantName::new(&format!("t{tenant}")).unwrap();
                    let part = if tenant == 0 { 25 } else { 100 };
                    let of_tenant = inside.values().filter(|(_, other, _)| *other == tenant).count();
                    let is_full = inside.len() == 12 || (tenant == 0 && of_tenant == 3);
                    let waiter = Waiter { tenant: name, priority, weight, cost, queue_share_percent: part, until };
                    match room.enter(waiter, now) {
                        Ok(id) => {
                            prop_assert!(!is_full);
                            prop_assert!(inside.insert(id, (priority, tenant, until)).is_none());
                        }
                        Err(_) => prop_assert!(is_full),
                    }
                }
                Action::Next => {
                    let next = room.next(now);
                    prop_assert_eq!(next.is_none(), inside.is_empty());
                    if let Some((id, _)) = next {
                        let is_oldest = inside.keys().next() == Some(&id);
                        let (priority, tenant, _) = inside.remove(&id).unwrap();
                        let is_most_urgent = inside.values().all(|(other, _, _)| *other >= priority);
                        let is_first_of_line = inside.iter().all(|(other, of)| *other > id || (of.0, of.1) != (priority, tenant));
                        prop_assert!(is_first_of_line && (is_most_urgent || is_oldest));
                    }
                }
                Action::Leave(at) => if !inside.is_empty() {
                    let id = *inside.keys().nth(at.index(inside.len())).unwrap();
                    prop_assert!(room.leave(id).is_some());
                    inside.remove(&id);
                }
                Action::Expire => {
                    for (id, _) in room.expire(now) {
                        prop_assert!(inside.remove(&id).unwrap().2 <= now);
                    }
                    prop_assert!(inside.values().all(|(_, _, until)| *until > now));
                }
                Action::Wait(seconds) => now.0 += seconds * 1_000_000,
            }
            prop_assert_eq!(room.signal(now).num_waiting, inside.len());
        }
    }

    #[test]
    fn no_flood_of_more_urgent_requests_delays_anyone_beyond_the_bound(
        num_older in 0_usize..10,
        arrivals in prop::collection::vec((0_u8..3, 0_i32..2, 1_u64..100), 60),
    ) {
        let mut room = room(1000);
        for _ in 0..num_older {
            room.enter(Waiter { priority: 8, ..waiter("older") }, at(0)).unwrap();
        }
        let patient = room.enter(Waiter { priority: 9, ..waiter("patient") }, at(0)).unwrap();
        let mut num_turns = 0;
        // From its patience on, each turn brings a more urgent request.
        for (tenant, priority, cost) in arrivals {
            let urgent = Waiter { priority, cost, ..waiter(&format!("urgent{tenant}")) };
            room.enter(urgent, at(10)).unwrap();
            let (gone, _) = room.next(at(10)).unwrap();
            num_turns += 1;
            if gone == patient {
                break;
            }
        }
        prop_assert!(num_turns as u64 <= TURNS_PER_OLDEST * (num_older as u64 + 1));
    }

    #[test]
    fn tenants_that_always_wait_are_served_by_weight(
        weights in prop::collection::vec(1_u32..6, 2..5),
        costs in prop::collection::vec(1_u64..100, 200),
    ) {
        let mut room = room(10_000);
        let mut served = vec![0_u64; weights.len()];
        for (place, weight) in weights.iter().enumerate() {
            for cost in &costs {
                let of_class = Waiter { weight: *weight, cost: *cost, ..waiter(&place.to_string()) };
                room.enter(of_class, at(0)).unwrap();
            }
        }
        for _ in 0..costs.len() {
            let (_, gone) = room.next(at(1)).unwrap();
            served[gone.tenant.as_str().parse::<usize>().unwrap()] += gone.cost;
            for (a, b) in [(0, 1), (1, 0)] {
                // Ahead by at most one of its own largest requests, per weight.
                let ahead = served[a] as f64 / f64::from(weights[a]) - served[b] as f64 / f64::from(weights[b]);
                prop_assert!(ahead <= 100.0 / f64::from(weights[a]) + 1.0, "{served:?} of {weights:?}");
            }
        }
    }
}
