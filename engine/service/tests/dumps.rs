//! Dumps: what is in them, and that the recording in them gives the plans that the engine executed.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use kvasir_service::Diagnostics;
use kvasir_service::dump::{Dump, DumpError, Replayed};
use support::{Fixture, Kind, Options, collect, prompt, request};

fn recording(max_in_flight: u32) -> Options {
    Options {
        max_in_flight,
        diagnostics: Diagnostics {
            recorded_inputs: 100_000,
            ..Diagnostics::default()
        },
        ..Options::default()
    }
}

/// Requests that share prompts, are chunked, preempted, aborted and failed.
async fn work(fixture: &Fixture) {
    fixture.control.hold();
    let first = fixture.start(request("first", &prompt(4, 9), 2)).await;
    fixture.control.wait_entered(1);
    let mut calls = Vec::new();
    for i in 0..20u32 {
        let prompt = prompt(1 + (i as usize * 7) % 40, i % 5);
        calls.push(
            fixture
                .send(request(&format!("r{i}"), &prompt, 1 + (i * 5) % 30))
                .await,
        );
    }
    fixture.control.open();
    for (i, call) in calls.into_iter().enumerate() {
        let stream = call.await.unwrap().unwrap();
        if i % 7 == 3 {
            drop(stream);
        } else {
            collect(stream).await;
        }
    }
    collect(first).await;
    fixture.control.fail_next("one step fails");
    collect(fixture.start(request("fails", &prompt(9, 1), 5)).await).await;
    fixture.assert_idle().await;
}

async fn dump(fixture: &Fixture) -> Dump {
    Dump::from_bytes(&fixture.client.dump(false).await.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_run_replays_to_the_plans_that_were_executed() {
    for (kind, max_in_flight) in [(Kind::Local, 1), (Kind::Local, 2), (Kind::Unix, 2)] {
        let mut options = recording(max_in_flight);
        options.scheduler.num_blocks = 24;
        options.scheduler.max_num_batched_tokens = 16;
        options.scheduler.max_num_seqs = 8;
        options.scheduler.max_num_active_seqs = 8;
        let fixture = Fixture::with(kind, options).await;
        work(&fixture).await;
        let dump = dump(&fixture).await;
        let mut texts = Vec::new();
        let replayed = dump.replay(|plan, _| texts.push(plan.to_string())).unwrap();
        assert!(replayed.differing.is_empty(), "{replayed:?}");
        assert_eq!(replayed.num_plans as u64, fixture.control.entered());
        assert_eq!(replayed.num_compared, replayed.num_plans);
        assert_eq!(texts.len(), replayed.num_plans);
        assert!(dump.stats.unwrap().num_preemptions > 0);
    }
}

#[tokio::test]
async fn a_plan_that_differs_is_named() {
    let fixture = Fixture::with(Kind::Local, recording(1)).await;
    collect(fixture.start(request("a", &prompt(4, 0), 5)).await).await;
    let mut dump = dump(&fixture).await;
    dump.plans[2].crc32 ^= 1;
    dump.plans.pop();
    let replayed = dump.replay(|_, _| ()).unwrap();
    let expected = Replayed {
        num_plans: 5,
        num_compared: 4,
        differing: vec![2],
    };
    assert_eq!(replayed, expected);
}

#[tokio::test]
async fn step_records_tell_who_computed_what() {
    let mut options = recording(1);
    options.scheduler.max_num_batched_tokens = 64;
    let fixture = Fixture::with(Kind::Local, options).await;
    collect(fixture.start(request("a", &prompt(70, 0), 3)).await).await;
    let dump = dump(&fixture).await;
    let parts: Vec<_> = dump
        .steps
        .iter()
        .map(|step| {
            let part = &step.seqs[0];
            assert_eq!((&*part.request_id, part.index, step.seqs.len()), ("a", 0, 1));
            (
                step.step,
                part.first_position,
                part.num_tokens,
                part.samples,
                (step.num_prompt_tokens, step.num_output_tokens),
            )
        })
        .collect();
    assert_eq!(
        parts,
        [
            (0, 0, 64, false, (64, 0)),
            (1, 64, 6, true, (6, 0)),
            (2, 70, 1, true, (0, 1)),
            (3, 71, 1, true, (0, 1))
        ]
    );
    assert!(
        dump.steps
            .windows(2)
            .all(|pair| pair[0].planned_us <= pair[1].planned_us)
    );
    assert_eq!(dump.steps[0].num_running, 1);
    assert!(dump.in_flight.is_empty() && dump.live.is_empty());
    assert_eq!((dump.health.as_str(), dump.model.as_str()), ("fine", "fake"));
}

#[tokio::test]
async fn an_engine_that_records_nothing_has_dumps_without_a_recording() {
    let fixture = Fixture::new(Kind::Local).await;
    collect(fixture.start(request("a", &prompt(4, 0), 2)).await).await;
    let dump = dump(&fixture).await;
    assert_eq!(dump.steps.len(), 2);
    assert!(matches!(dump.replay(|_, _| ()), Err(DumpError::NoTrace)));
    let unwritten = fixture.engine.write_dump("test").unwrap_err();
    assert!(matches!(unwritten, DumpError::NoFolder));
}

#[tokio::test]
async fn what_is_no_dump_is_refused_with_a_reason() {
    let fixture = Fixture::with(Kind::Local, recording(1)).await;
    collect(fixture.start(request("a", &prompt(4, 0), 2)).await).await;
    let dump = dump(&fixture).await;
    let bytes = dump.to_bytes();
    for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        assert!(matches!(Dump::from_bytes(&bytes[..cut]), Err(DumpError::Json(_))));
    }
    for foreign in ["{}", "[]", "null", "\u{0}", "{\"format\":3}", "GGUF"] {
        assert!(matches!(
            Dump::from_bytes(foreign.as_bytes()),
            Err(DumpError::Json(_))
        ));
    }
    let newer = Dump::from_bytes(br#"{"format":"kvasir.dump.v2"}"#).unwrap_err();
    assert!(newer.to_string().contains("kvasir.dump.v2"), "{newer}");
    let with = |trace: &str| Dump {
        trace: Some(trace.to_owned()),
        ..dump.clone()
    };
    assert!(matches!(with("!").trace(), Err(DumpError::Base64(_))));
    assert!(matches!(with("AAAA").trace(), Err(DumpError::Trace(_))));
    let whole = dump.trace.clone().unwrap();
    let cut = &whole[..whole.len() / 2 / 4 * 4];
    assert!(matches!(with(cut).trace(), Err(DumpError::Trace(_))));
}
