//! The audit log: a code of its own for every way in which a request can end, and what was known of it.

use kvasir_client::types::LoadReport;
use serde_json::{Value, json};

use crate::support::*;

/// What a line says.
struct Expected {
    status: u16,
    decision: &'static str,
    reason: &'static str,
    /// Empty if nobody was known.
    tenant: &'static str,
    /// Empty if nobody had said or read it.
    model: &'static str,
}

fn expected(
    status: u16,
    decision: &'static str,
    reason: &'static str,
    (tenant, model): (&'static str, &'static str),
) -> Expected {
    Expected {
        status,
        decision,
        reason,
        tenant,
        model,
    }
}

async fn check(gateway: &TestGateway, id: &str, expected: &Expected) {
    let line = gateway.audited(id).await;
    let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
    let found = (text("decision"), text("reason"), text("tenant"), text("model"));
    let Expected {
        status,
        decision,
        reason,
        tenant,
        model,
    } = expected;
    let wanted = [decision, reason, tenant, model].map(|text| (*text).to_owned());
    assert_eq!([found.0, found.1, found.2, found.3], wanted, "{line}");
    assert_eq!(line["status"], *status, "{line}");
}

/// Sends a request, and compares its answer and its line.
async fn row(gateway: &TestGateway, id: String, request: RequestBuilder, expected: Expected) {
    let answer = Answer::of(request.header("x-request-id", &id)).await;
    assert_eq!(answer.status, expected.status, "{id}: {}", answer.text);
    check(gateway, &id, &expected).await;
}

fn with(max_tokens: u32, field: &str, value: Value) -> Value {
    let mut asked = body("hi", max_tokens);
    asked[field] = value;
    asked
}

fn tenants() -> Vec<(&'static str, String)> {
    let limited = |limits: &str| format!("models: \"*\", limits: {{{limits}}}");
    vec![
        ("a", "models: \"*\", maxTokens: 1900".to_owned()),
        ("b", "models: [other]".to_owned()),
        ("ops", "models: \"*\", scopes: [operations]".to_owned()),
        ("requests", limited("requestsPerMinute: 1")),
        ("tokens", limited("tokensPerMinute: 5")),
        ("input", limited("inputTokensPerMinute: 3")),
        ("output", limited("outputTokensPerMinute: 5")),
        ("one", limited("concurrency: 1")),
    ]
}

async fn gateway(engines: &[std::net::SocketAddr], more: &str) -> TestGateway {
    let options = GatewayOptions {
        tenants: tenants(),
        more: more.to_owned(),
    };
    let gateway = TestGateway::start(engines, options).await;
    gateway.with_engines(engines.len()).await
}

const COMPLETIONS: &str = "/v1/completions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refused_credential_has_its_code_and_shows_the_key_that_it_was_about() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = gateway(&[engine.address], "").await;
    let key = &gateway.keys["a"];
    let id = key.split('_').nth(1).unwrap();
    let ask = || {
        let url = format!("{}{COMPLETIONS}", gateway.url);
        gateway.client.post(url).json(&body("hi", 1))
    };
    let unknown = key.replace(id, "nobody");
    let wrong = format!("{key}x");
    let rows = [
        (ask(), "no_credential", ""),
        (
            ask().header("authorization", "Basic eDp5"),
            "malformed_header",
            "",
        ),
        (
            ask().bearer_auth(key).header("x-api-key", key),
            "malformed_header",
            "",
        ),
        (ask().bearer_auth("opaque"), "malformed_token", ""),
        (ask().bearer_auth(unknown), "unknown_key", ""),
        (ask().bearer_auth(wrong), "wrong_secret", id),
    ];
    for (number, (request, reason, subject)) in rows.into_iter().enumerate() {
        let id = format!("who-{number}");
        let denied = expected(401, "denied", reason, ("", ""));
        row(&gateway, id.clone(), request, denied).await;
        let line = gateway.audited(&id).await;
        assert_eq!(line["subject"].as_str().unwrap_or_default(), subject, "{reason}");
    }
    let request = gateway.request("ops", COMPLETIONS, &body("hi", 1));
    let denied = expected(403, "denied", "missing_scope", ("ops", ""));
    row(&gateway, "scope".to_owned(), request, denied).await;
}

#[expect(clippy::too_many_lines, reason = "a table has one row per case")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refused_request_has_its_code_and_what_was_known_of_it() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = gateway(&[engine.address], "maxBodyBytes: 4096").await;
    let ask = |tenant: &str, asked: &Value| gateway.request(tenant, COMPLETIONS, asked);
    let raw = |content_type: &str, encoding: &str| {
        let url = format!("{}{COMPLETIONS}", gateway.url);
        let request = gateway.client.post(url).bearer_auth(&gateway.keys["a"]);
        let request = request.header("content-type", content_type);
        request.header("content-encoding", encoding)
    };
    let model = |path: &str, tenant: &str| {
        let request = gateway.client.get(format!("{}{path}", gateway.url));
        request.bearer_auth(&gateway.keys[tenant])
    };
    let tokenize = |tenant: &str| gateway.request(tenant, "/tokenize", &json!({"prompt": "hi"}));
    let known = ("a", "fake");
    let denied = || expected(404, "denied", "forbidden_model", ("b", "fake"));
    let rows = [
        (ask("a", &body("hi", 1)), expected(200, "allowed", "ok", known)),
        (
            ask("a", &with(1900, "stop", json!(["a", "e", "i", "o"]))),
            expected(200, "allowed", "ok", known),
        ),
        (
            ask("a", &with(1, "model", json!("nothing"))),
            expected(404, "failed", "unknown_model", ("a", "nothing")),
        ),
        (ask("b", &with(1, "model", json!("fake"))), denied()),
        (ask("b", &body("hi", 1)), denied()),
        (tokenize("b"), denied()),
        (model("/v1/models/fake", "b"), denied()),
        (
            model("/v1/models/nothing", "a"),
            expected(404, "failed", "unknown_model", ("a", "nothing")),
        ),
        (
            ask("a", &body("hi", 1901)),
            expected(400, "denied", "too_many_tokens", known),
        ),
        (
            ask("a", &with(1, "temperature", json!(9))),
            expected(400, "failed", "invalid_value", ("a", "")),
        ),
        (
            ask("a", &with(1, "temperature", json!("hot"))),
            expected(400, "failed", "malformed_request", ("a", "")),
        ),
        (
            ask("a", &body(&"x".repeat(2100), 1)),
            expected(400, "failed", "prompt_too_long", known),
        ),
        (
            ask("a", &body(&"x".repeat(5000), 1)),
            expected(413, "failed", "body_too_large", ("a", "")),
        ),
        (
            raw("text/plain", "identity"),
            expected(400, "failed", "wrong_content_type", ("a", "")),
        ),
        (
            raw("application/json", "gzip"),
            expected(415, "failed", "unsupported_encoding", ("a", "")),
        ),
        (
            ask("a", &with(9, "seed", json!(crate::executor::FAILING_SEED))),
            expected(500, "failed", "internal", known),
        ),
    ];
    for (number, (request, expected)) in rows.into_iter().enumerate() {
        row(&gateway, format!("what-{number}"), request, expected).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_limit_has_its_code() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = gateway(&[engine.address], "").await;
    let per_minute = [
        ("requests", "requests_per_minute"),
        ("tokens", "tokens_per_minute"),
        ("input", "input_tokens_per_minute"),
        ("output", "output_tokens_per_minute"),
    ];
    for (tenant, reason) in per_minute {
        assert_eq!(
            gateway.complete(tenant, body("hi", 3)).await.status,
            200,
            "{tenant}"
        );
        let request = gateway.request(tenant, COMPLETIONS, &body("hi", 3));
        let limited = expected(429, "limited", reason, (tenant, "fake"));
        row(&gateway, reason.to_owned(), request, limited).await;
    }
    let never = expected(429, "limited", "request_exceeds_limit", ("tokens", "fake"));
    let request = gateway.request("tokens", COMPLETIONS, &body("hi", 30));
    row(&gateway, "never".to_owned(), request, never).await;
    let many = with(1, "prompt", json!(["hi", "hi"]));
    let never = expected(400, "limited", "request_exceeds_limit", ("requests", "fake"));
    row(
        &gateway,
        "many".to_owned(),
        gateway.request("requests", COMPLETIONS, &many),
        never,
    )
    .await;
    let limited = expected(429, "limited", "requests_per_minute", ("requests", "fake"));
    let request = gateway.request("requests", "/tokenize", &json!({"prompt": "hi"}));
    row(&gateway, "tokenize".to_owned(), request, limited).await;
    let pace = engine.pace();
    let running = gateway.stream("one", body("hi", 1500)).await.begun().await;
    let limited = expected(429, "limited", "concurrency", ("one", "fake"));
    let request = gateway.request("one", COMPLETIONS, &body("hi", 1));
    row(&gateway, "concurrency".to_owned(), request, limited).await;
    drop((running, pace));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_end_of_a_wait_has_its_code() {
    let nowhere = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let start = async |more: &str| {
        let options = GatewayOptions {
            tenants: tenants(),
            more: more.to_owned(),
        };
        TestGateway::start(&[nowhere()], options).await
    };
    // Where no engine has told, nobody knows a model.
    let failed = |status, reason| expected(status, "failed", reason, ("a", ""));
    let closed = start("").await;
    let request = closed.request("a", COMPLETIONS, &body("hi", 1));
    row(&closed, "none".to_owned(), request, failed(503, "no_engine")).await;
    let short = start("waiting: {holdSeconds: 1}").await;
    let request = short.request("a", COMPLETIONS, &body("hi", 1));
    row(&short, "held".to_owned(), request, failed(503, "hold_ended")).await;

    let full = start("waiting: {holdSeconds: 3600, capacity: 2}").await;
    let wait = |tenant: &str, id: &str| {
        let request = full.request(tenant, COMPLETIONS, &body("hi", 1));
        let waiting = request.header("x-request-id", id).send();
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(waiting))
    };
    let count = async |count: f64| {
        eventually("requests that wait", async || {
            full.metric("kvasir_gateway_waiting_requests").await == count
        })
        .await;
    };
    let first = wait("a", "left");
    count(1.0).await;
    let request = full.request("a", COMPLETIONS, &body("hi", 1));
    let limited = expected(429, "limited", "tenant_queue_full", ("a", ""));
    row(&full, "part".to_owned(), request, limited).await;
    let second = wait("b", "left too");
    count(2.0).await;
    let request = full.request("tokens", COMPLETIONS, &body("hi", 1));
    let refused = expected(503, "failed", "queue_full", ("tokens", ""));
    row(&full, "room".to_owned(), request, refused).await;
    drop((first, second));
    check(&full, "left", &expected(0, "allowed", "client_left", ("a", ""))).await;
}

/// An engine with one place, in front of which a gateway lets requests wait and run for a short time.
async fn narrow(more: &str) -> (TestEngine, TestGateway) {
    let options = EngineOptions {
        max_num_seqs: 1,
        ..EngineOptions::default()
    };
    let engine = TestEngine::start(options).await;
    let gateway = gateway(&[engine.address], more).await;
    (engine, gateway)
}

async fn runs(engine: &TestEngine, is_it: impl Fn(&LoadReport) -> bool) {
    let client = engine.engine.client();
    eventually("the engine's work", async || is_it(&client.load().await.unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_time_that_is_over_has_its_code() {
    let known = ("a", "fake");
    let (engine, gateway) = narrow("waiting: {maxWaitSeconds: 1}").await;
    engine.control.hold();
    engine.control.allow(1);
    let running = gateway
        .stream("a", with(500, "request_id", json!("x")))
        .await
        .begun()
        .await;
    let request = gateway.request("a", COMPLETIONS, &body("hi", 1));
    row(
        &gateway,
        "busy".to_owned(),
        request,
        expected(503, "failed", "wait_ended", known),
    )
    .await;
    engine.control.open();
    drop(running);

    let (engine, gateway) = narrow("requestTimeoutSeconds: 1").await;
    engine.control.hold();
    let late = || expected(504, "failed", "request_timeout", known);
    let request = gateway.request("a", COMPLETIONS, &body("hi", 1));
    row(&gateway, "unbegun".to_owned(), request, late()).await;
    engine.control.open();
    runs(&engine, |load| load.num_running == 0).await;
    let pace = engine.pace();
    let request = gateway.request("a", COMPLETIONS, &body("hi", 1500));
    row(&gateway, "whole".to_owned(), request, late()).await;
    let streamed = gateway.request("a", COMPLETIONS, &with(1500, "stream", json!(true)));
    row(
        &gateway,
        "streamed".to_owned(),
        streamed,
        expected(200, "failed", "request_timeout", known),
    )
    .await;
    drop(pace);
    engine.control.open();

    let (engine, gateway) = narrow("routing: {firstTokenTimeoutSeconds: 1, maxAttempts: 1}").await;
    engine.control.hold();
    let request = gateway.request("a", COMPLETIONS, &body("hi", 1));
    row(
        &gateway,
        "first".to_owned(),
        request,
        expected(504, "failed", "first_token_timeout", known),
    )
    .await;
    engine.control.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_leaves_and_whoever_comes_too_late_has_a_code() {
    let known = ("a", "fake");
    let (engine, gateway) = narrow("").await;
    let _pace = engine.pace();
    let asked = gateway.request("a", COMPLETIONS, &with(1500, "stream", json!(true)));
    let answer = asked.header("x-request-id", "left").send().await.unwrap();
    runs(&engine, |load| load.num_running == 1).await;
    drop(answer);
    check(&gateway, "left", &expected(200, "allowed", "client_left", known)).await;
    let running = gateway.stream("a", body("hi", 1500)).await.begun().await;
    gateway.stop();
    let ready = || gateway.client.get(format!("{}/ready", gateway.url));
    eventually("the end to be near", async || {
        Answer::of(ready()).await.status == 503
    })
    .await;
    let request = gateway.request("a", COMPLETIONS, &body("hi", 1));
    row(
        &gateway,
        "late".to_owned(),
        request,
        expected(503, "failed", "shutting_down", ("a", "")),
    )
    .await;
    drop(running);
}
