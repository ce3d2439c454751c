//! Every row of the error table.

use http::{Method, header};
use kvasir_client::types::ErrorCode;
use kvasir_edge::EdgeConfig;
use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn wrong_types_are_bad_requests_that_name_their_field() {
    let router = edge(&FakeEngine::new(Script::Say("a", 1))).await;
    for (field, value) in [
        ("temperature", json!("hot")),
        ("n", json!(1.5)),
        ("n", json!(18_446_744_073_709_551_615u64)),
        ("stream", json!("yes")),
        ("stop", json!(5)),
        ("stop", json!(["a", 5])),
        ("logit_bias", json!([1])),
        ("logit_bias", json!({"5": "x"})),
        ("seed", json!(1e30)),
        ("max_tokens", json!([])),
        ("stop_token_ids", json!([-1])),
        ("stop_token_ids", json!([5_000_000_000u64])),
        ("model", json!({})),
        ("cache_salt", json!(1)),
    ] {
        for (path, body) in [(CHAT, chat(json!({}))), (COMPLETIONS, completion(json!({})))] {
            let mut body = body;
            body[field] = value.clone();
            let message = post(&router, path, &body)
                .await
                .error(400, "Bad Request", Some(field));
            assert!(message.starts_with(field), "{message}");
        }
    }
}

#[tokio::test]
async fn impossible_values_are_refused_with_parameter_and_value() {
    let router = edge(&FakeEngine::new(Script::Say("a", 1))).await;
    for (field, value) in [
        ("temperature", json!(2.01)),
        ("temperature", json!(-0.1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.01)),
        ("top_k", json!(-2)),
        ("min_p", json!(-0.1)),
        ("min_p", json!(1.1)),
        ("presence_penalty", json!(2.1)),
        ("frequency_penalty", json!(-2.1)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(1e300)),
        ("n", json!(0)),
        ("n", json!(-3)),
        ("n", json!(16_385)),
        ("n", json!(1025)),
        ("best_of", json!(2)),
        ("stop", json!("")),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("stop", json!("x".repeat(1025))),
        ("stop_token_ids", json!([VOCAB_SIZE])),
        ("min_tokens", json!(-1)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(MAX_MODEL_LEN + 1)),
        ("logit_bias", json!({"99999999": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!({"x": 1})),
        ("allowed_token_ids", json!([])),
        ("allowed_token_ids", json!([VOCAB_SIZE])),
        ("bad_words", json!([""])),
        ("bad_words", json!(vec!["w"; 129])),
        ("prompt_logprobs", json!(21)),
        ("prompt_logprobs", json!(-2)),
        ("cache_salt", json!("")),
        ("cache_salt", json!("a/b")),
        ("cache_salt", json!("s".repeat(129))),
        ("truncate_prompt_tokens", json!(0)),
        ("truncate_prompt_tokens", json!(MAX_MODEL_LEN + 1)),
        ("truncation_side", json!("middle")),
        ("stream_options", json!({"include_usage": true})),
    ] {
        for (path, body) in [(CHAT, chat(json!({}))), (COMPLETIONS, completion(json!({})))] {
            let mut body = body;
            body[field] = value.clone();
            post(&router, path, &body)
                .await
                .error(400, "BadRequestError", Some(field));
        }
    }
}

#[tokio::test]
async fn fields_that_contradict_each_other_are_refused() {
    let router = edge(&FakeEngine::new(Script::Say("a", 1))).await;
    for (path, body, param) in [
        (COMPLETIONS, completion(json!({"n": 2, "temperature": 0})), "n"),
        (
            COMPLETIONS,
            completion(json!({"temperature": 0, "top_p": 0})),
            "top_p",
        ),
        (
            COMPLETIONS,
            completion(json!({"min_tokens": 5, "max_tokens": 4})),
            "min_tokens",
        ),
        (COMPLETIONS, completion(json!({"min_tokens": 17})), "min_tokens"),
        (COMPLETIONS, completion(json!({"max_tokens": 0})), "max_tokens"),
        (
            COMPLETIONS,
            completion(json!({"stream": true, "prompt_logprobs": 1})),
            "prompt_logprobs",
        ),
        (COMPLETIONS, completion(json!({"logprobs": 21})), "logprobs"),
        (CHAT, chat(json!({"top_logprobs": 2})), "top_logprobs"),
        (
            CHAT,
            chat(json!({"logprobs": true, "top_logprobs": 21})),
            "top_logprobs",
        ),
        (CHAT, chat(json!({"max_tokens": 0})), "max_tokens"),
        (
            CHAT,
            chat(json!({"continue_final_message": true})),
            "continue_final_message",
        ),
        (
            CHAT,
            chat(json!({"reasoning_effort": "extreme"})),
            "reasoning_effort",
        ),
        (CHAT, chat(json!({"chat_template": "x"})), "chat_template"),
    ] {
        post(&router, path, &body)
            .await
            .error(400, "BadRequestError", Some(param));
    }
}

#[tokio::test]
async fn known_fields_that_cannot_be_honoured_are_refused_by_name() {
    let router = edge(&FakeEngine::new(Script::Say("a", 1))).await;
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}});
    let shared = [
        ("use_beam_search", json!(true)),
        ("length_penalty", json!(2)),
        ("structured_outputs", json!({"regex": "["})),
        ("guided_json", json!({"type": "bogus"})),
        ("guided_regex", json!("(a|aa){1,5000}")),
        ("guided_choice", json!(["a"])),
        ("guided_grammar", json!("root ::= \"a\"")),
        ("logprob_token_ids", json!([1])),
        ("kv_transfer_params", json!({"a": 1})),
        ("vllm_xargs", json!({"a": 1})),
        ("repetition_detection", json!({})),
        ("thinking_token_budget", json!(5)),
        ("response_format", json!({"type": "json_object"})),
        ("response_format", schema),
        ("store", json!(true)),
    ];
    for (field, value) in &shared {
        for (path, body) in [(CHAT, chat(json!({}))), (COMPLETIONS, completion(json!({})))] {
            let mut body = body;
            body[*field] = value.clone();
            post(&router, path, &body)
                .await
                .error(400, "BadRequestError", Some(field));
        }
    }
    for (field, value) in [
        ("tools", json!([])),
        ("tools", json!([{"type": "function", "function": {"name": "f"}}])),
        ("tool_choice", json!("auto")),
        ("functions", json!([])),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({"voice": "x"})),
        ("mm_processor_kwargs", json!({"a": 1})),
        ("include_reasoning", json!(false)),
    ] {
        let mut body = chat(json!({}));
        body[field] = value;
        post(&router, CHAT, &body)
            .await
            .error(400, "BadRequestError", Some(field));
    }
    for (field, value) in [("suffix", json!("x")), ("prompt_embeds", json!("x"))] {
        let mut body = completion(json!({}));
        body[field] = value;
        post(&router, COMPLETIONS, &body)
            .await
            .error(400, "BadRequestError", Some(field));
    }
}

#[tokio::test]
async fn values_that_ask_for_nothing_are_accepted() {
    let router = edge(&FakeEngine::new(Script::Say("a", 1))).await;
    let extra = json!({
        "use_beam_search": false, "length_penalty": 1.0, "response_format": {"type": "text"}, "best_of": 1,
        "store": false, "tools": null, "tool_choice": "none", "parallel_tool_calls": true, "user": "u",
        "metadata": {"a": "b"}, "service_tier": "auto", "stop": null, "logit_bias": null, "seed": null,
        "structured_outputs": null, "modalities": ["text"], "reasoning_effort": "low", "n": 1.0,
        "logprobs": null, "top_logprobs": null, "stream_options": null, "documents": [{"title": "t"}],
        "safety_identifier": "x", "prompt_cache_key": "y", "spaces_between_special_tokens": false,
    });
    let answer = post(&router, CHAT, &chat(extra)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(
        !answer.headers.contains_key("x-kvasir-warning"),
        "{:?}",
        answer.headers
    );
}

#[tokio::test]
async fn messages_are_checked_where_they_are_wrong() {
    let router = edge(&FakeEngine::new(Script::Say("a", 1))).await;
    let with = |messages: Value| json!({"messages": messages});
    let image = json!({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}});
    for (body, kind, param) in [
        (json!({}), "Bad Request", "messages"),
        (with(json!("hi")), "Bad Request", "messages"),
        (with(json!([])), "BadRequestError", "messages"),
        (with(json!(["hi"])), "Bad Request", "messages.0"),
        (with(json!([{"content": "hi"}])), "Bad Request", "messages.0.role"),
        (
            with(json!([{"role": "user"}])),
            "Bad Request",
            "messages.0.content",
        ),
        (
            with(json!([{"role": "user", "content": 5}])),
            "Bad Request",
            "messages.0.content",
        ),
        (
            with(json!([{"role": "user", "content": [{}]}])),
            "Bad Request",
            "messages.0.content.0.type",
        ),
        (
            with(json!([{"role": "user", "content": [image]}])),
            "BadRequestError",
            "messages.0.content.0",
        ),
        (
            with(json!([{"role": "user", "content": [{"type": "hologram"}]}])),
            "BadRequestError",
            "messages.0.content.0.type",
        ),
    ] {
        post(&router, CHAT, &body).await.error(400, kind, Some(param));
    }
    let parts = with(json!([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]));
    assert_eq!(post(&router, CHAT, &parts).await.status, 200);
}

#[tokio::test]
async fn prompts_are_checked() {
    let router = edge(&FakeEngine::new(Script::Say("a", 1))).await;
    for (prompt, kind) in [
        (json!(null), "Bad Request"),
        (json!(5), "Bad Request"),
        (json!({}), "Bad Request"),
        (json!([true]), "Bad Request"),
        (json!(["a", 1]), "Bad Request"),
        (json!([-1]), "Bad Request"),
        (json!([[1], "a"]), "Bad Request"),
        (json!(""), "BadRequestError"),
        (json!([]), "BadRequestError"),
        (json!([[]]), "BadRequestError"),
        (json!(["a", ""]), "BadRequestError"),
        (json!([VOCAB_SIZE]), "BadRequestError"),
        (json!([4_294_967_295u32]), "BadRequestError"),
        (json!(vec!["a"; 1025]), "BadRequestError"),
    ] {
        let body = json!({"prompt": prompt});
        post(&router, COMPLETIONS, &body)
            .await
            .error(400, kind, Some("prompt"));
    }
}

#[tokio::test]
async fn prompts_that_fill_the_context_are_refused_with_the_limit() {
    let engine = FakeEngine::new(Script::Say("a", 1));
    let router = edge(&engine).await;
    let full = json!({"prompt": "x".repeat(MAX_MODEL_LEN as usize)});
    let message = post(&router, COMPLETIONS, &full)
        .await
        .error(400, "BadRequestError", Some("prompt"));
    assert!(
        message.contains("512 tokens; with at least one output token"),
        "{message}"
    );
    let almost = json!({"prompt": "x".repeat(MAX_MODEL_LEN as usize - 1), "max_tokens": 100});
    assert_eq!(post(&router, COMPLETIONS, &almost).await.status, 200);
    assert_eq!(engine.request().stop.unwrap().max_tokens, 1);
    let absurd = json!({"messages": [{"role": "user", "content": "x".repeat(1_000_000)}]});
    let message = post(&router, CHAT, &absurd)
        .await
        .error(400, "BadRequestError", Some("messages"));
    assert!(message.contains("1000000 bytes"), "{message}");
}

#[tokio::test]
async fn unknown_models_are_404_and_name_the_served_ones() {
    let router = edge(&FakeEngine::new(Script::Say("a", 1))).await;
    for (path, body) in [
        (CHAT, chat(json!({"model": "gpt-9"}))),
        (COMPLETIONS, completion(json!({"model": "gpt-9"}))),
        ("/tokenize", completion(json!({"model": "gpt-9"}))),
        ("/detokenize", json!({"tokens": [1], "model": "gpt-9"})),
    ] {
        let message = post(&router, path, &body)
            .await
            .error(404, "NotFoundError", Some("model"));
        assert_eq!(message, "the model `gpt-9` does not exist; served: tiny");
    }
}

#[tokio::test]
async fn unknown_paths_are_404_and_wrong_methods_405() {
    let router = edge(&FakeEngine::new(Script::Hang)).await;
    for path in [
        "/",
        "/v1",
        "/v1/embeddings",
        "/invocations",
        "/score",
        "/v1/chat/completions/",
        "/%00",
        "/docs",
    ] {
        get(&router, path).await.error(404, "NotFoundError", None);
        post(&router, path, &json!({}))
            .await
            .error(404, "NotFoundError", None);
    }
    get(&router, CHAT).await.error(405, "MethodNotAllowedError", None);
    let answer = send(&router, request(Method::DELETE, "/health", "")).await;
    answer.error(405, "MethodNotAllowedError", None);
    let answer = send(&router, request(Method::OPTIONS, CHAT, "")).await;
    answer.error(405, "MethodNotAllowedError", None);
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn bodies_must_be_json_by_header_and_by_content() {
    let router = edge(&FakeEngine::new(Script::Say("a", 1))).await;
    let body = completion(json!({})).to_string();
    for content_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonx",
        "",
    ] {
        let mut request = request(Method::POST, COMPLETIONS, body.clone());
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, content_type.parse().unwrap());
        send(&router, request).await.error(400, "Bad Request", None);
    }
    let mut with_charset = request(Method::POST, COMPLETIONS, body.clone());
    with_charset.headers_mut().insert(
        header::CONTENT_TYPE,
        "Application/JSON; charset=utf-8".parse().unwrap(),
    );
    assert_eq!(send(&router, with_charset).await.status, 200);
    let mut compressed = request(Method::POST, COMPLETIONS, body);
    compressed
        .headers_mut()
        .insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
    send(&router, compressed)
        .await
        .error(415, "UnsupportedMediaTypeError", None);
    for text in ["", "{", "[]", "{\"prompt\": \"a\"} x", "null"] {
        post_text(&router, COMPLETIONS, text)
            .await
            .error(400, "Bad Request", None);
    }
}

#[tokio::test]
async fn large_bodies_are_413_with_and_without_a_length() {
    let engine = FakeEngine::new(Script::Say("a", 1));
    let router = edge_with(
        &engine,
        EdgeConfig {
            max_body_bytes: 1000,
            ..EdgeConfig::default()
        },
    )
    .await;
    let body = json!({"prompt": "x".repeat(1000)}).to_string();
    let message =
        post_text(&router, COMPLETIONS, body.clone())
            .await
            .error(413, "RequestTooLargeError", None);
    assert!(message.contains("1000 bytes"), "{message}");
    let chunks = futures::stream::iter(body.into_bytes()).map_ok_chunks();
    post_text(&router, COMPLETIONS, axum::body::Body::from_stream(chunks))
        .await
        .error(413, "RequestTooLargeError", None);
    let mut lying = request(Method::POST, COMPLETIONS, "{}");
    lying
        .headers_mut()
        .insert(header::CONTENT_LENGTH, "9999999999".parse().unwrap());
    send(&router, lying)
        .await
        .error(413, "RequestTooLargeError", None);
}

trait Chunks: Sized {
    fn map_ok_chunks(self) -> impl futures::Stream<Item = Result<Vec<u8>, std::io::Error>> + Send;
}

impl<S: futures::Stream<Item = u8> + Send> Chunks for S {
    fn map_ok_chunks(self) -> impl futures::Stream<Item = Result<Vec<u8>, std::io::Error>> + Send {
        futures::StreamExt::map(self, |byte| Ok(vec![byte]))
    }
}

#[tokio::test]
async fn slow_bodies_time_out() {
    let engine = FakeEngine::new(Script::Say("a", 1));
    let timeout = std::time::Duration::from_millis(20);
    let router = edge_with(
        &engine,
        EdgeConfig {
            body_read_timeout: timeout,
            ..EdgeConfig::default()
        },
    )
    .await;
    let never = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    let answer = post_text(&router, COMPLETIONS, axum::body::Body::from_stream(never)).await;
    answer.error(408, "RequestTimeoutError", None);
}

#[tokio::test]
async fn refusals_of_the_engine_have_their_status() {
    for (code, status, kind) in [
        (ErrorCode::InvalidRequest, 400, "BadRequestError"),
        (ErrorCode::QueueFull, 503, "Service Unavailable"),
        (ErrorCode::Draining, 503, "ServiceUnavailableError"),
        (ErrorCode::Unavailable, 503, "ServiceUnavailableError"),
        (ErrorCode::Internal, 500, "InternalServerError"),
        (ErrorCode::Unspecified, 500, "InternalServerError"),
    ] {
        let router = edge(&FakeEngine::new(Script::Refuse(code, "because"))).await;
        // Also for streams: nothing was sent yet.
        for stream in [false, true] {
            let answer = post(&router, CHAT, &chat(json!({"stream": stream}))).await;
            assert_eq!(answer.error(status, kind, None), "because");
            assert_eq!(answer.headers.contains_key("retry-after"), status == 503);
        }
    }
}

#[tokio::test]
async fn requests_that_run_too_long_time_out() {
    let engine = FakeEngine::new(Script::Hang);
    let timeout = Some(std::time::Duration::from_millis(20));
    let router = edge_with(
        &engine,
        EdgeConfig {
            request_timeout: timeout,
            ..EdgeConfig::default()
        },
    )
    .await;
    post(&router, CHAT, &chat(json!({})))
        .await
        .error(504, "TimeoutError", None);
    engine.idle().await;
    // The engine knows too, so that it computes for nobody who has given up.
    assert_eq!(engine.requests()[0].timeout_ms, 20);
}

#[tokio::test]
async fn log_probabilities_have_a_byte_budget() {
    let engine = FakeEngine::new(Script::Say("a", 1));
    let router = edge_with(
        &engine,
        EdgeConfig {
            max_logprob_bytes: 10_000,
            ..EdgeConfig::default()
        },
    )
    .await;
    let body = completion(json!({"logprobs": 20, "max_tokens": 100}));
    post(&router, COMPLETIONS, &body)
        .await
        .error(400, "BadRequestError", Some("logprobs"));
    let body = json!({"prompt": "x".repeat(400), "prompt_logprobs": -1});
    post(&router, COMPLETIONS, &body)
        .await
        .error(400, "BadRequestError", Some("prompt_logprobs"));
    assert!(engine.events().is_empty());
}
