//! Keys: every route but the probes needs one of its scope (C73, C74, C78).

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

/// What each kind of route answers to each credential.
struct Rule {
    api: &'static [&'static str],
    admin: &'static [&'static str],
    /// For public, inference and operations, and admin routes.
    answers: &'static [(Option<&'static str>, [u16; 3])],
}

/// Every way to have keys. Absent admin routes answer everybody alike.
const RULES: [Rule; 4] = [
    Rule {
        api: &[],
        admin: &[],
        answers: &[(None, [200, 200, 200]), (Some("Bearer x"), [200, 200, 200])],
    },
    Rule {
        api: &["other", "AbC-123"],
        admin: &[],
        answers: &[
            (None, [200, 401, 404]),
            (Some("Bearer abc-123"), [200, 401, 404]),
            (Some("Bearer AbC-123"), [200, 200, 404]),
            (Some("Bearer other"), [200, 200, 404]),
        ],
    },
    Rule {
        api: &["other", "AbC-123"],
        admin: &["Ad-1", "Ad-2"],
        answers: &[
            (None, [200, 401, 401]),
            (Some(""), [200, 401, 401]),
            (Some("Bearer"), [200, 401, 401]),
            (Some("Bearer "), [200, 401, 401]),
            (Some("Bearer abc-123"), [200, 401, 401]),
            (Some("Bearer ABC-123"), [200, 401, 401]),
            (Some("Bearer AbC-123x"), [200, 401, 401]),
            (Some("Bearer AbC-12"), [200, 401, 401]),
            (Some("Bearer AbC-123, other"), [200, 401, 401]),
            (Some("Basic AbC-123"), [200, 401, 401]),
            (Some("AbC-123"), [200, 401, 401]),
            (Some("Basic Ad-1"), [200, 401, 401]),
            (Some("Bearer ad-1"), [200, 401, 401]),
            (Some("Bearer Ad-1, AbC-123"), [200, 401, 401]),
            (Some("Bearer AbC-123"), [200, 200, 403]),
            (Some("bearer AbC-123"), [200, 200, 403]),
            (Some("BEARER other"), [200, 200, 403]),
            (Some("Bearer Ad-1"), [200, 403, 200]),
            (Some("bearer Ad-2"), [200, 403, 200]),
        ],
    },
    Rule {
        api: &[],
        admin: &["Ad-1"],
        answers: &[
            (None, [200, 200, 401]),
            (Some("Bearer x"), [200, 200, 401]),
            (Some("Bearer Ad-1"), [200, 200, 200]),
        ],
    },
];

#[tokio::test]
async fn every_route_answers_each_credential_by_its_scope() {
    for rule in &RULES {
        let keys = |keys: &[&str]| keys.iter().copied().map(ApiKey::new).collect();
        let engine = FakeEngine::new(Script::Say("a", 1));
        let config = EdgeConfig {
            api_keys: keys(rule.api),
            admin_api_keys: keys(rule.admin),
            enable_debug_dump: true,
            ..EdgeConfig::default()
        };
        let router = edge_with(&engine, config).await;
        for (credential, statuses) in rule.answers {
            let heard = engine.events().len();
            for route in Edge::routes() {
                let status = match route.scope {
                    Scope::Public => statuses[0],
                    Scope::Inference | Scope::Operations => statuses[1],
                    Scope::Admin => statuses[2],
                };
                let answer = send(&router, ask(route, *credential)).await;
                let case = format!("{:?} {:?} {credential:?} {route:?}", rule.api, rule.admin);
                match status {
                    401 => {
                        answer.error(401, "AuthenticationError", None);
                        assert_eq!(answer.headers[WWW_AUTHENTICATE], "Bearer", "{case}");
                    }
                    403 => drop(answer.error(403, "PermissionDeniedError", None)),
                    _ => assert_eq!(answer.status, status, "{case}: {}", answer.text),
                }
            }
            if statuses[1] != 200 {
                assert_eq!(engine.events().len(), heard, "{credential:?} reached the engine");
            }
        }
    }
}

#[tokio::test]
async fn an_admin_route_that_nobody_may_use_is_not_told_from_one_that_does_not_exist() {
    let router = edge_with(&FakeEngine::new(Script::Hang), config()).await;
    let known = send(&router, request(Method::GET, "/debug/dump", "")).await;
    let unknown = send(&router, request(Method::GET, "/debug/dumb", "")).await;
    assert_eq!(known.status, 404);
    assert_eq!(known.text.replace("dump", "dumb"), unknown.text);
    let mut info = request(Method::GET, "/server_info", "");
    info.headers_mut()
        .insert(AUTHORIZATION, HeaderValue::from_static("Bearer other"));
    assert!(!send(&router, info).await.text.contains("/debug/dump"));
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
