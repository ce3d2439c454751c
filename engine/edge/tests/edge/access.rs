//! Keys: every route but the probes needs one (C73, C74, C78).

use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderValue, Method};
use kvasir_edge::{ApiKey, Edge, EdgeConfig, Route, Scope};
use serde_json::json;

use crate::support::*;

fn config() -> EdgeConfig {
    let api_keys = vec![ApiKey::new("other"), ApiKey::new("AbC-123")];
    EdgeConfig {
        api_keys,
        enable_debug_dump: true,
        ..EdgeConfig::default()
    }
}

fn ask(route: &Route, authorization: Option<&str>) -> http::Request<axum::body::Body> {
    let path = route.path.replace("{*model}", "tiny");
    let body = if route.path.contains("detokenize") {
        json!({"tokens": [104]})
    } else if route.path.contains("chat") {
        chat(json!({}))
    } else {
        completion(json!({}))
    };
    let mut request = request(route.method.clone(), &path, body.to_string());
    if let Some(value) = authorization {
        request
            .headers_mut()
            .insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
    }
    request
}

#[tokio::test]
async fn every_route_that_is_not_public_needs_an_exact_key() {
    let engine = FakeEngine::new(Script::Say("a", 1));
    let router = edge_with(&engine, config()).await;
    for route in Edge::routes() {
        for wrong in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer abc-123"),
            Some("Bearer ABC-123"),
            Some("Bearer AbC-123x"),
            Some("Bearer AbC-12"),
            Some("Bearer AbC-123, other"),
            Some("Basic AbC-123"),
            Some("AbC-123"),
        ] {
            let answer = send(&router, ask(route, wrong)).await;
            if route.scope == Scope::Public {
                assert_eq!(answer.status, 200, "{route:?}");
                continue;
            }
            answer.error(401, "AuthenticationError", None);
            assert_eq!(answer.headers[WWW_AUTHENTICATE], "Bearer", "{route:?}");
        }
    }
    assert!(
        engine.events().is_empty(),
        "a request without a key reached the engine"
    );
}

#[tokio::test]
async fn every_route_opens_with_any_of_the_keys_in_any_case_of_the_scheme() {
    let router = edge_with(&FakeEngine::new(Script::Say("a", 1)), config()).await;
    for route in Edge::routes() {
        for right in ["Bearer AbC-123", "bearer AbC-123", "BEARER other"] {
            let answer = send(&router, ask(route, Some(right))).await;
            assert_eq!(answer.status, 200, "{route:?}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn keys_are_asked_for_before_the_body_is_looked_at() {
    let router = edge_with(&FakeEngine::new(Script::Hang), config()).await;
    let answer = post_text(&router, "/v1/chat/completions", "{").await;
    answer.error(401, "AuthenticationError", None);
}

#[tokio::test]
async fn heads_of_guarded_routes_need_a_key_too() {
    let router = edge_with(&FakeEngine::new(Script::Hang), config()).await;
    assert_eq!(
        send(&router, request(Method::HEAD, "/metrics", "")).await.status,
        401
    );
    assert_eq!(
        send(&router, request(Method::HEAD, "/health", "")).await.status,
        200
    );
}
