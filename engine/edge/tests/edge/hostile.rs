//! Hostile input: each is a 4xx with a bounded answer, and the server goes on (rows C54 to C72 as far as they apply).

use kvasir_edge::EdgeConfig;
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn hostile_bodies_are_refused_and_the_server_goes_on() {
    let engine = FakeEngine::new(Script::Say("ok", 1));
    let router = edge(&engine).await;
    let nested = |open: &str, close: &str| format!("{}{}", open.repeat(100_000), close.repeat(100_000));
    let prompts = vec!["a"; 1024];
    let keys = (0..5000)
        .map(|i| format!("\"k{i}\":0"))
        .collect::<Vec<_>>()
        .join(",");
    let bodies = [
        ("deep arrays", format!("{{\"prompt\":{}}}", nested("[", "]"))),
        (
            "deep objects",
            format!(
                "{{\"prompt\":{}1{}}}",
                "{\"a\":".repeat(100_000),
                "}".repeat(100_000)
            ),
        ),
        (
            "deep unknown field",
            format!("{{\"prompt\":\"a\",\"x\":{}}}", nested("[", "]")),
        ),
        ("unclosed", "[".repeat(1_000_000)),
        ("prompts x n", json!({"prompt": prompts, "n": 16384}).to_string()),
        (
            "prompts x n within both limits",
            json!({"prompt": prompts, "n": 2}).to_string(),
        ),
        (
            "bias outside the vocabulary",
            json!({"prompt": "a", "logit_bias": {"99999999": 1}}).to_string(),
        ),
        (
            "bias overflow",
            "{\"prompt\":\"a\",\"logit_bias\":{\"99999999999999999999\":1}}".to_owned(),
        ),
        ("NaN", "{\"prompt\":\"a\",\"temperature\":NaN}".to_owned()),
        ("infinity", "{\"prompt\":\"a\",\"temperature\":1e999}".to_owned()),
        (
            "huge number",
            format!("{{\"prompt\":\"a\",\"seed\":{}}}", "9".repeat(100_000)),
        ),
        ("negative zero n", "{\"prompt\":\"a\",\"n\":-0.0}".to_owned()),
        ("lone surrogate", "{\"prompt\":\"\\ud800\"}".to_owned()),
        ("half a surrogate pair", "{\"prompt\":\"\\ud83cx\"}".to_owned()),
        ("raw control character", "{\"prompt\":\"a\u{1}\"}".to_owned()),
        ("many keys", format!("{{\"prompt\":\"a\",{keys}}}")),
        (
            "regex that explodes",
            json!({"prompt": "a", "guided_regex": "(a|aa){1,5000}"}).to_string(),
        ),
        (
            "all log probabilities",
            json!({"prompt": "a", "prompt_logprobs": 1_000_000}).to_string(),
        ),
        (
            "huge stop",
            json!({"prompt": "a", "stop": "x".repeat(100_000)}).to_string(),
        ),
        (
            "huge model",
            json!({"prompt": "a", "model": "m".repeat(100_000)}).to_string(),
        ),
        (
            "huge key of bias",
            json!({"prompt": "a", "logit_bias": {"x".repeat(100_000): 1}}).to_string(),
        ),
        (
            "template",
            json!({"prompt": "a", "messages": [], "stop": [1, 2]}).to_string(),
        ),
    ];
    for (name, body) in bodies {
        let answer = post_text(&router, "/v1/completions", body).await;
        assert!(
            answer.status.is_client_error(),
            "{name}: {} {}",
            answer.status,
            answer.text
        );
        assert!(answer.json()["error"]["message"].is_string(), "{name}");
        assert!(
            answer.text.len() < 5000,
            "{name}: an error of {} bytes",
            answer.text.len()
        );
        assert!(engine.events().is_empty(), "{name} reached the engine");
    }
    assert_eq!(
        post(&router, "/v1/completions", &completion(json!({})))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn hostile_chats_are_refused_and_the_server_goes_on() {
    let engine = FakeEngine::new(Script::Say("ok", 1));
    let router = edge(&engine).await;
    let loops = "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}x\
                 {% endfor %}{% endfor %}{% endfor %}";
    let many = vec![json!({"role": "user", "content": ""}); 20_000];
    let parts = vec![json!("a"); 5000];
    let image = json!({"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}});
    let bodies = [
        ("template of a request", chat(json!({"chat_template": loops}))),
        ("many messages", json!({"messages": many})),
        (
            "many parts",
            json!({"messages": [{"role": "user", "content": parts}]}),
        ),
        (
            "image",
            json!({"messages": [{"role": "user", "content": [image]}]}),
        ),
        (
            "large tool calls",
            json!({"messages": [{"role": "assistant", "tool_calls": vec![0; 300_000]}]}),
        ),
        (
            "large variables",
            chat(json!({"chat_template_kwargs": {"x": vec![0; 300_000]}})),
        ),
        (
            "variables of a wrong type",
            chat(json!({"chat_template_kwargs": []})),
        ),
        (
            "too long",
            json!({"messages": [{"role": "user", "content": "x".repeat(600)}]}),
        ),
        (
            "absurdly long",
            json!({"messages": [{"role": "user", "content": "x".repeat(10_000_000)}]}),
        ),
    ];
    for (name, body) in bodies {
        let answer = post(&router, "/v1/chat/completions", &body).await;
        assert!(
            answer.status.is_client_error(),
            "{name}: {} {}",
            answer.status,
            answer.text
        );
        assert!(answer.text.len() < 5000, "{name}");
        assert!(engine.events().is_empty(), "{name} reached the engine");
    }
    assert_eq!(
        post(&router, "/v1/chat/completions", &chat(json!({})))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn odd_but_valid_input_is_served() {
    let engine = FakeEngine::new(Script::Say("ok", 1));
    let router = edge(&engine).await;
    for body in [
        json!({"prompt": "\u{0}"}),
        json!({"prompt": "\u{fffd}\u{202e}\u{feff}"}),
        json!({"prompt": "<|im_start|>"}),
        json!({"prompt": [[258, 259], [0]]}),
        json!({"prompt": "a", "stop": "\u{0}"}),
        json!({"prompt": "a", "logit_bias": {" 5 ": -1e300}}),
        json!({"prompt": "a", "top_k": 9_000_000_000i64}),
        json!({"prompt": "a", "priority": i64::MIN}),
        json!({"prompt": "a", "seed": i64::MIN}),
    ] {
        let answer = post(&router, "/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    }
    let role = json!({"messages": [{"role": "<|im_end|>\u{0}", "content": "\u{0}"}]});
    assert_eq!(post(&router, "/v1/chat/completions", &role).await.status, 200);
    let empty = json!({"messages": [{"role": "user", "content": ""}]});
    assert_eq!(post(&router, "/v1/chat/completions", &empty).await.status, 200);
}

#[tokio::test]
async fn hostile_headers_do_no_harm() {
    let router = edge(&FakeEngine::new(Script::Say("ok", 1))).await;
    let body = completion(json!({})).to_string();
    for (name, value) in [
        ("x-request-id", "a b\tc".to_owned()),
        ("x-request-id", "x".repeat(10_000)),
        ("content-length", "-5".to_owned()),
        ("content-length", "99999999999999999999".to_owned()),
        ("authorization", "x".repeat(10_000)),
    ] {
        let mut request = request(http::Method::POST, "/v1/completions", body.clone());
        request
            .headers_mut()
            .insert(http::HeaderName::from_static(name), value.parse().unwrap());
        let answer = send(&router, request).await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text);
        assert!(answer.json()["id"].as_str().unwrap().len() < 100);
    }
    let mut wrong_priority = request(http::Method::POST, "/v1/completions", body);
    wrong_priority
        .headers_mut()
        .insert("x-vllm-priority", "soon".parse().unwrap());
    send(&router, wrong_priority)
        .await
        .error(400, "BadRequestError", Some("priority"));
}

#[tokio::test]
async fn text_beyond_any_use_is_never_tokenized() {
    let engine = FakeEngine::new(Script::Say("ok", 1));
    let router = edge(&engine).await;
    let long = "x".repeat(2_000_000);
    let message = json!([{"role": "user", "content": long}]);
    for (path, body) in [
        ("/tokenize", json!({"prompt": long})),
        ("/tokenize", json!({"messages": message})),
        (
            "/v1/completions",
            json!({"prompt": long, "truncate_prompt_tokens": 5}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": message, "truncate_prompt_tokens": 5}),
        ),
    ] {
        let answer = post(&router, path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert!(answer.text.contains("2000000 bytes"), "{path}: {}", answer.text);
    }
    assert!(engine.events().is_empty());
    let counted = post(
        &router,
        "/tokenize",
        &json!({"prompt": "x".repeat(2 * MAX_MODEL_LEN as usize)}),
    )
    .await;
    assert_eq!(counted.json()["count"], 2 * MAX_MODEL_LEN);
}

#[tokio::test]
async fn paths_that_are_no_text_name_no_model() {
    let router = edge(&FakeEngine::new(Script::Say("ok", 1))).await;
    for path in ["/v1/models/%ff", "/v1/models/a%c3"] {
        get(&router, path).await.error(404, "NotFoundError", None);
    }
}

#[tokio::test]
async fn long_bodies_take_turns_in_memory_and_short_ones_get_by() {
    let engine = FakeEngine::new(Script::Hang);
    let config = EdgeConfig {
        max_bodies_bytes: 150 << 10,
        ..EdgeConfig::default()
    };
    let router = edge_with(&engine, config).await;
    // White space counts as a body and not as a prompt.
    let long = format!("{}{}", " ".repeat(200 << 10), completion(json!({})));
    let ask = |body: String| {
        let router = router.clone();
        tokio::spawn(async move { post_text(&router, "/v1/completions", body).await })
    };
    let first = ask(long.clone());
    wait_for("the first one", || engine.requests().len() == 1).await;
    let second = ask(long.clone()).await.unwrap();
    assert!(
        second
            .error(503, "ServiceUnavailableError", None)
            .contains("try again")
    );
    let short = ask(completion(json!({})).to_string());
    wait_for("the short one", || engine.requests().len() == 2).await;
    short.abort();
    first.abort();
    engine.idle().await;
    let third = ask(long);
    wait_for("the third one", || engine.requests().len() == 3).await;
    third.abort();
}
