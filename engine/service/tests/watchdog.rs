//! Executors that hang: what the watchdog fails, what health says, and how the engine heals.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kvasir_client::types::{ErrorCode, LoadReport, Watchdog};
use kvasir_service::dump::Dump;
use kvasir_service::{Diagnostics, StallLimits};
use support::{
    Control, DEADLINE, Fixture, Kind, Options, code, collect, error_of, expected, prompt, request, tokens_of,
};

/// Long enough for a loaded machine to make a step that isn't held.
const STALL: Duration = Duration::from_millis(700);

fn options() -> Options {
    Options {
        diagnostics: Diagnostics {
            stall: StallLimits {
                floor: STALL,
                ceiling: STALL,
                patience: STALL,
            },
            recorded_inputs: 1000,
            ..Diagnostics::default()
        },
        ..Options::default()
    }
}

fn watchdog(load: &LoadReport) -> Watchdog {
    load.watchdog.clone().expect("an engine of this version has one")
}

fn unhealthy(load: &LoadReport) -> bool {
    watchdog(load).unhealthy.is_some()
}

/// Whatever happens, the executor doesn't stay stuck for the test's end.
struct Opened(Arc<Control>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open();
    }
}

async fn fixture(kind: Kind, options: Options) -> (Fixture, Opened) {
    let fixture = Fixture::with(kind, options).await;
    let opened = Opened(Arc::clone(&fixture.control));
    fixture.control.hold();
    (fixture, opened)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_hangs_fails_its_requests_and_the_engine_heals() {
    for kind in [Kind::Local, Kind::Tcp] {
        let (fixture, _opened) = fixture(kind, options()).await;
        let stuck = fixture.start(request("stuck", &prompt(4, 0), 5)).await;
        let error = error_of(&collect(stuck).await, 0);
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(error.message.contains("no progress"), "{}", error.message);
        fixture.control.open();
        let next = fixture.start(request("next", &prompt(4, 1), 5)).await;
        assert_eq!(tokens_of(&collect(next).await, 0), expected(&prompt(4, 1), 7, 5));
        fixture.assert_idle().await;
        let load = fixture.load().await;
        assert!(!unhealthy(&load));
        assert_eq!((watchdog(&load).num_stalls, watchdog(&load).num_failed), (1, 1));
        assert_eq!((load.num_finished_seqs, load.num_failed_seqs), (2, 1));
        assert_eq!(watchdog(&load).deadline_us, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_steps_in_flight_fail() {
    let (fixture, _opened) = fixture(
        Kind::Local,
        Options {
            max_in_flight: 2,
            ..options()
        },
    )
    .await;
    let stuck = fixture.start(request("stuck", &prompt(4, 0), 50)).await;
    fixture.control.wait_entered(2);
    error_of(&collect(stuck).await, 0);
    fixture.control.open();
    let next = fixture.start(request("next", &prompt(4, 1), 5)).await;
    assert_eq!(tokens_of(&collect(next).await, 0), expected(&prompt(4, 1), 7, 5));
    fixture.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_survive_a_stall_that_ends() {
    let mut options = options();
    options.scheduler.max_num_active_seqs = 1;
    let (fixture, _opened) = fixture(Kind::Local, options).await;
    let stuck = fixture.start(request("stuck", &prompt(4, 0), 5)).await;
    fixture.control.wait_entered(1);
    let waiting = fixture.send(request("waiting", &prompt(4, 1), 5)).await;
    error_of(&collect(stuck).await, 0);
    fixture.control.open();
    let waiting = collect(waiting.await.unwrap().unwrap()).await;
    assert_eq!(tokens_of(&waiting, 0), expected(&prompt(4, 1), 7, 5));
    fixture.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_stays_away_makes_the_engine_unhealthy_until_it_comes_back() {
    let mut options = options();
    options.scheduler.max_num_active_seqs = 1;
    let (fixture, _opened) = fixture(Kind::Local, options).await;
    let running = fixture.start(request("running", &prompt(4, 0), 50)).await;
    fixture.control.wait_entered(1);
    let untaken = fixture.send(request("untaken", &prompt(4, 1), 5)).await;
    let load = fixture.load_until("an unhealthy engine", unhealthy).await;
    let reason = watchdog(&load).unhealthy.unwrap();
    assert!(reason.contains("did not help"), "{reason}");
    assert_eq!(error_of(&collect(running).await, 0).code(), ErrorCode::Internal);
    assert_eq!(code(untaken.await.unwrap()), ErrorCode::Unavailable);
    let late = fixture.client.generate(request("late", &prompt(4, 2), 5)).await;
    assert_eq!(code(late), ErrorCode::Unavailable);
    fixture.control.open();
    fixture
        .load_until("a healthy engine", |load| !unhealthy(load))
        .await;
    let next = fixture.start(request("next", &prompt(4, 3), 5)).await;
    assert_eq!(tokens_of(&collect(next).await, 0), expected(&prompt(4, 3), 7, 5));
    fixture.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_step_of_unknown_length_is_no_stall() {
    let mut options = options();
    options.diagnostics.stall = StallLimits {
        floor: Duration::from_millis(4),
        ceiling: Duration::from_hours(1),
        patience: Duration::from_hours(1),
    };
    let (fixture, _opened) = fixture(Kind::Local, options).await;
    let slow = fixture.start(request("slow", &prompt(200, 0), 1)).await;
    let load = fixture
        .load_until("a slow step", |load| load.stalled_us > 200_000)
        .await;
    assert_eq!(watchdog(&load).num_stalls, 0);
    assert_eq!(watchdog(&load).deadline_us, 3_600_000_000);
    fixture.control.open();
    assert_eq!(
        tokens_of(&collect(slow).await, 0),
        expected(&prompt(200, 0), 7, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_leaves_a_stuck_executor_behind() {
    let (fixture, _opened) = fixture(Kind::Local, options()).await;
    let stuck = fixture.start(request("stuck", &prompt(4, 0), 5)).await;
    fixture.control.wait_entered(1);
    tokio::time::timeout(DEADLINE, fixture.engine.shutdown())
        .await
        .expect("the shutdown waits for the executor");
    error_of(&collect(stuck).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_leaves_a_dump_in_memory_and_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.diagnostics.dump_dir = Some(folder.path().join("dumps"));
    let (fixture, _opened) = fixture(Kind::Tcp, options).await;
    let none = fixture.client.dump(true).await.unwrap_err();
    assert!(none.message.contains("not stalled"), "{}", none.message);
    let stuck = fixture.start(request("stuck", &prompt(6, 0), 5)).await;
    error_of(&collect(stuck).await, 0);
    let bytes = fixture.client.dump(true).await.unwrap();
    let dump = Dump::from_bytes(&bytes).unwrap();
    assert!(dump.cause.contains("no progress"), "{}", dump.cause);
    let [planned] = &dump.in_flight[..] else {
        panic!("{:?}", dump.in_flight);
    };
    assert!(planned.plan.starts_with("step 0 tokens 6"), "{}", planned.plan);
    assert!(planned.record.seqs[0].request_id.contains("stuck"));
    assert_eq!(planned.record.num_prompt_tokens, 6);
    assert_eq!(dump.live.len(), 1);
    assert_eq!(dump.stats.as_ref().unwrap().num_running, 1);
    assert_eq!(dump.replay(|_, _| ()).unwrap().num_compared, 1);
    let files: Vec<_> = std::fs::read_dir(folder.path().join("dumps"))
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect();
    assert_eq!(files, [bytes.to_vec()]);
}
