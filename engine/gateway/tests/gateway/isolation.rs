//! Tenants don't see each other.

use serde_json::json;

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_of_one_tenant_gives_another_no_cached_tokens() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    let prompt = "the same forty tokens, whoever asks them";
    assert_eq!(prompt.len(), 40);
    let cached = async |tenant: &str, salt: Option<&str>| {
        let mut body = body(prompt, 2);
        if let Some(salt) = salt {
            body["cache_salt"] = json!(salt);
        }
        let before = engine.control.kv_writes();
        let answer = gateway.complete(tenant, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        (answer.cached_tokens(), engine.control.kv_writes() - before)
    };
    let fresh = cached("a", None).await;
    assert_eq!(fresh.0, 0);
    assert_eq!(cached("a", None).await.0, 36);
    // As many cached and computed as for a prompt that nobody has asked before.
    assert_eq!(cached("b", None).await, fresh);
    assert_eq!(cached("b", None).await.0, 36);
    // A client's own salt divides its tenant's cache and opens nobody else's, also if it's another tenant's name.
    assert_eq!(cached("b", Some("a")).await, fresh);
    assert_eq!(cached("a", Some("a")).await, fresh);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_named_like_another_tenants_leaves_that_one_alone() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    let _pace = engine.pace();
    let ask = async |tenant: &str| {
        let mut body = body("hello", 300);
        body["stream"] = json!(true);
        let request = gateway
            .request(tenant, "/v1/completions", &body)
            .header("x-request-id", "same");
        request.send().await.unwrap()
    };
    let mine = ask("a").await;
    let theirs = ask("b").await;
    assert_eq!(
        (mine.status(), theirs.status()),
        (200.try_into().unwrap(), 200.try_into().unwrap())
    );
    // Leaving ends their own request only.
    drop(theirs);
    let text = mine.text().await.unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(!text.contains("error"), "{text}");
    for (method, path) in [
        ("GET", "/v1/requests/same"),
        ("DELETE", "/v1/requests/same"),
        ("POST", "/abort"),
    ] {
        let request = gateway
            .client
            .request(method.parse().unwrap(), format!("{}{path}", gateway.url));
        assert_eq!(
            Answer::of(request.bearer_auth(&gateway.keys["b"])).await.status,
            404
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_and_an_id_reach_the_engine_and_identity_headers_of_clients_do_nothing() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    let request = gateway.request("a", "/v1/completions", &body("hi", 1));
    let request = request
        .header("x-request-id", "mine")
        .header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
        .header("x-forwarded-for", "192.0.2.1")
        .header("x-forwarded-user", "b")
        .header("x-remote-user", "b");
    let answer = Answer::of(request).await;
    assert_eq!((answer.status, answer.header("x-request-id")), (200, "mine"));
    assert_eq!(answer.json()["id"], "cmpl-mine");
    let line = gateway.audited("mine").await;
    assert_eq!(line["tenant"], "a");
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
}
