//! Key sets, reviews and discovery against scripted servers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use std::time::Duration;

use kvasir_config::gateway::{DnsConfig, EndpointSlicesConfig, EnginesConfig, JwksConfig, JwtConfig};
use kvasir_gateway::api_server::ApiServer;
use kvasir_gateway::discovery::{Discovery, TargetState, Targets};
use kvasir_gateway::jwks::JwksFollower;
use kvasir_gateway::token_review::{ReviewError, TokenReviewer};
use serde_json::{Value, json};
use support::{DEADLINE, Reply, Scripted};
use tempfile::TempDir;

/// An issuer whose keys are at a URL.
fn issuer(url: Option<String>, file: Option<std::path::PathBuf>) -> JwtConfig {
    JwtConfig {
        issuer: "https://issuer".to_owned(),
        audiences: vec!["kvasir".to_owned()],
        jwks: JwksConfig {
            url,
            authorities: None,
            allow_plain_http: true,
            file,
            refresh_seconds: 300,
        },
        skew_seconds: 0,
        tenant: Some("team-a".to_owned()),
        claim: None,
    }
}

fn key_set(ids: &[&str]) -> String {
    let key = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    let keys: Vec<Value> = ids
        .iter()
        .map(|id| json!({"kty": "OKP", "crv": "Ed25519", "x": key, "kid": id}))
        .collect();
    json!({"keys": keys}).to_string()
}

async fn sets_until(follower: &JwksFollower, num_keys: usize) {
    let mut sets = follower.sets();
    let there = sets.wait_for(|sets| sets.get(&0).is_some_and(|keys| keys.len() == num_keys));
    tokio::time::timeout(DEADLINE, there).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_key_set_is_fetched_and_an_unknown_key_fetches_it_again_once_per_floor() {
    let server = Scripted::start(|number, _| Reply::json(&key_set(&["a", "b", "c"][..number.min(3)]))).await;
    let follower = JwksFollower::start(&[issuer(Some(server.url("/keys")), None)]).unwrap();
    sets_until(&follower, 1).await;
    tokio::time::pause();
    for _ in 0..100 {
        follower.refetch().await;
    }
    assert_eq!(server.num_requests(), 1);
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    futures::future::join_all((0..50).map(|_| follower.refetch())).await;
    sets_until(&follower, 2).await;
    assert_eq!(server.num_requests(), 2);
    assert_eq!(server.requests()[1].path, "/keys");
}

#[tokio::test]
async fn what_is_no_key_set_changes_nothing_and_is_counted() {
    for bad in [
        Reply::json("{}"),
        Reply::json("not json"),
        Reply::json(&"x".repeat(1 << 20)),
        Reply::status(500),
        Reply {
            status: 302,
            headers: vec![("location", "/elsewhere".to_owned())],
            ..Reply::json("")
        },
        Reply::cut_off(),
    ] {
        let server = Scripted::start(move |_, request| match request.path.as_str() {
            "/elsewhere" => Reply::json(&key_set(&["evil"])),
            _ => bad.clone(),
        })
        .await;
        let follower = JwksFollower::start(&[issuer(Some(server.url("/keys")), None)]).unwrap();
        let counted = async {
            while follower.num_failures().all(|(_, num_failures)| num_failures == 0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, counted).await.unwrap();
        assert!(follower.sets().borrow().is_empty());
        assert!(server.requests().iter().all(|request| request.path == "/keys"));
    }
}

#[tokio::test]
async fn an_issuer_over_tls_must_prove_its_name() {
    let (server, authority) = Scripted::start_tls(|_, _| Reply::json(&key_set(&["a"]))).await;
    let folder = TempDir::new().unwrap();
    let mut config = issuer(Some(server.url("/keys")), None);
    for (pem, is_good) in [(authority, true), (support::authority().0, false)] {
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, pem).unwrap();
        config.jwks.authorities = Some(file);
        let follower = JwksFollower::start(std::slice::from_ref(&config)).unwrap();
        if is_good {
            sets_until(&follower, 1).await;
        } else {
            let failed = async {
                while follower.num_failures().all(|(_, num_failures)| num_failures == 0) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(DEADLINE, failed).await.unwrap();
            assert!(follower.sets().borrow().is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_set_in_a_file_is_read_again_when_it_changes() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, key_set(&["a"])).unwrap();
    let follower = JwksFollower::start(&[issuer(None, Some(file.clone()))]).unwrap();
    sets_until(&follower, 1).await;
    std::fs::write(&file, "broken").unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(follower.sets().borrow()[&0].len(), 1);
    std::fs::write(&file, key_set(&["b", "c"])).unwrap();
    sets_until(&follower, 2).await;
}

fn api_server(server: &Scripted, folder: &TempDir) -> ApiServer {
    let token = folder.path().join("token");
    std::fs::write(&token, "our-own-token\n").unwrap();
    ApiServer::new(&server.url(""), None, token).unwrap()
}

fn reviewed(user: &str) -> Reply {
    Reply::json(
        &json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "status": {"authenticated": true, "user": {"username": user, "groups": ["g"]}, "audiences": ["kvasir"]},
        })
        .to_string(),
    )
}

#[tokio::test]
async fn a_token_is_reviewed_with_our_audience_and_kept_for_a_short_time() {
    let server = Scripted::start(|_, _| reviewed("system:serviceaccount:a:b")).await;
    let folder = TempDir::new().unwrap();
    let reviewer = TokenReviewer::new(api_server(&server, &folder), "kvasir".to_owned());
    let all = (0..20).map(|_| reviewer.review("their-token"));
    for facts in futures::future::join_all(all).await {
        assert_eq!(facts.unwrap().username, "system:serviceaccount:a:b");
    }
    let asked = server.requests();
    // Those that came while the first one was asked for may have asked too, but no more than could at one time.
    assert!(asked.len() <= 16, "{}", asked.len());
    assert_eq!(
        (asked[0].method.as_str(), asked[0].path.as_str()),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    );
    assert_eq!(asked[0].header("authorization"), Some("Bearer our-own-token"));
    let question: Value = serde_json::from_slice(&asked[0].body).unwrap();
    assert_eq!(question["kind"], "TokenReview");
    assert_eq!(
        question["spec"],
        json!({"token": "their-token", "audiences": ["kvasir"]})
    );
    let num_asked = server.num_requests();
    reviewer.review("their-token").await.unwrap();
    assert_eq!(server.num_requests(), num_asked);
    reviewer.review("another").await.unwrap();
    assert_eq!(server.num_requests(), num_asked + 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    reviewer.review("their-token").await.unwrap();
    assert_eq!(server.num_requests(), num_asked + 2);
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_a_failure_is_none() {
    let server = Scripted::start(|number, _| match number {
        1 => Reply::json(r#"{"status": {"user": {}, "error": "invalid bearer token"}}"#),
        2 => Reply::status(500),
        3 => Reply::json("[]"),
        _ => reviewed("u"),
    })
    .await;
    let folder = TempDir::new().unwrap();
    let reviewer = TokenReviewer::new(api_server(&server, &folder), "kvasir".to_owned());
    assert!(!reviewer.review("bad").await.unwrap().is_authenticated);
    assert!(!reviewer.review("bad").await.unwrap().is_authenticated);
    for _ in 0..2 {
        assert!(matches!(
            reviewer.review("good").await,
            Err(ReviewError::Server(_))
        ));
    }
    assert!(reviewer.review("good").await.unwrap().is_authenticated);
    assert_eq!(server.num_requests(), 4);
    assert!(
        !reviewer
            .review(&"x".repeat(100_000))
            .await
            .unwrap()
            .is_authenticated
    );
    assert_eq!(server.num_requests(), 4);
    std::fs::remove_file(folder.path().join("token")).unwrap();
    assert!(reviewer.review("other").await.is_err());
}

fn slice(name: &str, version: u32, address: &str, conditions: &Value) -> Value {
    json!({
        "metadata": {"name": name, "resourceVersion": version.to_string(), "labels": {"kvasir.dev/revision": "r1"}},
        "endpoints": [{
            "addresses": [address], "conditions": conditions,
            "targetRef": {"kind": "Pod", "name": format!("pod-{address}"), "uid": format!("uid-{address}")},
        }],
    })
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

async fn targets_until(discovery: &Discovery, is_so: impl FnMut(&Targets) -> bool) -> Targets {
    let mut targets = discovery.targets();
    let there = targets.wait_for(is_so);
    tokio::time::timeout(DEADLINE, there)
        .await
        .unwrap()
        .unwrap()
        .clone()
}

/// A list, a watch that ends, one that is told that it is too old, and a list and a watch again.
async fn changing_endpoints() -> Scripted {
    let ready = json!({"ready": true, "serving": true});
    let draining = json!({"ready": false, "serving": true, "terminating": true});
    Scripted::start(move |number, request| match number {
        1 => Reply::json(
            &json!({"metadata": {"resourceVersion": "10"}, "items": [slice("a", 9, "10.0.0.1", &ready)]})
                .to_string(),
        ),
        2 => {
            assert!(
                request.path.contains("watch=1") && request.path.contains("resourceVersion=10"),
                "{}",
                request.path
            );
            Reply::json(
                &[
                    event("ADDED", &slice("b", 11, "10.0.0.2", &ready)),
                    event("BOOKMARK", &json!({"metadata": {"resourceVersion": "12"}})),
                    event("MODIFIED", &slice("a", 13, "10.0.0.1", &draining)),
                ]
                .concat(),
            )
        }
        3 => {
            assert!(request.path.contains("resourceVersion=13"), "{}", request.path);
            Reply::json(&event("ERROR", &json!({"kind": "Status", "code": 410})))
        }
        4 => Reply::json(
            &json!({"metadata": {"resourceVersion": "20"}, "items": [slice("c", 19, "10.0.0.3", &ready)]})
                .to_string(),
        ),
        5 => Reply::json(&event("DELETED", &slice("c", 21, "10.0.0.3", &ready))),
        _ => Reply::stuck(),
    })
    .await
}

#[tokio::test]
async fn engines_are_listed_watched_and_listed_again_when_the_watch_is_too_old() {
    let server = changing_endpoints().await;
    let folder = TempDir::new().unwrap();
    let config = EnginesConfig {
        endpoint_slices: Some(EndpointSlicesConfig {
            namespace: "models".to_owned(),
            service: "chat-engines".to_owned(),
            port: 50_051.try_into().unwrap(),
        }),
        ..EnginesConfig::default()
    };
    let discovery = Discovery::start(&config, || Ok(api_server(&server, &folder))).unwrap();
    assert!(!discovery.targets().borrow().is_known);
    let targets = targets_until(&discovery, |targets| targets.all.len() == 2).await;
    assert_eq!(targets.all[1].pod_uid.as_deref(), Some("uid-10.0.0.2"));
    targets_until(&discovery, |targets| {
        targets
            .all
            .iter()
            .any(|target| target.state == TargetState::Draining)
    })
    .await;
    targets_until(&discovery, |targets| {
        targets.all.len() == 1 && targets.all[0].address.to_string() == "10.0.0.3:50051"
    })
    .await;
    targets_until(&discovery, |targets| targets.all.is_empty() && targets.is_known).await;
    let first = &server.requests()[0];
    assert_eq!(
        first.path,
        "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dchat-engines"
    );
    assert_eq!(first.header("authorization"), Some("Bearer our-own-token"));
}

#[tokio::test]
async fn an_api_server_that_fails_changes_nothing() {
    let ready = json!({"ready": true});
    let server = Scripted::start(move |number, _| match number {
        1 => Reply::json(
            &json!({"metadata": {"resourceVersion": "1"}, "items": [slice("a", 1, "10.0.0.1", &ready)]})
                .to_string(),
        ),
        2 => Reply::status(500),
        3 => Reply::json("garbage"),
        4 => Reply::status(403),
        _ => Reply::cut_off(),
    })
    .await;
    let folder = TempDir::new().unwrap();
    let config = EnginesConfig {
        endpoint_slices: Some(EndpointSlicesConfig {
            namespace: "a".to_owned(),
            service: "b".to_owned(),
            port: 1.try_into().unwrap(),
        }),
        ..EnginesConfig::default()
    };
    let discovery = Discovery::start(&config, || Ok(api_server(&server, &folder))).unwrap();
    targets_until(&discovery, |targets| targets.all.len() == 1).await;
    let asked = async {
        while server.num_requests() < 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, asked).await.unwrap();
    assert_eq!(discovery.targets().borrow().all.len(), 1);
}

#[tokio::test]
async fn a_name_is_resolved_to_all_its_addresses() {
    let config = EnginesConfig {
        dns: Some(DnsConfig {
            name: "localhost".to_owned(),
            port: 7.try_into().unwrap(),
            interval_seconds: 1,
        }),
        ..EnginesConfig::default()
    };
    let discovery = Discovery::start(&config, || panic!("no API server is needed")).unwrap();
    let targets = targets_until(&discovery, |targets| targets.is_known).await;
    assert!(
        targets
            .all
            .iter()
            .all(|target| target.address.ip().is_loopback() && target.address.port() == 7)
    );
    assert!(!targets.all.is_empty());
}
