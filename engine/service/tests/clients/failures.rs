//! Steps that fail, and engines that end.

use std::time::Duration;

use kvasir_client::types::{ErrorCode, GenerateRequest};

use crate::support::{
    DEADLINE, Fixture, Kind, Options, code, collect, error_of, expected, prompt, request, tokens_of,
};

pub(super) async fn a_draining_engine_finishes_what_it_has(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let running = fixture.start(request("running", &prompt(4, 0), 5)).await;
    assert_eq!(fixture.client.drain(Duration::ZERO).await.unwrap(), 1);
    assert!(fixture.load().await.draining);
    assert_eq!(
        code(fixture.client.generate(request("late", &prompt(4, 0), 5)).await),
        ErrorCode::Draining
    );
    fixture.control.open();
    assert_eq!(fixture.client.drain(DEADLINE).await.unwrap(), 0);
    assert_eq!(
        tokens_of(&collect(running).await, 0),
        expected(&prompt(4, 0), 7, 5)
    );
}

pub(super) async fn a_failed_step_ends_its_sequences_and_nothing_else(kind: Kind) {
    let mut options = Options::default();
    options.scheduler.max_num_active_seqs = 1;
    let fixture = Fixture::with(kind, options).await;
    fixture.control.hold();
    let failing = fixture.start(request("failing", &prompt(4, 0), 90_000)).await;
    fixture.control.wait_entered(1);
    let waiting = fixture
        .step_until(fixture.start(request("waiting", &prompt(4, 1), 5)))
        .await;
    fixture.control.fail_next("the device fell off the bus");
    fixture.control.open();
    let error = error_of(&collect(failing).await, 0);
    assert_eq!(error.code(), ErrorCode::Internal);
    assert!(error.message.contains("fell off the bus"), "{}", error.message);
    assert_eq!(
        tokens_of(&collect(waiting).await, 0),
        expected(&prompt(4, 1), 7, 5)
    );
    fixture.assert_idle().await;
}

pub(super) async fn a_panic_of_the_scheduler_thread_fails_its_requests(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let failed = fixture.engine.failed();
    fixture.control.hold();
    let stream = fixture
        .start(GenerateRequest {
            n: 2,
            ..request("a", &prompt(4, 0), 90_000)
        })
        .await;
    fixture.control.panic_next();
    fixture.control.open();
    let outputs = collect(stream).await;
    for index in 0..2 {
        assert_eq!(error_of(&outputs, index).code(), ErrorCode::Internal);
    }
    let message = tokio::time::timeout(DEADLINE, failed).await.unwrap();
    assert!(message.contains("asked for a panic"), "{message}");
    assert_eq!(
        code(fixture.client.generate(request("b", &prompt(4, 0), 1)).await),
        ErrorCode::Unavailable
    );
}

pub(super) async fn stopping_fails_what_runs(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let stream = fixture.start(request("a", &prompt(4, 0), 90_000)).await;
    fixture.engine.stop();
    fixture.control.open();
    fixture.engine.shutdown().await;
    assert_eq!(error_of(&collect(stream).await, 0).code(), ErrorCode::Unavailable);
    assert_eq!(
        code(fixture.client.generate(request("b", &prompt(4, 0), 1)).await),
        ErrorCode::Unavailable
    );
}
