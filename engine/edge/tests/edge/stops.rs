//! Stop strings and stop tokens.

use kvasir_client::types::{FinishReason, SequenceOutput};
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn a_stop_string_across_token_borders_is_cut_and_aborts_the_sequence() {
    for step in 1..6 {
        let engine = FakeEngine::new(Script::Say("one\n\nHuman: two", step));
        let router = edge(&engine).await;
        let body = completion(json!({"stop": ["\n\nHuman"], "max_tokens": 100}));
        let answer = post(&router, "/v1/completions", &body).await.json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "one", "step {step}");
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["stop_reason"], "\n\nHuman");
        // The token that completes the stop is the last one that counts.
        assert_eq!(answer["usage"]["completion_tokens"], "one\n\nHuman".len());
        let id = engine.request().request_id;
        assert_eq!(
            engine.events()[1..],
            [Event::Abort(id.clone(), Some(0)), Event::Dropped(id)],
            "step {step}"
        );
    }
}

#[tokio::test]
async fn a_stop_string_ends_only_its_own_sequence() {
    let engine = FakeEngine::new(Script::Say("stop at {i} or go on", 1));
    let router = edge(&engine).await;
    let body = completion(json!({"stop": "at 1", "n": 2, "max_tokens": 100}));
    let answer = post(&router, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "stop at 0 or go on");
    assert_eq!(answer["choices"][1]["text"], "stop ");
    assert!(
        engine
            .events()
            .contains(&Event::Abort(engine.request().request_id, Some(1)))
    );
}

#[tokio::test]
async fn the_stop_string_stays_if_the_request_says_so() {
    let router = edge(&FakeEngine::new(Script::Say("one. two.", 4))).await;
    let body = completion(json!({"stop": ["."], "include_stop_str_in_output": true}));
    let answer = post(&router, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "one.");
}

#[tokio::test]
async fn text_that_only_begins_like_a_stop_string_is_not_lost() {
    let router = edge(&FakeEngine::new(Script::Say("go ST", 1))).await;
    let body = completion(json!({"stop": ["STOP"]}));
    let answer = post(&router, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "go ST");
    assert_eq!(answer["choices"][0]["stop_reason"], json!(null));
}

#[tokio::test]
async fn stop_strings_count_only_behind_min_tokens() {
    let router = edge(&FakeEngine::new(Script::Say("a.b.c.", 1))).await;
    let body = completion(json!({"stop": ["."], "min_tokens": 2}));
    let answer = post(&router, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "a.b");
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}

#[tokio::test]
async fn a_stop_token_is_counted_and_named_but_not_shown() {
    let mut ended = finish(FinishReason::Stop);
    ended.stop_token_id = Some(33);
    let output = SequenceOutput {
        token_ids: vec![104, 105, 33],
        finish: Some(ended),
        ..SequenceOutput::default()
    };
    let router = edge(&FakeEngine::new(Script::Outputs(vec![output]))).await;
    let body = completion(json!({"stop_token_ids": [33]}));
    let answer = post(&router, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "hi");
    assert_eq!(answer["choices"][0]["stop_reason"], 33);
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    let body = completion(json!({"stop_token_ids": [33], "include_stop_str_in_output": true}));
    let answer = post(&router, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "hi!");
}

#[tokio::test]
async fn special_tokens_are_shown_only_if_asked_for() {
    let output = |ids: &[u32]| SequenceOutput {
        token_ids: ids.to_vec(),
        finish: Some(finish(FinishReason::Length)),
        ..SequenceOutput::default()
    };
    let router = edge(&FakeEngine::new(Script::Outputs(vec![output(&[
        104, IM_START, 105,
    ])])))
    .await;
    let answer = post(&router, "/v1/completions", &completion(json!({})))
        .await
        .json();
    assert_eq!(answer["choices"][0]["text"], "hi");
    let body = completion(json!({"skip_special_tokens": false}));
    let answer = post(&router, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "h<|im_start|>i");
}

#[tokio::test]
async fn bytes_of_the_prompt_never_show_up_in_the_answer() {
    // The prompt ends within a character of four bytes (vLLM issue 48853).
    let output = SequenceOutput {
        token_ids: vec![0x8c, 0xb6, 33],
        finish: Some(finish(FinishReason::Length)),
        ..SequenceOutput::default()
    };
    let router = edge(&FakeEngine::new(Script::Outputs(vec![output]))).await;
    let body = json!({"prompt": [72, 105, 32, 0xf0, 0x9f]});
    let answer = post(&router, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "🌶!");
}

#[tokio::test]
async fn outputs_of_unknown_sequences_and_after_the_end_are_ignored() {
    let output = |index: u32, ended: bool| SequenceOutput {
        index,
        token_ids: vec![104],
        finish: ended.then(|| finish(FinishReason::Length)),
        ..SequenceOutput::default()
    };
    let outputs = vec![
        output(7, true),
        output(0, true),
        output(0, false),
        output(1, true),
    ];
    let router = edge(&FakeEngine::new(Script::Outputs(outputs))).await;
    let answer = post(&router, "/v1/completions", &completion(json!({"n": 2})))
        .await
        .json();
    assert_eq!(answer["choices"][0]["text"], "h");
    assert_eq!(answer["choices"][1]["text"], "h");
}

#[tokio::test]
async fn undefined_log_probabilities_are_valid_json() {
    let token = |logprob: f32| kvasir_client::types::TokenLogprobs {
        token_id: 104,
        logprob,
        rank: 1,
        top: vec![kvasir_client::types::TopLogprob {
            token_id: 105,
            logprob: f32::NEG_INFINITY,
        }],
    };
    let output = SequenceOutput {
        token_ids: vec![104, 104],
        logprobs: vec![token(f32::NAN), token(f32::INFINITY)],
        finish: Some(finish(FinishReason::Length)),
        ..SequenceOutput::default()
    };
    let router = edge(&FakeEngine::new(Script::Outputs(vec![output]))).await;
    let answer = post(&router, "/v1/completions", &completion(json!({"logprobs": 1})))
        .await
        .json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["token_logprobs"], json!([-9999.0, 0.0]));
    assert_eq!(logprobs["top_logprobs"][0], json!({"i": -9999.0, "h": -9999.0}));
}
