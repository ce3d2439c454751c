//! Clients that abort, leave, or read too slowly.

use std::time::Duration;

use futures::StreamExt;
use kvasir_client::types::{ErrorCode, FinishReason, GenerateRequest};

use crate::support::{
    DEADLINE, Fixture, Kind, Options, collect, error_of, expected, prompt, reason_of, request, tokens_of,
};

pub(super) async fn aborting_one_sequence_leaves_its_siblings(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let prompt = prompt(6, 0);
    let stream = fixture
        .start(GenerateRequest {
            n: 3,
            ..request("a", &prompt, 40)
        })
        .await;
    fixture.client.abort("a", Some(1));
    fixture.sync().await;
    fixture.control.open();
    let outputs = collect(stream).await;
    assert_eq!(reason_of(&outputs, 1), FinishReason::Abort);
    assert!(tokens_of(&outputs, 1).len() <= 1);
    for index in [0, 2] {
        assert_eq!(
            tokens_of(&outputs, index),
            expected(&prompt, 7 + u64::from(index), 40)
        );
    }
    fixture.assert_idle().await;
}

pub(super) async fn aborting_a_request_ends_all_of_its_sequences(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let stream = fixture
        .start(GenerateRequest {
            n: 4,
            ..request("a", &prompt(6, 0), 40)
        })
        .await;
    for _ in 0..3 {
        fixture.client.abort("a", None);
    }
    fixture.sync().await;
    fixture.control.open();
    let outputs = collect(stream).await;
    for index in 0..4 {
        assert_eq!(reason_of(&outputs, index), FinishReason::Abort);
    }
    fixture.assert_idle().await;
}

pub(super) async fn aborting_unknown_things_is_harmless(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let stream = fixture.start(request("a", &prompt(4, 0), 3)).await;
    fixture.client.abort("b", None);
    fixture.client.abort("", Some(0));
    fixture.client.abort("a", Some(1));
    fixture.client.abort("a", Some(u32::MAX));
    fixture.sync().await;
    fixture.control.open();
    assert_eq!(reason_of(&collect(stream).await, 0), FinishReason::Length);
    fixture.client.abort("a", None);
    assert_eq!(
        reason_of(
            &collect(fixture.start(request("a", &prompt(4, 0), 3)).await).await,
            0
        ),
        FinishReason::Length
    );
}

pub(super) async fn a_dropped_stream_frees_its_blocks_within_one_step(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let stream = fixture
        .start(GenerateRequest {
            n: 4,
            ..request("a", &prompt(40, 0), 1000)
        })
        .await;
    fixture.control.wait_entered(1);
    drop(stream);
    fixture.sync().await;
    fixture.control.allow(1);
    fixture.assert_idle().await;
    assert_eq!(
        fixture.control.entered(),
        1,
        "a step ran for a request that nobody reads"
    );
}

pub(super) async fn a_dropped_call_frees_its_request(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let running = fixture.start(request("running", &prompt(4, 0), 2)).await;
    fixture.control.wait_entered(1);
    // The engine can't answer during the step, so this call is waiting when it is dropped.
    let call = fixture.client.generate(request("waiting", &prompt(4, 1), 1000));
    assert!(
        tokio::time::timeout(Duration::from_millis(5), call)
            .await
            .is_err()
    );
    fixture.sync().await;
    fixture.control.open();
    assert_eq!(collect(running).await.len(), 2);
    fixture.assert_idle().await;
    // Its id is free again.
    assert_eq!(
        collect(fixture.start(request("waiting", &prompt(4, 1), 2)).await)
            .await
            .len(),
        2
    );
}

pub(super) async fn many_streams_with_random_drops_leave_no_block_in_use(kind: Kind) {
    let mut options = Options::default();
    // Small enough for queueing and preemption.
    options.scheduler.num_blocks = 257;
    options.scheduler.max_num_active_seqs = 32;
    let fixture = Fixture::with(kind, options).await;
    let mut random = 42_u64;
    let mut tasks = Vec::new();
    for i in 0..200_u32 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (len, keep, n) = (
            (random >> 33) as usize % 40 + 1,
            (random >> 40) % 12,
            (random >> 50) as u32 % 3 + 1,
        );
        let prompt = prompt(len, i % 8);
        let client = fixture.client.clone();
        tasks.push(tokio::spawn(async move {
            let request = GenerateRequest {
                n,
                ..request(&format!("r{i}"), &prompt, 30)
            };
            let stream = client.generate(request).await.unwrap();
            if keep < 6 {
                // Leaves after that many outputs.
                drop(collect(Box::pin(stream.take(keep as usize))).await);
                return;
            }
            let outputs = collect(stream).await;
            for index in 0..n {
                assert_eq!(
                    tokens_of(&outputs, index),
                    expected(&prompt, 7 + u64::from(index), 30)
                );
                assert_eq!(reason_of(&outputs, index), FinishReason::Length);
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
    }
    fixture.assert_idle().await;
}

pub(super) async fn a_slow_reader_loses_only_its_own_request(kind: Kind) {
    let mut options = Options::default();
    options.limits.output_buffer = 16;
    let fixture = Fixture::with(kind, options).await;
    fixture.control.hold();
    let slow = fixture
        .start(GenerateRequest {
            n: 2,
            ..request("slow", &prompt(4, 1), 50_000)
        })
        .await;
    let quick_prompt = prompt(4, 2);
    let quick = fixture
        .step_until(fixture.start(request("quick", &quick_prompt, 60)))
        .await;
    // One step at a time, so that this reader keeps up.
    let outputs = fixture.step_until(collect(quick)).await;
    assert_eq!(tokens_of(&outputs, 0), expected(&quick_prompt, 7, 60));
    fixture.control.open();
    fixture.assert_idle().await;
    let outputs = collect(slow).await;
    for index in 0..2 {
        assert_eq!(error_of(&outputs, index).code(), ErrorCode::SlowClient);
        let tokens = tokens_of(&outputs, index);
        assert_eq!(
            tokens,
            expected(&prompt(4, 1), 7 + u64::from(index), tokens.len()),
            "what came before is whole"
        );
    }
}

/// Waiting or running: the sequences end, and nobody else's.
pub(super) async fn a_request_ends_when_its_time_is_over(kind: Kind) {
    let mut options = Options::default();
    options.scheduler.max_num_active_seqs = 1;
    let fixture = Fixture::with(kind, options).await;
    fixture.control.hold();
    let in_time = |id, timeout_ms, max_tokens| GenerateRequest {
        timeout_ms,
        ..request(id, &prompt(4, 0), max_tokens)
    };
    let running = fixture.start(in_time("running", 200, 90_000)).await;
    fixture.control.wait_entered(1);
    let waiting = fixture
        .step_until(fixture.start(in_time("waiting", 1, 90_000)))
        .await;
    let patient = fixture
        .step_until(fixture.start(in_time("patient", u64::MAX, 5)))
        .await;
    for late in [waiting, running] {
        let error = error_of(&fixture.step_until(collect(late)).await, 0);
        assert_eq!(error.code(), ErrorCode::Deadline);
    }
    fixture.control.open();
    assert_eq!(
        tokens_of(&collect(patient).await, 0),
        expected(&prompt(4, 0), 7, 5)
    );
    fixture.assert_idle().await;
}

/// Nobody else's step would tell it.
pub(super) async fn the_only_request_ends_when_its_time_is_over(kind: Kind) {
    let fixture = Fixture::with(kind, Options::default()).await;
    fixture.control.hold();
    let only = GenerateRequest {
        timeout_ms: 200,
        ..request("only", &prompt(4, 0), 90_000)
    };
    let outputs = fixture.start(only).await;
    let error = error_of(&fixture.step_until(collect(outputs)).await, 0);
    assert_eq!(error.code(), ErrorCode::Deadline);
    fixture.control.open();
    fixture.assert_idle().await;
    let next = collect(fixture.start(request("next", &prompt(4, 0), 5)).await).await;
    assert_eq!(tokens_of(&next, 0), expected(&prompt(4, 0), 7, 5));
}
