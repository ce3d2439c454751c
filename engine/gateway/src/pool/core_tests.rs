use kvasir_config::gateway::parse_gateway;
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::waiting::Waiter;

use super::*;

/// A core without engines, where requests may wait 100 seconds for one.
fn core() -> Core {
    let text = "auth: {anonymous: {serveEverybodyAs: a}}\ncacheSalt: {secretFile: salt}\ntenants: [{name: a}]\n\
                engines: {static: [{address: \"127.0.0.1:1\"}]}\nwaiting: {holdSeconds: 100}\n";
    let config = parse_gateway(text).unwrap();
    Core::new(&ModelSettings::of(&config.all_models()[0]))
}

fn seconds(seconds: u64) -> Micros {
    Micros(seconds * 1_000_000)
}

fn waiter() -> Waiter {
    Waiter {
        tenant: TenantName::new("a").unwrap(),
        priority: 0,
        weight: 1,
        cost: 1,
        queue_share_percent: 0,
        until: Micros(u64::MAX),
    }
}

fn until(place: &Place) -> Micros {
    match place {
        Place::Go => panic!("it went on without an engine"),
        Place::Wait { until, .. } => *until,
    }
}

#[test]
fn a_request_that_comes_back_to_the_queue_keeps_its_first_deadline() {
    let (mut core, mut waiter) = (core(), waiter());
    let Ok(first @ Place::Wait { id, .. }) = core.arrive(&mut waiter, None, seconds(1)) else {
        panic!("it may wait");
    };
    assert_eq!(until(&first), seconds(101));
    core.leave_room(id);
    let again = core.arrive(&mut waiter, None, seconds(90)).ok().unwrap();
    assert_eq!(until(&again), seconds(101));
}

#[test]
fn a_request_whose_time_was_over_before_it_came_back_is_sent_away() {
    let (mut core, mut waiter) = (core(), waiter());
    let Ok(Place::Wait { id, .. }) = core.arrive(&mut waiter, None, seconds(1)) else {
        panic!("it may wait");
    };
    core.leave_room(id);
    let Ok(Place::Wait { mut turn, .. }) = core.arrive(&mut waiter, None, seconds(200)) else {
        panic!("it's told through its channel");
    };
    assert!(matches!(
        turn.try_recv(),
        Err(oneshot::error::TryRecvError::Closed)
    ));
    assert_eq!(core.signal(seconds(200)).num_waiting, 0);
}

#[test]
fn who_waits_is_called_away_from_a_closed_core_and_nobody_comes_in() {
    let (mut core, mut waiter) = (core(), waiter());
    let Ok(Place::Wait { id, mut turn, .. }) = core.arrive(&mut waiter, None, seconds(1)) else {
        panic!("it may wait");
    };
    assert!(!core.is_idle(seconds(1)));
    core.close();
    assert!(matches!(
        turn.try_recv(),
        Err(oneshot::error::TryRecvError::Closed)
    ));
    core.leave_room(id);
    assert!(core.is_idle(seconds(1)));
    assert!(core.arrive(&mut waiter, None, seconds(2)).is_err());
}
