//! What a request gives: tokens, stops, log probabilities, its timeline.

use kvasir_client::types::{FinishReason, GenerateRequest, SamplingParams, StopConditions};

use crate::support::executor::logprobs_of;
use crate::support::{
    Fixture, Kind, Options, collect, expected, finish_of, next, prompt, reason_of, request, tokens_of,
};

pub(super) async fn a_request_gives_the_reference_tokens(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let prompt = prompt(11, 0);
    let outputs = collect(fixture.start(request("a", &prompt, 9)).await).await;
    assert_eq!(tokens_of(&outputs, 0), expected(&prompt, 7, 9));
    assert_eq!(reason_of(&outputs, 0), FinishReason::Length);
    assert!(outputs.iter().all(|output| output.request_id == "a"));
    fixture.assert_idle().await;
}

pub(super) async fn sequences_of_a_request_draw_with_seeds_that_follow(kind: Kind) {
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

pub(super) async fn streams_interleave(kind: Kind) {
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

pub(super) async fn stop_ids_end_a_sequence_and_are_reported(kind: Kind) {
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

pub(super) async fn preempted_sequences_give_the_same_tokens(kind: Kind) {
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

pub(super) async fn log_probabilities_come_with_their_tokens(kind: Kind) {
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

pub(super) async fn prompt_log_probabilities_come_once_for_every_position(kind: Kind) {
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

pub(super) async fn the_timeline_is_in_order(kind: Kind) {
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
