//! What every client of an engine can rely on: one suite, run in process, over TCP and over a Unix socket.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use std::time::Duration;

use futures::StreamExt;
use kvasir_client::types::{
    ErrorCode, FinishReason, GenerateRequest, LoadReport, SamplingParams, StopConditions,
};
use kvasir_client::{TextAssetFiles, assets};
use support::executor::logprobs_of;
use support::{
    DEADLINE, Fixture, Kind, Options, code, collect, error_of, expected, finish_of, next, prompt, reason_of,
    request, tokens_of,
};

macro_rules! suite {
    ($($name:ident)*) => {
        mod in_process { $( #[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $name() { super::$name(super::Kind::Local).await } )* }
        mod tcp { $( #[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $name() { super::$name(super::Kind::Tcp).await } )* }
        mod unix { $( #[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $name() { super::$name(super::Kind::Unix).await } )* }
    };
}

suite! {
    a_request_gives_the_reference_tokens
    sequences_of_a_request_draw_with_seeds_that_follow
    streams_interleave
    stop_ids_end_a_sequence_and_are_reported
    aborting_one_sequence_leaves_its_siblings
    aborting_a_request_ends_all_of_its_sequences
    aborting_unknown_things_is_harmless
    a_dropped_stream_frees_its_blocks_within_one_step
    a_dropped_call_frees_its_request
    many_streams_with_random_drops_leave_no_block_in_use
    a_slow_reader_loses_only_its_own_request
    a_full_queue_refuses_and_can_be_tried_again
    a_prompt_that_never_fits_is_refused_and_others_run
    a_draining_engine_finishes_what_it_has
    a_failed_step_ends_its_sequences_and_nothing_else
    a_panic_of_the_scheduler_thread_fails_its_requests
    stopping_fails_what_runs
    a_live_id_is_refused_and_a_finished_one_is_free
    hostile_values_are_refused_with_their_field
    a_repeated_prompt_is_read_from_the_cache
    salts_separate_the_cache
    preempted_sequences_give_the_same_tokens
    log_probabilities_come_with_their_tokens
    prompt_log_probabilities_come_once_for_every_position
    the_timeline_is_in_order
    the_load_report_counts
    a_stuck_step_shows_in_the_load_report
    large_text_assets_arrive_whole
    text_assets_of_another_digest_are_refused
    the_model_info_has_the_limits
}

async fn a_request_gives_the_reference_tokens(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let prompt = prompt(11, 0);
    let outputs = collect(fixture.start(request("a", &prompt, 9)).await).await;
    assert_eq!(tokens_of(&outputs, 0), expected(&prompt, 7, 9));
    assert_eq!(reason_of(&outputs, 0), FinishReason::Length);
    assert!(outputs.iter().all(|output| output.request_id == "a"));
    fixture.assert_idle().await;
}

async fn sequences_of_a_request_draw_with_seeds_that_follow(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let prompt = prompt(6, 0);
    let sampling = SamplingParams {
        seed: u64::MAX,
        ..request("", &[], 1).sampling.unwrap()
    };
    let request = GenerateRequest {
        n: 3,
        sampling: Some(sampling),
        ..request("a", &prompt, 5)
    };
    let outputs = collect(fixture.start(request).await).await;
    for (index, seed) in [(0, u64::MAX), (1, 0), (2, 1)] {
        assert_eq!(tokens_of(&outputs, index), expected(&prompt, seed, 5));
        assert_eq!(reason_of(&outputs, index), FinishReason::Length);
    }
}

async fn streams_interleave(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let mut first = fixture.start(request("first", &prompt(3, 1), 100_000)).await;
    let mut second = fixture
        .step_until(fixture.start(request("second", &prompt(3, 2), 100_000)))
        .await;
    // Neither can end before the other has begun.
    fixture.control.open();
    for _ in 0..3 {
        assert_eq!(next(&mut first).await.request_id, "first");
        assert_eq!(next(&mut second).await.request_id, "second");
    }
}

async fn stop_ids_end_a_sequence_and_are_reported(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let prompt = prompt(5, 0);
    let tokens = expected(&prompt, 7, 4);
    let stop = |eos: Vec<u32>, stop: Vec<u32>| StopConditions {
        max_tokens: 50,
        min_tokens: 0,
        eos_token_ids: eos,
        stop_token_ids: stop,
    };
    for (conditions, stop_token_id) in [
        (stop(vec![], vec![tokens[3], tokens[3]]), Some(tokens[3])),
        (stop(vec![tokens[3]], vec![]), None),
    ] {
        let request = GenerateRequest {
            stop: Some(conditions),
            ..request("a", &prompt, 1)
        };
        let outputs = collect(fixture.start(request).await).await;
        assert_eq!(tokens_of(&outputs, 0), tokens);
        let finish = finish_of(&outputs, 0);
        assert_eq!(
            (finish.reason(), finish.stop_token_id),
            (FinishReason::Stop, stop_token_id)
        );
    }
}

async fn aborting_one_sequence_leaves_its_siblings(kind: Kind) {
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

async fn aborting_a_request_ends_all_of_its_sequences(kind: Kind) {
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

async fn aborting_unknown_things_is_harmless(kind: Kind) {
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

async fn a_dropped_stream_frees_its_blocks_within_one_step(kind: Kind) {
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

async fn a_dropped_call_frees_its_request(kind: Kind) {
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

async fn many_streams_with_random_drops_leave_no_block_in_use(kind: Kind) {
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

async fn a_slow_reader_loses_only_its_own_request(kind: Kind) {
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

async fn a_full_queue_refuses_and_can_be_tried_again(kind: Kind) {
    let mut options = Options::default();
    options.scheduler.max_num_active_seqs = 1;
    options.scheduler.max_num_queued_reqs = 2;
    let fixture = Fixture::with(kind, options).await;
    fixture.control.hold();
    let running = fixture.start(request("running", &prompt(4, 0), 90_000)).await;
    // It leaves the queue in its first step.
    fixture.control.wait_entered(1);
    let queued = fixture
        .step_until(fixture.start(GenerateRequest {
            n: 2,
            ..request("queued", &prompt(4, 1), 3)
        }))
        .await;
    let refused = fixture
        .step_until(fixture.client.generate(request("refused", &prompt(4, 2), 3)))
        .await;
    assert_eq!(code(refused), ErrorCode::QueueFull);
    assert_eq!(fixture.load().await.rejected_max_num_queued_reqs, 1);
    drop(running);
    fixture.control.open();
    collect(queued).await;
    assert_eq!(
        collect(fixture.start(request("refused", &prompt(4, 2), 3)).await)
            .await
            .len(),
        3
    );
}

async fn a_prompt_that_never_fits_is_refused_and_others_run(kind: Kind) {
    let mut options = Options::default();
    options.scheduler.num_blocks = 11;
    let fixture = Fixture::with(kind, options).await;
    let refused = fixture.client.generate(request("big", &prompt(200, 0), 3)).await;
    let Err(error) = refused else {
        panic!("it was admitted")
    };
    assert_eq!(
        (error.code(), error.param.as_str()),
        (ErrorCode::InvalidRequest, "prompt_token_ids")
    );
    assert_eq!(
        collect(fixture.start(request("small", &prompt(8, 0), 3)).await)
            .await
            .len(),
        3
    );
}

async fn a_draining_engine_finishes_what_it_has(kind: Kind) {
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

async fn a_failed_step_ends_its_sequences_and_nothing_else(kind: Kind) {
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

async fn a_panic_of_the_scheduler_thread_fails_its_requests(kind: Kind) {
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

async fn stopping_fails_what_runs(kind: Kind) {
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

async fn a_live_id_is_refused_and_a_finished_one_is_free(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let first = fixture.start(request("a", &prompt(4, 0), 5)).await;
    let refused = fixture.client.generate(request("a", &prompt(4, 1), 5)).await;
    let Err(error) = refused else {
        panic!("it was admitted")
    };
    assert_eq!(
        (error.code(), error.param.as_str()),
        (ErrorCode::InvalidRequest, "request_id")
    );
    // Another client chooses its own ids.
    let other = fixture.engine.client();
    let theirs = fixture
        .step_until(other.generate(request("a", &prompt(4, 2), 5)))
        .await
        .unwrap();
    fixture.control.open();
    assert_eq!(tokens_of(&collect(first).await, 0), expected(&prompt(4, 0), 7, 5));
    assert_eq!(
        tokens_of(&collect(theirs).await, 0),
        expected(&prompt(4, 2), 7, 5)
    );
    for _ in 0..20 {
        let mut stream = fixture.start(request("a", &prompt(4, 3), 1)).await;
        assert!(next(&mut stream).await.finish.is_some());
        // Not read to its end, and the id is free all the same.
        let again = fixture.start(request("a", &prompt(4, 3), 1)).await;
        drop(stream);
        assert_eq!(tokens_of(&collect(again).await, 0), expected(&prompt(4, 3), 7, 1));
    }
}

async fn hostile_values_are_refused_with_their_field(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let mut refused = 0;
    for (field, request) in support::hostile::requests() {
        let Err(error) = fixture.client.generate(request.clone()).await else {
            panic!("{field} was admitted: {request:?}")
        };
        assert_eq!(
            (error.code(), error.param.as_str()),
            (ErrorCode::InvalidRequest, field),
            "{}",
            error.message
        );
        assert!(
            error.message.len() < 1000,
            "a hostile value made a message of {} bytes",
            error.message.len()
        );
        refused += 1;
    }
    assert!(refused > 50);
    assert_eq!(
        tokens_of(
            &collect(fixture.start(request("a", &prompt(4, 0), 5)).await).await,
            0
        ),
        expected(&prompt(4, 0), 7, 5)
    );
    fixture.assert_idle().await;
}

async fn a_repeated_prompt_is_read_from_the_cache(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let prompt = prompt(33, 0);
    let first = collect(fixture.start(request("a", &prompt, 4)).await).await;
    let written = fixture.control.kv_writes();
    let second = collect(fixture.start(request("a", &prompt, 4)).await).await;
    assert_eq!(
        (first[0].cached_tokens, second[0].cached_tokens),
        (Some(0), Some(32))
    );
    assert!(second[1..].iter().all(|output| output.cached_tokens.is_none()));
    // One prompt token, and the outputs but the last.
    assert_eq!(fixture.control.kv_writes() - written, 1 + 3);
    assert_eq!(tokens_of(&first, 0), tokens_of(&second, 0));
    let timeline = finish_of(&second, 0).timeline.unwrap();
    assert_eq!(timeline.computed_prompt_tokens, 1);
}

async fn salts_separate_the_cache(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let prompt = prompt(33, 0);
    for (salt, cached) in [("", 0), ("a", 0), ("b", 0), ("a", 32), ("", 32)] {
        let request = GenerateRequest {
            cache_salt: salt.to_owned(),
            ..request("r", &prompt, 2)
        };
        let outputs = collect(fixture.start(request).await).await;
        assert_eq!(outputs[0].cached_tokens, Some(cached), "salt {salt:?}");
        assert_eq!(tokens_of(&outputs, 0), expected(&prompt, 7, 2));
    }
}

async fn preempted_sequences_give_the_same_tokens(kind: Kind) {
    let mut options = Options::default();
    options.scheduler.num_blocks = 21;
    let fixture = Fixture::with(kind, options).await;
    let prompt = prompt(9, 0);
    let stream = fixture
        .start(GenerateRequest {
            n: 4,
            ..request("a", &prompt, 50)
        })
        .await;
    let outputs = collect(stream).await;
    let mut preemptions = 0;
    for index in 0..4 {
        assert_eq!(
            tokens_of(&outputs, index),
            expected(&prompt, 7 + u64::from(index), 50)
        );
        preemptions += finish_of(&outputs, index).timeline.unwrap().num_preemptions;
    }
    assert!(preemptions > 0);
    assert_eq!(u64::from(preemptions), fixture.load().await.num_preemptions);
}

async fn log_probabilities_come_with_their_tokens(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let sampling = SamplingParams {
        logprobs: Some(2),
        ..request("", &[], 1).sampling.unwrap()
    };
    let with = GenerateRequest {
        sampling: Some(sampling),
        ..request("a", &prompt(4, 0), 6)
    };
    for output in collect(fixture.start(with).await).await {
        assert_eq!(output.logprobs.len(), output.token_ids.len());
        for (got, &token) in output.logprobs.iter().zip(&output.token_ids) {
            let wanted = logprobs_of(token, 2);
            assert_eq!(
                (got.token_id, got.logprob, got.rank),
                (token, wanted.logprob, wanted.rank)
            );
            let top: Vec<_> = got.top.iter().map(|top| (top.token_id, top.logprob)).collect();
            assert_eq!(top, wanted.top);
        }
    }
    let without = collect(fixture.start(request("a", &prompt(4, 0), 6)).await).await;
    assert!(without.iter().all(|output| output.logprobs.is_empty()));
}

async fn prompt_log_probabilities_come_once_for_every_position(kind: Kind) {
    let mut options = Options::default();
    options.scheduler.max_num_batched_tokens = 7;
    options.scheduler.max_num_seqs = 7;
    options.scheduler.max_num_active_seqs = 7;
    let fixture = Fixture::with(kind, options).await;
    let prompt = prompt(24, 0);
    // The cache must not spare any of the positions.
    collect(fixture.start(request("warm", &prompt, 2)).await).await;
    let request = GenerateRequest {
        n: 2,
        prompt_logprobs: Some(1),
        ..request("a", &prompt, 3)
    };
    let outputs = collect(fixture.start(request).await).await;
    let with: Vec<_> = outputs
        .iter()
        .filter(|output| !output.prompt_logprobs.is_empty())
        .collect();
    assert_eq!(with.len(), 1);
    assert_eq!((with[0].index, with[0].cached_tokens), (0, Some(0)));
    let (first, rest) = with[0].prompt_logprobs.split_first().unwrap();
    assert!(first.top.is_empty());
    assert_eq!((first.token_id, first.rank), (prompt[0], 0));
    assert_eq!(rest.len(), prompt.len() - 1);
    for (got, &token) in rest.iter().zip(&prompt[1..]) {
        assert_eq!(
            (got.token_id, got.logprob, got.top.len()),
            (token, logprobs_of(token, 1).logprob, 1)
        );
    }
    assert_eq!(tokens_of(&outputs, 0), expected(&prompt, 7, 3));
}

async fn the_timeline_is_in_order(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let outputs = collect(fixture.start(request("a", &prompt(10, 0), 6)).await).await;
    let timeline = finish_of(&outputs, 0).timeline.unwrap();
    let (scheduled, first, last) = (
        timeline.scheduled_us.unwrap(),
        timeline.first_token_us.unwrap(),
        timeline.last_token_us.unwrap(),
    );
    assert!(scheduled <= first && first <= last, "{timeline:?}");
    assert_eq!(
        (timeline.num_preemptions, timeline.computed_prompt_tokens),
        (0, 10)
    );
}

async fn the_load_report_counts(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    collect(fixture.start(request("a", &prompt(20, 0), 5)).await).await;
    // A step's times are counted when it is over, which is after its outputs were sent.
    let timed = |load: &LoadReport| {
        let deliver = load.step_times.as_ref().and_then(|times| times.deliver.as_ref());
        deliver.and_then(|deliver| deliver.bucket.last().copied()) == Some(5)
    };
    let load = fixture.load_until("the times of all steps", timed).await;
    assert_eq!(
        (load.num_steps, load.prompt_tokens, load.generation_tokens),
        (5, 20, 5)
    );
    // One step with 21 tokens, four with one.
    assert_eq!(
        load.iteration_tokens_bucket,
        [4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]
    );
    assert_eq!(load.iteration_tokens_sum, 25);
    assert_eq!(load.stalled_us, 0);
    assert!(!load.draining);
    let times = load
        .step_times
        .expect("an engine of this version times its steps");
    for part in [
        times.schedule,
        times.launch,
        times.execute,
        times.wait,
        times.complete,
        times.deliver,
    ] {
        let part = part.unwrap();
        assert_eq!(part.bucket.last(), Some(&load.num_steps));
        assert!(part.sum_ns > 0);
    }
    assert!(load.process_cpu_us > 0);
    assert!(load.num_cpus > 0);
}

async fn a_stuck_step_shows_in_the_load_report(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let stream = fixture.start(request("a", &prompt(4, 0), 2)).await;
    fixture.control.wait_entered(1);
    fixture.load_until("a stall", |load| load.stalled_us > 1000).await;
    assert!(fixture.load().await.stalled_us > 1000);
    fixture.control.open();
    collect(stream).await;
    fixture.assert_idle().await;
    assert_eq!(fixture.load().await.stalled_us, 0);
}

async fn large_text_assets_arrive_whole(kind: Kind) {
    let large: Vec<u8> = (0..9_000_001_u32).map(|i| (i % 253) as u8).collect();
    let files = TextAssetFiles::from([
        ("chat_template.jinja".to_owned(), Vec::new()),
        ("tokenizer.json".to_owned(), large),
        ("tokenizer_config.json".to_owned(), b"{}".to_vec()),
    ]);
    let fixture = Fixture::with(
        kind,
        Options {
            assets: files.clone(),
            ..Options::default()
        },
    )
    .await;
    let digest = fixture.client.model_info().await.unwrap().text_assets_digest;
    assert_eq!(digest, assets::digest(&files));
    assert!(fixture.client.text_assets(&digest).await.unwrap() == files);
}

async fn text_assets_of_another_digest_are_refused(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    for digest in ["", "0000", &"x".repeat(10_000)] {
        let error = fixture.client.text_assets(digest).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidRequest);
        assert!(
            error.message.contains("holds text assets") && error.message.len() < 500,
            "{}",
            error.message
        );
    }
}

async fn the_model_info_has_the_limits(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let info = fixture.client.model_info().await.unwrap();
    let scheduler = &fixture.options.scheduler;
    assert_eq!(
        (info.model.as_str(), info.vocab_size),
        ("fake", support::VOCAB_SIZE)
    );
    assert_eq!(
        (info.max_model_len, info.block_size),
        (scheduler.max_model_len, scheduler.block_size)
    );
    assert_eq!(
        (info.num_blocks, info.max_num_seqs, info.max_logprobs),
        (scheduler.num_blocks - 1, scheduler.max_num_seqs, 20)
    );
    assert_eq!(&info, fixture.engine.model_info());
}
