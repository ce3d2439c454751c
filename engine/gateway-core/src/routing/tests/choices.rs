use super::*;

const POLICIES: [RoutingPolicy; 6] = [
    RoutingPolicy::PrefixAware,
    RoutingPolicy::LeastKv,
    RoutingPolicy::LeastRequests,
    RoutingPolicy::PowerOfTwoChoices,
    RoutingPolicy::RoundRobin,
    RoutingPolicy::Session,
];

fn report(num_running: u32, num_free_blocks: u32) -> LoadReport {
    LoadReport {
        num_running,
        num_waiting: 0,
        num_free_blocks,
    }
}

/// How many of `num_requests` choices in one moment each engine gets.
fn burst(router: &mut Router, engines: &[EngineId], num_requests: usize) -> Vec<usize> {
    let mut counts = vec![0; engines.len()];
    for _ in 0..num_requests {
        let choice = choose(router, at(1)).unwrap();
        counts[engines.iter().position(|id| *id == choice.engine).unwrap()] += 1;
        drop(choice);
    }
    counts
}

#[test]
fn a_burst_spreads_evenly_before_any_report() {
    for policy in [
        RoutingPolicy::PrefixAware,
        RoutingPolicy::LeastRequests,
        RoutingPolicy::LeastKv,
        RoutingPolicy::RoundRobin,
    ] {
        let (mut router, engines) = router(policy, 4);
        assert_eq!(burst(&mut router, &engines, 40), [10; 4], "{policy:?}");
    }
}

#[test]
fn a_burst_between_two_reports_spreads_too() {
    let (mut router, engines) = router(RoutingPolicy::LeastRequests, 3);
    for id in &engines {
        router.report(*id, report(5, 500), at(1));
    }
    assert_eq!(burst(&mut router, &engines, 30), [10; 3]);
}

#[test]
fn an_engine_that_others_have_loaded_gets_less() {
    let (mut router, engines) = router(RoutingPolicy::LeastRequests, 2);
    router.report(engines[0], report(10, 500), at(1));
    assert_eq!(burst(&mut router, &engines, 14), [2, 12]);
}

#[test]
fn an_old_report_no_longer_counts() {
    let (mut router, engines) = router(RoutingPolicy::LeastRequests, 2);
    router.report(engines[0], report(10, 500), at(0));
    assert_eq!(choose(&mut router, at(5000)).unwrap().engine, engines[1]);
    let (mut router, engines) = super::router(RoutingPolicy::LeastRequests, 2);
    router.report(engines[0], report(10, 500), at(0));
    assert_eq!(choose(&mut router, at(5001)).unwrap().engine, engines[0]);
}

#[test]
fn least_kv_takes_the_emptiest_engine_by_part_not_by_blocks() {
    let (mut router, engines) = router(RoutingPolicy::LeastKv, 1);
    let large = Capacity {
        num_blocks: 10_000,
        block_size: 16,
    };
    let second = router.join(address(9, 1), &revision("r"), large, at(0)).unwrap();
    router.report(engines[0], report(0, 500), at(1));
    router.report(second, report(0, 8000), at(1));
    assert_eq!(choose(&mut router, at(1)).unwrap().engine, second);
}

#[test]
fn a_cached_prefix_attracts_until_the_queue_costs_more() {
    let (mut router, engines) = router(RoutingPolicy::PrefixAware, 2);
    let prompt = chain(1, 10);
    let batch = KvBatch {
        stored: &prompt,
        ..KvBatch::default()
    };
    assert_eq!(router.apply(&address(1, 1), &batch), Followed::Applied);
    let of_revision = revision("r");
    let mut ask = || {
        let choice = choose_with(
            &mut router,
            at(1),
            |request| request.hashes = &prompt,
            &of_revision,
        )
        .unwrap();
        (choice.engine, choice.overlap_blocks)
    };
    // 160 tokens cached stand against 64 for each request that runs: the first goes there, and the third sees more work than it saves.
    assert_eq!(ask(), (engines[1], 10));
    assert_eq!(ask(), (engines[1], 10));
    assert_eq!(ask(), (engines[1], 10));
    assert_eq!(ask(), (engines[0], 0));
}

#[test]
fn an_engine_whose_kv_is_full_is_avoided() {
    let (mut router, engines) = router(RoutingPolicy::PrefixAware, 2);
    router.report(engines[0], report(0, 20), at(1));
    router.report(engines[1], report(1, 900), at(1));
    assert_eq!(choose(&mut router, at(1)).unwrap().engine, engines[1]);
}

#[test]
fn two_choices_take_the_one_with_fewer_requests() {
    let (mut router, engines) = router(RoutingPolicy::PowerOfTwoChoices, 2);
    router.report(engines[0], report(3, 500), at(1));
    for random in [0, 1 << 31, u64::MAX, 0x1234_5678_9abc_def0] {
        let of_revision = revision("r");
        let choice = choose_with(
            &mut router,
            at(1),
            |request| request.random = random,
            &of_revision,
        )
        .unwrap();
        assert_eq!(choice.engine, engines[1]);
        router.finish(choice.ticket, Outcome::Completed, at(1));
    }
}

#[test]
fn two_choices_draw_every_engine_about_equally_often() {
    let (mut router, engines) = router(RoutingPolicy::PowerOfTwoChoices, 5);
    let of_revision = revision("r");
    let mut counts = [0_u32; 5];
    for i in 0..5000_u64 {
        let random = address::mix(i);
        let choice = choose_with(
            &mut router,
            at(1),
            |request| request.random = random,
            &of_revision,
        )
        .unwrap();
        counts[engines.iter().position(|id| *id == choice.engine).unwrap()] += 1;
        router.finish(choice.ticket, Outcome::Completed, at(1));
    }
    assert!(
        counts.iter().all(|count| (850..1150).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn round_robin_goes_on_where_it_was_when_engines_come_and_go() {
    let (mut router, engines) = router(RoutingPolicy::RoundRobin, 3);
    let next = |router: &mut Router| choose(router, at(1)).unwrap().engine;
    assert_eq!([next(&mut router), next(&mut router)], [engines[0], engines[1]]);
    router.leave(engines[2]);
    assert_eq!(next(&mut router), engines[0]);
    router.leave(engines[0]);
    assert_eq!([next(&mut router), next(&mut router)], [engines[1], engines[1]]);
}

#[test]
fn only_the_sessions_of_an_engine_that_left_move() {
    let (mut router, engines) = router(RoutingPolicy::Session, 5);
    let of_revision = revision("r");
    let places = |router: &mut Router| -> Vec<EngineId> {
        let of = |session| {
            let choice = choose_with(
                router,
                at(1),
                |request| request.session = Some(session),
                &of_revision,
            )
            .unwrap();
            let engine = choice.engine;
            router.finish(choice.ticket, Outcome::Completed, at(1));
            engine
        };
        (0..500).map(of).collect()
    };
    let before = places(&mut router);
    for id in &engines {
        let share = before.iter().filter(|engine| *engine == id).count();
        assert!((60..140).contains(&share), "{share} of 500");
    }
    router.leave(engines[2]);
    let after = places(&mut router);
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after || *before == engines[2]);
    }
}

#[test]
fn a_session_stays_with_its_place_when_the_pod_starts_again() {
    let (mut first, _) = router(RoutingPolicy::Session, 4);
    let of_revision = revision("r");
    let place = |router: &mut Router| {
        let choice = choose_with(router, at(1), |request| request.session = Some(77), &of_revision).unwrap();
        choice.address
    };
    let before = place(&mut first);
    let again = EngineAddress {
        epoch: 2,
        ..before.clone()
    };
    first.join(again.clone(), &of_revision, CAPACITY, at(2)).unwrap();
    assert_eq!(place(&mut first), again);
}

#[test]
fn each_policy_answers_why_there_is_no_engine() {
    for policy in POLICIES {
        let (mut none, _) = router(policy, 0);
        assert_eq!(
            choose(&mut none, at(1)).unwrap_err(),
            NoEngine::NoneKnown,
            "{policy:?}"
        );
        let (mut draining, engines) = router(policy, 2);
        draining.set_draining(engines[0], true);
        draining.set_draining(engines[1], true);
        assert_eq!(
            choose(&mut draining, at(1)).unwrap_err(),
            NoEngine::AllDraining,
            "{policy:?}"
        );
        draining.set_draining(engines[0], false);
        let of_revision = revision("r");
        let excluded = [engines[0]];
        let tried = choose_with(
            &mut draining,
            at(1),
            |request| request.excluded = &excluded,
            &of_revision,
        );
        assert_eq!(tried.unwrap_err(), NoEngine::AllTried, "{policy:?}");
        assert_eq!(
            choose(&mut draining, at(1)).unwrap().engine,
            engines[0],
            "{policy:?}"
        );
    }
}

#[test]
fn requests_go_only_to_engines_of_their_revision() {
    for policy in POLICIES {
        let (mut router, _) = router(policy, 2);
        let canary = router
            .join(address(7, 1), &revision("canary"), CAPACITY, at(0))
            .unwrap();
        let of_canary = revision("canary");
        for random in 0..20 {
            let random = address::mix(random);
            let choice =
                choose_with(&mut router, at(1), |request| request.random = random, &of_canary).unwrap();
            assert_eq!(choice.engine, canary, "{policy:?}");
        }
        assert_ne!(choose(&mut router, at(1)).unwrap().engine, canary);
        assert!(router.is_usable(&of_canary, at(1)));
        router.leave(canary);
        assert!(!router.is_usable(&of_canary, at(1)));
    }
}

#[test]
fn a_number_of_a_revision_is_used_again_without_mixing_them_up() {
    let (mut router, engines) = router(RoutingPolicy::RoundRobin, 1);
    router.leave(engines[0]);
    router
        .join(address(1, 1), &revision("new"), CAPACITY, at(0))
        .unwrap();
    assert_eq!(choose(&mut router, at(1)).unwrap_err(), NoEngine::NoneKnown);
    let new = revision("new");
    assert!(choose_with(&mut router, at(1), |_| {}, &new).is_ok());
}

#[test]
fn each_sequence_of_a_request_counts() {
    let (mut router, engines) = router(RoutingPolicy::LeastRequests, 2);
    let wide = choose_with(
        &mut router,
        at(1),
        |request| request.num_sequences = 5,
        &revision("r"),
    )
    .unwrap();
    let loads = |router: &Router| -> Vec<(u32, u32)> {
        router
            .engines(at(1))
            .map(|view| (view.num_own_requests, view.num_sequences))
            .collect()
    };
    assert_eq!(loads(&router), [(1, 5), (0, 0)]);
    // The report doesn't have it yet.
    router.report(engines[0], LoadReport::default(), at(1));
    assert_eq!(loads(&router), [(1, 5), (0, 0)]);
    router.finish(wide.ticket, Outcome::Completed, at(1));
    assert_eq!(loads(&router), [(0, 0), (0, 0)]);
}

#[test]
fn a_finished_request_no_longer_counts() {
    let (mut router, engines) = router(RoutingPolicy::LeastRequests, 2);
    let first = choose(&mut router, at(1)).unwrap();
    let mut second = choose(&mut router, at(1)).unwrap();
    router.begun(&mut second.ticket, at(2));
    router.finish(first.ticket, Outcome::ClientLeft, at(3));
    let views: Vec<(u32, u32)> = router
        .engines(at(3))
        .map(|view| (view.num_own_requests, view.num_sequences))
        .collect();
    assert_eq!(views, [(0, 0), (1, 1)]);
    router.finish(second.ticket, Outcome::Completed, at(4));
    assert!(router.engines(at(4)).all(|view| view.num_own_requests == 0));
    assert_eq!(engines.len(), 2);
}

#[test]
fn a_ticket_of_an_engine_that_left_changes_nothing() {
    let (mut router, engines) = router(RoutingPolicy::LeastRequests, 1);
    let mut old = choose(&mut router, at(1)).unwrap();
    router.leave(engines[0]);
    let new = router
        .join(address(5, 1), &revision("r"), CAPACITY, at(2))
        .unwrap();
    let _running = choose(&mut router, at(2)).unwrap();
    router.begun(&mut old.ticket, at(3));
    router.finish(old.ticket, Outcome::Failed(EngineFailure::ConnectionLost), at(3));
    let view = router.engines(at(3)).next().unwrap();
    assert_eq!((view.id, view.num_own_requests), (new, 1));
}

#[test]
fn an_engine_without_room_for_anything_cannot_join() {
    let (mut router, _) = router(RoutingPolicy::LeastKv, 0);
    for (num_blocks, block_size) in [(0, 16), (16, 0)] {
        let capacity = Capacity {
            num_blocks,
            block_size,
        };
        let refused = router.join(address(0, 1), &revision("r"), capacity, at(0));
        assert!(matches!(refused, Err(JoinError::NoCapacity { .. })));
    }
}
