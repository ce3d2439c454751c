//! Starting an engine, and what its setup must be.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use std::sync::Arc;

use kvasir_client::types::ModelInfo;
use kvasir_engine_core::SchedulerConfig;
use kvasir_service::{Engine, EngineSetup, ServiceError};
use support::executor::FAILING_SEED;
use support::{Control, Fixture, Kind, Options, collect, expected, prompt, request, setup, tokens_of};

fn start(change: impl FnOnce(&mut EngineSetup)) -> Result<Engine, ServiceError> {
    let mut setup = setup(&Arc::new(Control::default()), &Options::default());
    change(&mut setup);
    Engine::start(setup)
}

#[test]
fn limits_that_cant_work_are_refused() {
    let refused = start(|setup| {
        setup.scheduler = SchedulerConfig {
            block_size: 0,
            ..setup.scheduler.clone()
        }
    });
    assert!(matches!(refused, Err(ServiceError::Config(_))), "{refused:?}");
}

#[test]
fn a_model_without_vocabulary_is_refused() {
    for vocab_size in [0, u32::MAX] {
        let refused = start(|setup| setup.model.vocab_size = vocab_size);
        assert!(
            matches!(refused, Err(ServiceError::VocabSize(found)) if found == vocab_size),
            "{refused:?}"
        );
    }
}

#[test]
fn assets_that_arent_the_announced_ones_are_refused() {
    let refused = start(|setup| {
        setup.model = ModelInfo {
            text_assets_digest: "0".repeat(64),
            ..setup.model.clone()
        }
    });
    assert!(
        matches!(refused, Err(ServiceError::AssetsDigest { .. })),
        "{refused:?}"
    );
}

#[test]
fn an_executor_that_cant_warm_up_is_reported() {
    let control = Arc::new(Control::default());
    control.fail_next("no memory");
    let refused = Engine::start(setup(&control, &Options::default()));
    assert!(
        matches!(&refused, Err(error @ ServiceError::Warmup(_)) if error.to_string().contains("no memory")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_dropped_engine_ends_and_its_clients_are_told() {
    let engine = start(|_| ()).unwrap();
    let client = engine.client();
    engine.shutdown().await;
    engine.shutdown().await;
    drop(engine);
    let refused = client.generate(request("a", &prompt(4, 0), 1)).await;
    assert_eq!(
        support::code(refused),
        kvasir_client::types::ErrorCode::Unavailable
    );
}

#[tokio::test]
async fn a_client_at_its_limit_is_refused_and_another_is_not() {
    let mut options = Options::default();
    options.limits.max_live_requests = 1;
    let fixture = Fixture::with(Kind::Local, options).await;
    fixture.control.hold();
    let first = fixture.start(request("a", &prompt(4, 0), 2)).await;
    let refused = fixture.client.generate(request("b", &prompt(4, 0), 2)).await;
    assert_eq!(support::code(refused), kvasir_client::types::ErrorCode::QueueFull);
    fixture.control.open();
    let other = fixture
        .engine
        .client()
        .generate(request("b", &prompt(4, 0), 2))
        .await
        .unwrap();
    assert_eq!(tokens_of(&collect(other).await, 0), expected(&prompt(4, 0), 7, 2));
    collect(first).await;
}

#[tokio::test]
async fn requests_that_the_thread_cant_take_are_refused() {
    let mut options = Options::default();
    options.limits.max_untaken_requests = 2;
    let fixture = Fixture::with(Kind::Local, options).await;
    fixture.control.hold();
    let running = fixture.start(request("running", &prompt(4, 0), 2)).await;
    fixture.control.wait_entered(1);
    // The thread is in a step, so these two stay in the mailbox.
    let mut waiting: Vec<_> = ["a", "b"]
        .map(|id| Box::pin(fixture.client.generate(request(id, &prompt(4, 0), 2))))
        .into_iter()
        .collect();
    for call in &mut waiting {
        assert!(futures::poll!(call).is_pending());
    }
    let refused = fixture.client.generate(request("c", &prompt(4, 0), 2)).await;
    assert_eq!(support::code(refused), kvasir_client::types::ErrorCode::QueueFull);
    fixture.control.open();
    for call in waiting {
        collect(call.await.unwrap()).await;
    }
    collect(running).await;
    fixture.assert_idle().await;
}

#[tokio::test]
async fn a_sequence_that_fails_alone_ends_with_the_reason_and_the_others_go_on() {
    let fixture = Fixture::new(Kind::Local).await;
    let mut failing = request("a", &prompt(4, 0), 6);
    failing.n = 2;
    failing.sampling.get_or_insert_default().seed = FAILING_SEED - 1;
    let outputs = collect(fixture.start(failing).await).await;
    assert_eq!(
        tokens_of(&outputs, 0),
        expected(&prompt(4, 0), FAILING_SEED - 1, 6)
    );
    assert_eq!(tokens_of(&outputs, 1), expected(&prompt(4, 0), FAILING_SEED, 2));
    let error = support::error_of(&outputs, 1);
    assert_eq!(error.code(), kvasir_client::types::ErrorCode::Internal);
    assert!(
        error.message.contains("its logits are not numbers"),
        "{}",
        error.message
    );
    fixture.assert_idle().await;
}
