use super::*;

const CONFIG: CircuitConfig = CircuitConfig {
    failures_to_open: 3,
    base_open: Duration::from_secs(5),
    max_open: Duration::from_mins(1),
};

fn opened(now: Micros) -> Circuit {
    let mut circuit = Circuit::new(at(0));
    for _ in 0..3 {
        circuit.failed(&CONFIG, now);
    }
    circuit
}

#[test]
fn failures_in_a_row_open_a_circuit_and_a_success_between_them_does_not() {
    let mut circuit = Circuit::new(at(0));
    for _ in 0..5 {
        circuit.failed(&CONFIG, at(1));
        circuit.failed(&CONFIG, at(1));
        circuit.succeeded(&CONFIG, at(1));
    }
    assert!(circuit.admits(at(1)));
    let circuit = opened(at(1000));
    assert_eq!(
        circuit,
        Circuit::Open {
            until: at(6000),
            openings: 1,
            reason: OpenReason::Failures
        }
    );
    assert!(!circuit.admits(at(5999)));
    assert!(circuit.admits(at(6000)));
}

#[test]
fn one_probe_at_a_time_decides() {
    let mut circuit = opened(at(0));
    circuit.chosen();
    assert_eq!(
        circuit,
        Circuit::HalfOpen {
            openings: 1,
            is_probing: true
        }
    );
    assert!(!circuit.admits(at(6000)));
    let mut good = circuit;
    good.succeeded(&CONFIG, at(6000));
    assert_eq!(
        good,
        Circuit::Closed {
            failures: 0,
            openings: 1,
            since: at(6000)
        }
    );
    let mut bad = circuit;
    bad.failed(&CONFIG, at(6000));
    assert_eq!(
        bad,
        Circuit::Open {
            until: at(16_000),
            openings: 2,
            reason: OpenReason::Failures
        }
    );
}

#[test]
fn a_probe_whose_client_left_is_repeated() {
    let mut circuit = opened(at(0));
    circuit.chosen();
    circuit.said_nothing();
    assert!(circuit.admits(at(6000)));
    assert_eq!(
        circuit,
        Circuit::HalfOpen {
            openings: 1,
            is_probing: false
        }
    );
}

#[test]
fn openings_double_up_to_the_bound() {
    let mut circuit = opened(at(0));
    let mut lengths = Vec::new();
    for _ in 0..70 {
        circuit.chosen();
        circuit.failed(&CONFIG, at(0));
        let Circuit::Open { until, .. } = circuit else {
            panic!("{circuit:?}")
        };
        lengths.push(until.0 / 1_000_000);
    }
    assert_eq!(lengths[..5], [10, 20, 40, 60, 60]);
    assert!(lengths[5..].iter().all(|length| *length == 60));
}

#[test]
fn a_circuit_that_stays_closed_long_enough_forgets() {
    let mut circuit = opened(at(0));
    circuit.chosen();
    circuit.succeeded(&CONFIG, at(6000));
    circuit.succeeded(&CONFIG, at(10_999));
    assert!(matches!(circuit, Circuit::Closed { openings: 1, .. }));
    circuit.succeeded(&CONFIG, at(11_000));
    assert!(matches!(circuit, Circuit::Closed { openings: 0, .. }));
}

#[test]
fn answers_of_requests_from_before_do_not_close_an_open_circuit() {
    let mut circuit = opened(at(0));
    let before = circuit;
    circuit.succeeded(&CONFIG, at(1));
    circuit.failed(&CONFIG, at(1));
    circuit.said_nothing();
    assert_eq!(circuit, before);
}

#[test]
fn a_failing_engine_gets_no_requests_until_its_probe_works() {
    let (mut router, engines) = router(RoutingPolicy::RoundRobin, 2);
    for _ in 0..6 {
        let choice = choose(&mut router, at(0)).unwrap();
        let outcome = if choice.engine == engines[0] {
            Outcome::Failed(EngineFailure::Unreachable)
        } else {
            Outcome::Completed
        };
        router.finish(choice.ticket, outcome, at(0));
    }
    for _ in 0..10 {
        let choice = choose(&mut router, at(4999)).unwrap();
        assert_eq!(choice.engine, engines[1]);
    }
    let mut probe = choose(&mut router, at(5000)).unwrap();
    assert_eq!(probe.engine, engines[0]);
    assert_eq!(choose(&mut router, at(5000)).unwrap().engine, engines[1]);
    router.begun(&mut probe.ticket, at(5001));
    assert_eq!(choose(&mut router, at(5001)).unwrap().engine, engines[0]);
}

#[test]
fn an_engine_that_is_full_or_ends_is_not_blamed() {
    let (mut router, _) = router(RoutingPolicy::RoundRobin, 1);
    for failure in [EngineFailure::Overloaded, EngineFailure::ShuttingDown].repeat(5) {
        let choice = choose(&mut router, at(0)).unwrap();
        router.finish(choice.ticket, Outcome::Failed(failure), at(0));
    }
    assert!(choose(&mut router, at(0)).is_ok());
    for _ in 0..3 {
        let choice = choose(&mut router, at(0)).unwrap();
        router.finish(
            choice.ticket,
            Outcome::Failed(EngineFailure::ConnectionLost),
            at(0),
        );
    }
    assert_eq!(choose(&mut router, at(0)).unwrap_err(), NoEngine::AllEjected);
}

/// Serves `num_requests` in turn; engine `i` takes `millis[i]` for each first token.
fn serve(router: &mut Router, engines: &[EngineId], millis: &[u64], num_requests: usize) {
    for _ in 0..num_requests {
        let mut choice = choose(router, at(0)).unwrap();
        let place = engines.iter().position(|id| *id == choice.engine).unwrap();
        router.begun(&mut choice.ticket, at(millis[place]));
        router.finish(choice.ticket, Outcome::Completed, at(millis[place]));
    }
}

fn slow_ones(router: &Router) -> Vec<bool> {
    let is_slow = |view: EngineView| {
        matches!(
            view.circuit,
            Circuit::Open {
                reason: OpenReason::Slow,
                ..
            }
        )
    };
    router.engines(at(0)).map(is_slow).collect()
}

#[test]
fn an_engine_far_slower_than_its_peers_is_ejected() {
    let (mut router, engines) = router(RoutingPolicy::RoundRobin, 4);
    serve(&mut router, &engines, &[10, 11, 200, 12], 4 * 7);
    router.tick(at(100));
    assert_eq!(slow_ones(&router), [false; 4], "too few samples");
    serve(&mut router, &engines, &[10, 11, 200, 12], 4);
    router.tick(at(100));
    assert_eq!(slow_ones(&router), [false, false, true, false]);
}

#[test]
fn engines_that_are_all_slow_or_only_two_are_not_ejected() {
    for (num_engines, millis) in [(4, vec![200, 210, 190, 205]), (2, vec![10, 500])] {
        let (mut router, engines) = router(RoutingPolicy::RoundRobin, num_engines);
        serve(&mut router, &engines, &millis, num_engines * 10);
        router.tick(at(100));
        assert!(slow_ones(&router).iter().all(|is_slow| !is_slow));
    }
}

#[test]
fn at_most_half_of_the_engines_are_ejected_as_slow() {
    let (mut router, engines) = router(RoutingPolicy::RoundRobin, 7);
    serve(&mut router, &engines, &[10, 10, 10, 10, 900, 900, 900], 7 * 10);
    router.engines[0]
        .engine
        .as_mut()
        .unwrap()
        .circuit
        .open(&CONFIG, OpenReason::Failures, at(0));
    router.tick(at(100));
    assert_eq!(slow_ones(&router).iter().filter(|is_slow| **is_slow).count(), 2);
}
