//! Two steps in flight: the same answers, and failures, aborts and ends that hit one of the two.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kvasir_client::types::{ErrorCode, FinishReason, GenerateRequest, StopConditions};
use kvasir_service::Engine;
use support::executor::FAILING_SEED;
use support::{
    Control, DEADLINE, Fixture, Kind, Options, collect, error_of, expected, finish_of, prompt, reason_of,
    request, setup, tokens_of,
};

fn two() -> Options {
    Options {
        max_in_flight: 2,
        ..Options::default()
    }
}

async fn fixture() -> Fixture {
    Fixture::with(Kind::Local, two()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_one_step_at_a_time() {
    let mut options = two();
    // Too few blocks for all, and prompts in chunks: sequences are preempted and resumed while steps are in flight.
    options.scheduler.num_blocks = 24;
    options.scheduler.max_num_batched_tokens = 16;
    options.scheduler.max_num_seqs = 8;
    options.scheduler.max_num_active_seqs = 8;
    let fixture = Fixture::with(Kind::Local, options).await;
    fixture.control.hold();
    let first = fixture.start(request("first", &prompt(4, 9), 2)).await;
    fixture.control.wait_entered(1);
    let mut calls = Vec::new();
    for i in 0..24u32 {
        let prompt = prompt(1 + (i as usize * 7) % 40, i % 5);
        let num_tokens = 1 + (i * 5) % 30;
        let call = fixture.send(request(&format!("r{i}"), &prompt, num_tokens));
        calls.push((call.await, prompt, num_tokens as usize));
    }
    fixture.control.open();
    collect(first).await;
    for (call, prompt, num_tokens) in calls {
        let outputs = collect(call.await.unwrap().unwrap()).await;
        assert_eq!(tokens_of(&outputs, 0), expected(&prompt, 7, num_tokens));
    }
    assert_eq!(fixture.control.most_in_flight(), 2);
    assert!(fixture.load().await.num_preemptions > 0);
    fixture.assert_idle().await;
}

#[tokio::test]
async fn a_stop_token_ends_a_sequence_whose_next_step_is_in_flight() {
    let fixture = fixture().await;
    let prompt = prompt(9, 0);
    let tokens = expected(&prompt, 7, 12);
    let at = 4;
    assert!(!tokens[..at].contains(&tokens[at]));
    let stop = StopConditions {
        max_tokens: 12,
        eos_token_ids: vec![tokens[at]],
        ..StopConditions::default()
    };
    let outputs = collect(
        fixture
            .start(GenerateRequest {
                stop: Some(stop),
                ..request("a", &prompt, 12)
            })
            .await,
    )
    .await;
    assert_eq!(tokens_of(&outputs, 0), tokens[..=at]);
    assert_eq!(reason_of(&outputs, 0), FinishReason::Stop);
    fixture.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_step_spares_whom_only_the_next_one_has() {
    let mut options = two();
    options.scheduler.max_num_batched_tokens = 64;
    let fixture = Fixture::with(Kind::Local, options).await;
    fixture.control.hold();
    let first = fixture.start(request("first", &prompt(4, 9), 1)).await;
    fixture.control.wait_entered(1);
    let big = fixture.send(request("big", &prompt(64, 0), 5)).await;
    let small = fixture.send(request("small", &prompt(4, 1), 5)).await;
    fixture.control.allow(1);
    // Step 2 has the big prompt, which takes the whole budget; step 3 its next token and the small one.
    fixture.control.wait_entered(3);
    fixture.control.fail_next("out of order");
    fixture.control.open();
    let big = collect(big.await.unwrap().unwrap()).await;
    let error = error_of(&big, 0);
    assert_eq!(error.code(), ErrorCode::Internal);
    assert!(error.message.contains("out of order"), "{}", error.message);
    assert!(tokens_of(&big, 0).is_empty());
    let small = collect(small.await.unwrap().unwrap()).await;
    assert_eq!(tokens_of(&small, 0), expected(&prompt(4, 1), 7, 5));
    assert_eq!(tokens_of(&collect(first).await, 0), expected(&prompt(4, 9), 7, 1));
    fixture.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_is_not_taken_fails_after_the_one_before_it() {
    let fixture = fixture().await;
    fixture.control.hold();
    let first = fixture.start(request("first", &prompt(4, 0), 2)).await;
    fixture.control.wait_entered(2);
    let second = fixture.send(request("second", &prompt(4, 1), 5)).await;
    fixture.control.refuse_next("no room");
    fixture.control.allow(1);
    fixture.control.wait_entered(3);
    fixture.control.open();
    assert_eq!(tokens_of(&collect(first).await, 0), expected(&prompt(4, 0), 7, 2));
    let second = collect(second.await.unwrap().unwrap()).await;
    assert!(error_of(&second, 0).message.contains("no room"));
    let third = fixture.start(request("third", &prompt(4, 2), 5)).await;
    assert_eq!(tokens_of(&collect(third).await, 0), expected(&prompt(4, 2), 7, 5));
    fixture.assert_idle().await;
}

#[tokio::test]
async fn a_sequence_that_fails_alone_takes_nobody_with_it() {
    let fixture = fixture().await;
    let mut failing = request("a", &prompt(4, 0), 6);
    failing.n = 2;
    failing.sampling.get_or_insert_default().seed = FAILING_SEED - 1;
    let outputs = collect(fixture.start(failing).await).await;
    assert_eq!(
        tokens_of(&outputs, 0),
        expected(&prompt(4, 0), FAILING_SEED - 1, 6)
    );
    assert_eq!(tokens_of(&outputs, 1), expected(&prompt(4, 0), FAILING_SEED, 2));
    let error = error_of(&outputs, 1);
    assert!(
        error.message.contains("logits are not numbers"),
        "{}",
        error.message
    );
    fixture.assert_idle().await;
}

#[tokio::test]
async fn more_steps_than_the_executor_takes_are_refused_at_start() {
    let control = Arc::new(Control::default());
    let options = Options {
        max_in_flight: 3,
        ..Options::default()
    };
    let refused = Engine::start(setup(&control, &options)).unwrap_err();
    let message = refused.to_string();
    assert!(message.contains('3') && message.contains('2'), "{message}");
}

#[tokio::test]
async fn an_abort_frees_everything_when_both_steps_are_over() {
    let fixture = fixture().await;
    fixture.control.hold();
    let aborted = fixture.start(request("aborted", &prompt(4, 0), 500)).await;
    let dropped = fixture.start(request("dropped", &prompt(4, 1), 500));
    let dropped = fixture.step_until(dropped).await;
    fixture.client.abort("aborted", None);
    drop(dropped);
    fixture.control.open();
    assert_eq!(reason_of(&collect(aborted).await, 0), FinishReason::Abort);
    fixture.assert_idle().await;
}

#[tokio::test]
async fn a_drain_waits_for_what_is_in_flight() {
    let fixture = fixture().await;
    fixture.control.hold();
    let stream = fixture.start(request("a", &prompt(4, 0), 6)).await;
    assert_eq!(fixture.client.drain(Duration::ZERO).await.unwrap(), 1);
    fixture.control.open();
    assert_eq!(fixture.client.drain(DEADLINE).await.unwrap(), 0);
    assert_eq!(
        tokens_of(&collect(stream).await, 0),
        expected(&prompt(4, 0), 7, 6)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_fails_what_is_in_flight() {
    let fixture = fixture().await;
    fixture.control.hold();
    let stream = fixture.start(request("a", &prompt(4, 0), 60)).await;
    fixture.control.wait_entered(2);
    fixture.engine.stop();
    fixture.control.open();
    let error = error_of(&collect(stream).await, 0);
    assert_eq!(error.code(), ErrorCode::Unavailable);
    fixture.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_fails_what_is_in_flight() {
    let fixture = fixture().await;
    let failed = fixture.engine.failed();
    fixture.control.hold();
    let stream = fixture.start(request("a", &prompt(4, 0), 60)).await;
    fixture.control.wait_entered(2);
    fixture.control.panic_next();
    fixture.control.open();
    assert_eq!(error_of(&collect(stream).await, 0).code(), ErrorCode::Internal);
    let message = tokio::time::timeout(DEADLINE, failed).await.unwrap();
    assert!(message.contains("the test asked for a panic"), "{message}");
}

#[tokio::test]
async fn the_timeline_counts_each_prompt_token_once() {
    let mut options = two();
    options.scheduler.max_num_batched_tokens = 64;
    let fixture = Fixture::with(Kind::Local, options).await;
    let outputs = collect(fixture.start(request("a", &prompt(150, 0), 3)).await).await;
    let timeline = finish_of(&outputs, 0).timeline.unwrap();
    assert_eq!(timeline.computed_prompt_tokens, 150);
}
