//! Who may do what: every route, every kind of credential, every scope.

use http::Method;
use kvasir_edge::{Edge, Route, Scope};
use serde_json::json;

use crate::support::*;

fn options() -> GatewayOptions {
    let of = |scopes: &str| format!("models: \"*\", scopes: [{scopes}]");
    GatewayOptions {
        tenants: vec![
            ("nobody", of("")),
            ("inference", of("inference")),
            ("operations", of("operations")),
            ("admin", of("admin")),
        ],
        ..GatewayOptions::default()
    }
}

fn ask(gateway: &TestGateway, route: &Route) -> RequestBuilder {
    let path = route.path.replace("{*model}", "fake");
    let request = gateway
        .client
        .request(route.method.clone(), format!("{}{path}", gateway.url));
    if route.method != Method::POST {
        return request;
    }
    request.json(&if path.contains("detokenize") {
        json!({"tokens": [104]})
    } else if path.contains("chat") {
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    } else {
        body("hi", 2)
    })
}

/// Every way in which a request can come with a credential that isn't good, and how it's marked.
fn refused(request: RequestBuilder, key: &str, kind: usize) -> Option<RequestBuilder> {
    let (head, secret) = key.rsplit_once('_').unwrap();
    Some(match kind {
        0 => request,
        1 => request.bearer_auth(key.to_uppercase()),
        2 => request.bearer_auth(format!(
            "{head}_{}",
            secret.replace(|c: char| c.is_ascii_digit(), "a")
        )),
        3 => request.bearer_auth(format!("{key}x")),
        4 => request.header("authorization", format!("Basic {key}")),
        5 => request.bearer_auth(key).header("x-api-key", key),
        6 => request.bearer_auth("kv_unknown_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        7 => request.bearer_auth("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."),
        8 => request
            .header("x-forwarded-user", "inference")
            .header("x-forwarded-client-cert", "By=inference"),
        9 => request
            .header("x-kvasir-tenant", "inference")
            .header("cookie", format!("key={key}")),
        _ => return None,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_opens_for_its_scope_alone_and_for_no_bad_credential() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], options())
        .await
        .with_engines(1)
        .await;
    let served = Edge::routes().iter().filter(|route| route.path != "/debug/dump");
    for route in served {
        let is_public = route.scope == Scope::Public;
        for kind in 0.. {
            let Some(request) = refused(ask(&gateway, route), &gateway.keys["inference"], kind) else {
                break;
            };
            let status = Answer::of(request).await.status;
            assert_eq!(
                status,
                if is_public { 200 } else { 401 },
                "{route:?}, kind {kind}"
            );
        }
        for (tenant, key) in &gateway.keys {
            let scope = match route.scope {
                Scope::Public => tenant,
                Scope::Inference => "inference",
                Scope::Operations => "operations",
                Scope::Admin => "admin",
            };
            let expected = if *tenant == scope { 200 } else { 403 };
            let answer = Answer::of(ask(&gateway, route).bearer_auth(key)).await;
            assert_eq!(answer.status, expected, "{route:?} for {tenant}: {}", answer.text);
            let answer = Answer::of(ask(&gateway, route).header("x-api-key", key)).await;
            assert_eq!(answer.status, expected, "{route:?} for {tenant} by x-api-key");
        }
    }
    let absent = Answer::of(
        gateway
            .client
            .get(format!("{}/debug/dump", gateway.url))
            .bearer_auth(&gateway.keys["admin"]),
    )
    .await;
    assert_eq!(absent.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_of_probes_shows_probes_and_figures_only() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], options())
        .await
        .with_engines(1)
        .await;
    for route in Edge::routes().iter().filter(|route| route.path != "/debug/dump") {
        let path = route.path.replace("{*model}", "fake");
        let url = format!("{}{path}", gateway.operations);
        let request = gateway.client.request(route.method.clone(), url);
        let answer = Answer::of(request.bearer_auth(&gateway.keys["inference"])).await;
        let is_shown = ["/health", "/ready", "/metrics"].contains(&route.path);
        assert_eq!(answer.status, if is_shown { 200 } else { 404 }, "{route:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_a_tenant_may_not_use_does_not_exist_for_it() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let options = GatewayOptions {
        tenants: vec![
            ("a", "models: \"*\"".to_owned()),
            ("b", "models: [other]".to_owned()),
        ],
        ..GatewayOptions::default()
    };
    let gateway = TestGateway::start(&[engine.address], options)
        .await
        .with_engines(1)
        .await;
    let mut named = body("hi", 1);
    named["model"] = json!("fake");
    let mut unknown = named.clone();
    unknown["model"] = json!("no-such-model");
    assert_eq!(gateway.complete("a", named.clone()).await.status, 200);
    for refused in [named, body("hi", 1)] {
        assert_eq!(gateway.complete("b", refused).await.status, 404);
    }
    assert_eq!(gateway.complete("a", unknown).await.status, 404);
    let list = async |tenant: &str| {
        let request = gateway.client.get(format!("{}/v1/models", gateway.url));
        Answer::of(request.bearer_auth(&gateway.keys[tenant]))
            .await
            .json()["data"]
            .clone()
    };
    assert_eq!(list("a").await[0]["id"], "fake");
    assert_eq!(list("b").await, json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_log_says_who_what_and_why_and_never_what_was_said() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    let secret = "a text that nobody else should read";
    let asked = gateway
        .request("a", "/v1/completions", &body(secret, 3))
        .header("x-request-id", "good");
    assert_eq!(Answer::of(asked).await.status, 200);
    let url = format!("{}/v1/completions", gateway.url);
    let denied = gateway
        .client
        .post(url)
        .bearer_auth("kv_x_wrong")
        .header("x-request-id", "bad");
    assert_eq!(Answer::of(denied.json(&body(secret, 3))).await.status, 401);
    let line = gateway.audited("good").await;
    for (field, expected) in [
        ("tenant", json!("a")),
        ("method", json!("api_key")),
        ("route", json!("/v1/completions")),
        ("model", json!("fake")),
        ("decision", json!("allowed")),
        ("reason", json!("ok")),
        ("status", json!(200)),
        ("input_tokens", json!(secret.len())),
        ("output_tokens", json!(3)),
        ("attempts", json!(1)),
    ] {
        assert_eq!(line[field], expected, "{field}");
    }
    let line = gateway.audited("bad").await;
    assert_eq!(
        (&line["decision"], &line["tenant"]),
        (&json!("denied"), &serde_json::Value::Null)
    );
    let log = std::fs::read_to_string(gateway.folder.path().join("audit")).unwrap();
    let key_secret = gateway.keys["a"].rsplit('_').next().unwrap();
    for hidden in [secret, key_secret, "kv_x_wrong"] {
        assert!(!log.contains(hidden), "{hidden} is in {log}");
    }
}
