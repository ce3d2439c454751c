//! Clients that leave: the engine stops working for them (C28, C32).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use futures::StreamExt;
use http::Method;
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use crate::support::*;

#[tokio::test]
async fn dropping_a_stream_drops_the_request_with_all_its_sequences() {
    let engine = FakeEngine::new(Script::Hang);
    let router = edge(&engine).await;
    let body = chat(json!({"stream": true, "n": 4}));
    let request = request(Method::POST, "/v1/chat/completions", body.to_string());
    let mut response = router.clone().oneshot(request).await.unwrap();
    assert!(response.body_mut().frame().await.unwrap().is_ok());
    assert_eq!(engine.live.load(Ordering::SeqCst), 1);
    drop(response);
    engine.idle().await;
    assert_eq!(
        engine.events().last(),
        Some(&Event::Dropped(engine.request().request_id))
    );
    let metrics = get(&router, "/metrics").await.text;
    let aborted = metrics
        .lines()
        .find(|line| line.contains("finished_reason=\"abort\""))
        .unwrap();
    assert!(aborted.ends_with(" 4"), "{aborted}");
}

#[tokio::test]
async fn a_stream_that_is_never_read_is_dropped_too() {
    let engine = FakeEngine::new(Script::Hang);
    let router = edge(&engine).await;
    let body = completion(json!({"stream": true, "prompt": ["a", "b", "c"]}));
    let request = request(Method::POST, "/v1/completions", body.to_string());
    let response = router.clone().oneshot(request).await.unwrap();
    assert_eq!(engine.live.load(Ordering::SeqCst), 3);
    drop(response);
    engine.idle().await;
}

#[tokio::test]
async fn a_client_that_stops_waiting_for_a_whole_answer_drops_the_request() {
    let engine = FakeEngine::new(Script::Hang);
    let router = edge(&engine).await;
    let request = request(Method::POST, "/v1/completions", completion(json!({})).to_string());
    let waiting = tokio::spawn(router.clone().oneshot(request));
    let live = Arc::clone(&engine.live);
    wait_for("the request to reach the engine", || {
        live.load(Ordering::SeqCst) == 1
    })
    .await;
    waiting.abort();
    engine.idle().await;
}

#[tokio::test]
async fn if_one_prompt_is_refused_none_goes_on() {
    let engine = FakeEngine::new(Script::Hang);
    let router = edge(&engine).await;
    let body = json!({"prompt": ["fits", "x".repeat(600)]});
    post(&router, "/v1/completions", &body)
        .await
        .error(400, "BadRequestError", Some("prompt"));
    assert!(engine.events().is_empty());
}

#[tokio::test]
async fn two_hundred_streams_with_disconnects_leave_nothing_behind() {
    let engine = FakeEngine::new(Script::Reverse);
    let router = edge(&engine).await;
    let tasks: Vec<_> = (0..200u32)
        .map(|i| {
            let router = router.clone();
            tokio::spawn(async move {
                let prompt = format!("prompt number {i} é🌶");
                let body = json!({"prompt": prompt, "stream": true, "max_tokens": 200, "ignore_eos": true});
                let request = request(Method::POST, "/v1/completions", body.to_string());
                let response = router.oneshot(request).await.unwrap();
                let mut frames = Body::new(response.into_body()).into_data_stream();
                let mut text = String::new();
                while let Some(frame) = frames.next().await {
                    text.push_str(std::str::from_utf8(&frame.unwrap()).unwrap());
                    // Every third client leaves after its first frames.
                    if i % 3 == 0 {
                        return None;
                    }
                }
                Some((prompt, text))
            })
        })
        .collect();
    for task in tasks {
        let Some((prompt, text)) = task.await.unwrap() else {
            continue;
        };
        let reversed: Vec<u8> = prompt.bytes().rev().collect();
        let said: String = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: {"))
            .map(|json| serde_json::from_str::<serde_json::Value>(&format!("{{{json}")).unwrap())
            .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(said, String::from_utf8_lossy(&reversed));
    }
    engine.idle().await;
    assert_eq!(get(&router, "/load").await.json(), json!({"server_load": 0}));
}
