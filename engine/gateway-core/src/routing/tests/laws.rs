//! Properties of choices, revisions and retries.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Action {
    Choose {
        session: Option<u64>,
        random: u64,
        excluded: Option<usize>,
    },
    Begin(prop::sample::Index),
    Finish(prop::sample::Index, u8),
    Drain(usize, bool),
    Leave(usize),
    Join(usize),
    Report(usize, u32, u32),
    Tick,
    Wait(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let choose = (
        prop::option::of(any::<u64>()),
        any::<u64>(),
        prop::option::of(0_usize..5),
    );
    prop_oneof![
        8 => choose.prop_map(|(session, random, excluded)| Action::Choose { session, random, excluded }),
        3 => any::<prop::sample::Index>().prop_map(Action::Begin),
        5 => (any::<prop::sample::Index>(), 0_u8..9).prop_map(|(at, how)| Action::Finish(at, how)),
        1 => (0_usize..5, any::<bool>()).prop_map(|(pod, is_draining)| Action::Drain(pod, is_draining)),
        1 => (0_usize..5).prop_map(Action::Leave),
        2 => (0_usize..5).prop_map(Action::Join),
        2 => (0_usize..5, 0_u32..20, 0_u32..1001).prop_map(|(pod, running, free)| Action::Report(pod, running, free)),
        1 => Just(Action::Tick),
        2 => (0_u64..8000).prop_map(Action::Wait),
    ]
}

fn policy() -> impl Strategy<Value = RoutingPolicy> {
    prop_oneof![
        Just(RoutingPolicy::PrefixAware),
        Just(RoutingPolicy::LeastKv),
        Just(RoutingPolicy::LeastRequests),
        Just(RoutingPolicy::PowerOfTwoChoices),
        Just(RoutingPolicy::RoundRobin),
        Just(RoutingPolicy::Session),
    ]
}

fn outcome(how: u8) -> Outcome {
    match how {
        0 => Outcome::ClientLeft,
        1..=6 => Outcome::Failed(EngineFailure::ALL[usize::from(how)]),
        _ => Outcome::Completed,
    }
}

proptest! {
    #[test]
    fn no_choice_breaks_a_rule_and_counters_stay_true(
        policy in policy(),
        actions in prop::collection::vec(action(), 1..200),
    ) {
        let (mut router, engines) = router(policy, 5);
        let mut ids: Vec<Option<EngineId>> = engines.into_iter().map(Some).collect();
        let mut epochs = [1_u64; 5];
        let mut open: Vec<Ticket> = Vec::new();
        let mut now = at(0);
        let of_revision = revision("r");
        for action in actions {
            match action {
                Action::Choose { session, random, excluded } => {
                    let before: Vec<EngineView> = router.engines(now).collect();
                    let excluded: Vec<EngineId> = excluded.and_then(|pod| ids[pod]).into_iter().collect();
                    let may = |view: &EngineView| !view.is_draining && view.circuit.admits(now) && !excluded.contains(&view.id);
                    let chosen = choose_with(&mut router, now, |request| {
                        request.session = session;
                        request.random = random;
                        request.excluded = &excluded;
                    }, &of_revision);
                    match chosen {
                        Ok(choice) => {
                            let view = before.iter().find(|view| view.id == choice.engine).unwrap();
                            prop_assert!(may(view));
                            open.push(choice.ticket);
                        }
                        Err(_) => prop_assert!(!before.iter().any(may)),
                    }
                }
                Action::Begin(at) => if !open.is_empty() {
                    let place = at.index(open.len());
                    router.begun(&mut open[place], now);
                }
                Action::Finish(at, how) => if !open.is_empty() {
                    let ticket = open.swap_remove(at.index(open.len()));
                    router.finish(ticket, outcome(how), now);
                }
                Action::Drain(pod, is_draining) => if let Some(id) = ids[pod] {
                    router.set_draining(id, is_draining);
                }
                Action::Leave(pod) => if let Some(id) = ids[pod].take() {
                    router.leave(id);
                }
                Action::Join(pod) => {
                    epochs[pod] += 1;
                    ids[pod] = Some(router.join(address(pod, epochs[pod]), &of_revision, CAPACITY, now).unwrap());
                }
                Action::Report(pod, num_running, num_free_blocks) => if let Some(id) = ids[pod] {
                    router.report(id, LoadReport { num_running, num_waiting: 1, num_free_blocks }, now);
                }
                Action::Tick => router.tick(now),
                Action::Wait(millis) => now.0 += millis * 1000,
            }
            for view in router.engines(now) {
                let expected = open.iter().filter(|ticket| ticket.engine() == view.id).count();
                prop_assert_eq!(view.num_own_requests as usize, expected);
            }
        }
        let tokens_left = |router: &Router| -> u64 { router.known().map(|engine| engine.own.unbegun_tokens).sum() };
        for ticket in open.drain(..) {
            router.finish(ticket, Outcome::Completed, now);
        }
        prop_assert_eq!(tokens_left(&router), 0);
    }

    #[test]
    fn revisions_get_their_weight_exactly_in_the_long_run(
        weights in prop::collection::vec(0_u32..100, 1..5),
        num_requests in 1_u64..2000,
    ) {
        let mut revisions = Revisions::default();
        let named = |place: usize| revision(&place.to_string());
        revisions.set(weights.iter().enumerate().map(|(place, weight)| (named(place), *weight)));
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut counts = vec![0_u64; weights.len()];
        for _ in 0..num_requests {
            if let Some(chosen) = revisions.choose(None, |_| true) {
                counts[chosen.0.parse::<usize>().unwrap()] += 1;
            } else {
                prop_assert_eq!(total, 0);
            }
        }
        for (count, weight) in counts.iter().zip(&weights) {
            if total > 0 {
                // |count - n w / total| <= len - 1, without fractions.
                let difference = (count * total).abs_diff(num_requests * u64::from(*weight));
                prop_assert!(difference <= (weights.len() as u64 - 1).max(1) * total, "{counts:?} of {weights:?}");
            }
        }
    }

    #[test]
    fn retries_stay_within_reserve_and_part(
        permille in 0_u32..1000,
        reserve in 0_u32..20,
        history in prop::collection::vec(any::<bool>(), 1..500),
    ) {
        let config = RetryConfig { max_attempts: 3, permille, reserve };
        let mut budget = RetryBudget::new(config);
        let (mut requests, mut retries) = (0_u64, 0_u64);
        for is_request in history {
            if is_request {
                budget.request();
                requests += 1;
            } else if budget.retry(attempt(EngineFailure::Overloaded, 1)) == Retry::Elsewhere {
                retries += 1;
            }
            prop_assert!(retries * 1000 <= u64::from(reserve) * 1000 + requests * u64::from(permille));
        }
    }
}

#[test]
fn a_session_keeps_its_revision_and_sessions_follow_the_weights() {
    let mut revisions = Revisions::default();
    revisions.set([(revision("old"), 90), (revision("new"), 10)]);
    let place =
        |revisions: &mut Revisions, session| revisions.choose(Some(session), |_| true).cloned().unwrap();
    let mut num_new = 0;
    for session in 0..10_000 {
        let chosen = place(&mut revisions, session);
        assert_eq!(place(&mut revisions, session), chosen);
        num_new += usize::from(chosen == revision("new"));
    }
    assert!((900..1100).contains(&num_new), "{num_new}");
}

#[test]
fn a_revision_that_cannot_be_used_leaves_its_part_to_the_others() {
    let mut revisions = Revisions::default();
    revisions.set([(revision("old"), 1), (revision("new"), 1)]);
    for session in [None, Some(1), Some(2), Some(3)] {
        let chosen = revisions
            .choose(session, |candidate| *candidate == revision("new"))
            .cloned();
        assert_eq!(chosen, Some(revision("new")));
        assert_eq!(revisions.choose(session, |_| false), None);
    }
}

/// At an engine that is still in use.
fn attempt(failure: EngineFailure, attempts: u32) -> Attempt {
    Attempt {
        failure,
        has_begun: false,
        attempts,
        is_out_of_use: false,
    }
}

#[test]
fn a_request_is_retried_only_before_its_first_token_and_while_another_engine_may_do_better() {
    let mut budget = RetryBudget::new(RetryConfig::default());
    let overloaded = |attempts| attempt(EngineFailure::Overloaded, attempts);
    let begun = Attempt {
        has_begun: true,
        ..overloaded(1)
    };
    assert_eq!(budget.retry(begun), Retry::AlreadyBegun);
    let internal = attempt(EngineFailure::Internal, 1);
    assert_eq!(budget.retry(internal), Retry::NotRetryable);
    assert_eq!(budget.retry(overloaded(3)), Retry::OutOfAttempts);
    for _ in 0..10 {
        assert_eq!(budget.retry(overloaded(2)), Retry::Elsewhere);
    }
    assert_eq!(budget.retry(overloaded(1)), Retry::OutOfBudget);
    for _ in 0..5 {
        budget.request();
    }
    assert_eq!(budget.retry(overloaded(1)), Retry::Elsewhere);
}

#[test]
fn all_requests_of_an_engine_that_is_out_of_use_go_elsewhere_but_not_for_ever() {
    let mut budget = RetryBudget::new(RetryConfig::default());
    for failure in [
        EngineFailure::ConnectionLost,
        EngineFailure::FirstTokenTimeout,
        EngineFailure::ShuttingDown,
    ] {
        let lost = |attempts| Attempt {
            is_out_of_use: true,
            ..attempt(failure, attempts)
        };
        for _ in 0..1000 {
            assert_eq!(budget.retry(lost(1)), Retry::Elsewhere);
            assert_eq!(budget.retry(lost(2)), Retry::Elsewhere);
        }
        assert_eq!(budget.retry(lost(3)), Retry::OutOfAttempts);
    }
    // They cost nothing.
    let overloaded = attempt(EngineFailure::Overloaded, 1);
    assert_eq!(budget.retry(overloaded), Retry::Elsewhere);
}
