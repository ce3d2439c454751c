//! Streamed answers: the exact frames, and that they say what the whole answer says.

use kvasir_client::types::{ErrorCode, Finish, FinishReason, SequenceOutput};
use kvasir_edge::EdgeConfig;
use serde_json::{Value, json};

use crate::support::*;

fn fingerprint() -> String {
    format!("kvasir-{}-01234567", env!("CARGO_PKG_VERSION"))
}

fn role(index: u32) -> Value {
    let delta = json!({"role": "assistant", "content": ""});
    json!({"choices": [{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]})
}

fn text(index: u32, text: &str) -> Value {
    let delta = json!({"content": text});
    json!({"choices": [{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]})
}

fn end(index: u32, text: &str, reason: &str, stop_reason: Value) -> Value {
    json!({"choices": [{
        "index": index, "delta": {"content": text}, "logprobs": null, "finish_reason": reason,
        "stop_reason": stop_reason,
    }]})
}

fn with(mut event: Value, key: &str, value: Value) -> Value {
    event.as_object_mut().unwrap().insert(key.to_owned(), value);
    event
}

#[tokio::test]
async fn chat_stream_is_role_then_text_then_finish_then_done() {
    let router = edge(&FakeEngine::new(Script::Say("hello", 2))).await;
    let answer = post(&router, "/v1/chat/completions", &chat(json!({"stream": true}))).await;
    assert_eq!(answer.headers["cache-control"], "no-cache");
    let last = with(
        end(0, "o", "stop", json!(null)),
        "system_fingerprint",
        json!(fingerprint()),
    );
    assert_eq!(
        answer.events(),
        [role(0), text(0, "he"), text(0, "ll"), last, json!("[DONE]")]
    );
}

#[tokio::test]
async fn every_chunk_repeats_id_object_created_and_model() {
    let router = edge(&FakeEngine::new(Script::Say("hello", 2))).await;
    let answer = post(&router, "/v1/chat/completions", &chat(json!({"stream": true}))).await;
    let heads: std::collections::BTreeSet<String> = answer
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
        .map(|line| line.split("\"choices\"").next().unwrap().to_owned())
        .collect();
    assert_eq!(heads.len(), 1, "{heads:?}");
    let head = heads.first().unwrap();
    assert!(head.starts_with("\"id\":\"chatcmpl-"), "{head}");
    assert!(
        head.contains("\"object\":\"chat.completion.chunk\",\"created\":"),
        "{head}"
    );
}

#[tokio::test]
async fn usage_chunk_has_no_choices_and_carries_the_fingerprint() {
    let router = edge(&FakeEngine::new(Script::Say("abc", 2))).await;
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = post(&router, "/v1/chat/completions", &body).await.events();
    let prompt = events[3]["usage"]["prompt_tokens"].as_u64().unwrap();
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": 4, "total_tokens": prompt + 4});
    let usage = json!({"choices": [], "usage": usage, "system_fingerprint": fingerprint()});
    let finish = end(0, "c", "stop", json!(null));
    assert_eq!(events, [role(0), text(0, "ab"), finish, usage, json!("[DONE]")]);
}

#[tokio::test]
async fn continuous_usage_counts_up_from_zero_on_the_role_chunk() {
    let router = edge(&FakeEngine::new(Script::Say("abc", 2))).await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = chat(json!({"stream": true, "stream_options": options}));
    let events = post(&router, "/v1/chat/completions", &body).await.events();
    let counts: Vec<&Value> = events[..4]
        .iter()
        .map(|event| &event["usage"]["completion_tokens"])
        .collect();
    assert_eq!(counts, [&json!(0), &json!(2), &json!(4), &json!(4)]);
}

#[tokio::test]
async fn usage_can_be_forced_by_the_server() {
    let engine = FakeEngine::new(Script::Say("abc", 2));
    let config = EdgeConfig {
        enable_force_include_usage: true,
        ..EdgeConfig::default()
    };
    let router = edge_with(&engine, config).await;
    let events = post(&router, "/v1/completions", &completion(json!({"stream": true})))
        .await
        .events();
    assert!(
        events[..3]
            .iter()
            .all(|event| event["usage"]["prompt_tokens"] == 2),
        "{events:?}"
    );
    assert_eq!(events[2]["choices"], json!([]));
}

#[tokio::test]
async fn n_streams_begin_with_all_roles_and_the_fingerprint_is_on_the_very_last_chunk() {
    let router = edge(&FakeEngine::new(Script::Say("a{i}", 2))).await;
    let events = post(
        &router,
        "/v1/chat/completions",
        &chat(json!({"stream": true, "n": 2})),
    )
    .await
    .events();
    let last = with(
        end(1, "", "stop", json!(null)),
        "system_fingerprint",
        json!(fingerprint()),
    );
    assert_eq!(
        events,
        [
            role(0),
            role(1),
            text(0, "a0"),
            text(1, "a1"),
            end(0, "", "stop", json!(null)),
            last,
            json!("[DONE]"),
        ]
    );
}

#[tokio::test]
async fn completion_stream_has_text_and_finish_in_choices() {
    let router = edge(&FakeEngine::new(Script::Say("abc", 2))).await;
    let events = post(
        &router,
        "/v1/completions",
        &completion(json!({"stream": true, "echo": true})),
    )
    .await
    .events();
    let choice = |text: &str, reason: Value| {
        json!({"choices": [{
            "index": 0, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": null,
        }]})
    };
    let last = with(
        choice("c", json!("stop")),
        "system_fingerprint",
        json!(fingerprint()),
    );
    assert_eq!(events, [choice("hiab", json!(null)), last, json!("[DONE]")]);
}

#[tokio::test]
async fn prompt_token_ids_are_on_the_first_chunk_only() {
    let router = edge(&FakeEngine::new(Script::Say("abc", 2))).await;
    let extra = json!({"stream": true, "return_token_ids": true});
    let events = post(&router, "/v1/chat/completions", &chat(extra.clone()))
        .await
        .events();
    assert_eq!(events[0]["prompt_token_ids"][0], IM_START);
    assert!(
        events[1..]
            .iter()
            .all(|event| event.get("prompt_token_ids").is_none())
    );
    assert_eq!(events[1]["choices"][0]["token_ids"], json!([97, 98]));
    assert_eq!(events[2]["choices"][0]["token_ids"], json!([99, IM_END]));
    let events = post(&router, "/v1/completions", &completion(extra))
        .await
        .events();
    assert_eq!(events[0]["choices"][0]["prompt_token_ids"], json!([104, 105]));
    assert!(events[1]["choices"][0].get("prompt_token_ids").is_none());
}

#[tokio::test]
async fn half_characters_are_held_back_and_make_no_empty_chunks() {
    let router = edge(&FakeEngine::new(Script::Say("a🌶b", 1))).await;
    let events = post(&router, "/v1/chat/completions", &chat(json!({"stream": true})))
        .await
        .events();
    let pieces: Vec<&str> = events[1..5]
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(pieces, ["a", "🌶", "b", ""]);
    assert_eq!(events.len(), 6);
}

#[tokio::test]
async fn held_back_text_still_sends_log_probabilities() {
    let router = edge(&FakeEngine::new(Script::Say("é", 1))).await;
    let extra = json!({"stream": true, "logprobs": true, "max_tokens": 2});
    let events = post(&router, "/v1/chat/completions", &chat(extra)).await.events();
    assert_eq!(events[1]["choices"][0]["delta"]["content"], "");
    assert_eq!(
        events[1]["choices"][0]["logprobs"]["content"][0]["bytes"],
        json!([0xc3])
    );
    assert_eq!(events[2]["choices"][0]["delta"]["content"], "é");
}

#[tokio::test]
async fn completion_stream_offsets_go_on_from_chunk_to_chunk() {
    let router = edge(&FakeEngine::new(Script::Say("abc", 2))).await;
    let extra = json!({"stream": true, "echo": true, "logprobs": 0, "max_tokens": 3});
    let events = post(&router, "/v1/completions", &completion(extra))
        .await
        .events();
    let first = &events[0]["choices"][0]["logprobs"];
    assert_eq!(first["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(first["token_logprobs"], json!([null, -0.5, -0.5, -0.5]));
    let second = &events[1]["choices"][0]["logprobs"];
    assert_eq!(
        (&second["text_offset"], &second["tokens"]),
        (&json!([4]), &json!(["c"]))
    );
}

#[tokio::test]
async fn an_error_in_the_middle_is_a_frame_and_done_follows() {
    let error = kvasir_client::types::Error {
        code: ErrorCode::Internal.into(),
        message: "the scheduler failed".to_owned(),
        param: String::new(),
    };
    let failed = Finish {
        reason: FinishReason::Error.into(),
        error: Some(error),
        ..Finish::default()
    };
    let outputs = vec![
        SequenceOutput {
            token_ids: vec![104],
            ..SequenceOutput::default()
        },
        SequenceOutput {
            finish: Some(failed),
            ..SequenceOutput::default()
        },
    ];
    let engine = FakeEngine::new(Script::Outputs(outputs));
    let router = edge(&engine).await;
    let answer = post(&router, "/v1/chat/completions", &chat(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    let frame = json!({"error": {
        "message": "the scheduler failed", "type": "InternalServerError", "param": null, "code": 500,
    }});
    assert!(
        answer
            .text
            .ends_with(&format!("data: {frame}\n\ndata: [DONE]\n\n")),
        "{}",
        answer.text
    );
    let whole = post(&router, "/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(
        whole.error(500, "InternalServerError", None),
        "the scheduler failed"
    );
}

#[tokio::test]
async fn a_lost_engine_is_an_error_frame_too() {
    let outputs = vec![SequenceOutput {
        token_ids: vec![104],
        ..SequenceOutput::default()
    }];
    let router = edge(&FakeEngine::new(Script::Outputs(outputs))).await;
    let answer = post(&router, "/v1/completions", &completion(json!({"stream": true}))).await;
    assert!(
        answer.text.contains("\"ServiceUnavailableError\""),
        "{}",
        answer.text
    );
    assert!(answer.text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn silent_streams_send_comments() {
    let engine = FakeEngine::new(Script::Hang);
    let config = EdgeConfig {
        sse_keep_alive: Some(std::time::Duration::from_millis(1)),
        request_timeout: Some(std::time::Duration::from_millis(200)),
        ..EdgeConfig::default()
    };
    let router = edge_with(&engine, config).await;
    let answer = post(&router, "/v1/chat/completions", &chat(json!({"stream": true}))).await;
    assert!(answer.text.contains("\n\n: keep-alive\n\n"), "{}", answer.text);
    assert!(answer.text.contains("\"TimeoutError\""), "{}", answer.text);
    engine.idle().await;
}

#[tokio::test]
async fn concatenated_stream_equals_the_whole_answer_for_every_step_size() {
    for step in 1..12 {
        let engine = FakeEngine::new(Script::Say("naïve 🌶 END of {i}", step));
        let router = edge(&engine).await;
        for extra in [
            json!({}),
            json!({"stop": ["END"], "n": 2}),
            json!({"max_tokens": 4}),
        ] {
            let whole = post(&router, "/v1/chat/completions", &chat(extra.clone()))
                .await
                .json();
            let mut streamed = extra;
            streamed["stream"] = json!(true);
            let events = post(&router, "/v1/chat/completions", &chat(streamed))
                .await
                .events();
            for choice in whole["choices"].as_array().unwrap() {
                let mine = |event: &&Value| event["choices"][0]["index"] == choice["index"];
                let pieces: String = events
                    .iter()
                    .filter(mine)
                    .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap())
                    .collect();
                assert_eq!(choice["message"]["content"], json!(pieces), "step {step}");
                let last = &events.iter().rfind(mine).unwrap()["choices"][0];
                assert_eq!(last["finish_reason"], choice["finish_reason"]);
                assert_eq!(last["stop_reason"], choice["stop_reason"]);
            }
        }
    }
}
