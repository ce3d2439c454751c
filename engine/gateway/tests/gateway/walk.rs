//! Every route, every kind of credential, good and bad, and every scope, over TLS and with mutual TLS to the engine.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use kvasir_edge::{Edge, Route, Scope};
use kvasir_gateway::new_key;
use kvasir_gateway_core::names::TenantName;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use crate::scripted::{Reply, Scripted};
use crate::secure::*;
use crate::support::*;

/// What clients' certificates carry.
const KNOWN: &str = "client.example";
const UNKNOWN: &str = "stranger.example";
const SCOPES: [&str; 5] = [
    "",
    "inference",
    "operations",
    "admin",
    "inference, operations, admin",
];

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// An issuer of tokens, with a key of each kind.
struct Issuer {
    ed25519: Ed25519KeyPair,
    p256: EcdsaKeyPair,
    rsa: Value,
    rs256_token: String,
}

impl Issuer {
    fn new(seed: u8) -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let file: Value =
            serde_json::from_str(include_str!("../../../gateway-core/tests/rs256.json")).unwrap();
        Self {
            ed25519: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap(),
            p256: EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap(),
            rsa: file["jwk"].clone(),
            rs256_token: file["token"].as_str().unwrap().to_owned(),
        }
    }

    fn key_set(&self) -> String {
        let point = self.p256.public_key().as_ref();
        json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "e1", "x": b64(self.ed25519.public_key())},
            {"kty": "EC", "crv": "P-256", "kid": "p1", "x": b64(&point[1..33]), "y": b64(&point[33..])},
            self.rsa,
        ]})
        .to_string()
    }

    fn sign(&self, algorithm: &str, kid: &str, claims: &Value) -> String {
        let header = json!({"alg": algorithm, "kid": kid}).to_string();
        let message = format!("{}.{}", b64(header), b64(claims.to_string()));
        let signature = match algorithm {
            "ES256" => {
                let signed = self.p256.sign(&SystemRandom::new(), message.as_bytes());
                signed.unwrap().as_ref().to_vec()
            }
            _ => self.ed25519.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", b64(signature))
    }
}

fn claims(expires: i64) -> Value {
    json!({"iss": "https://issuer.test", "aud": "kvasir", "sub": "robot", "exp": expires, "team": "blue"})
}

const FAR: i64 = 2_000_000_000;
const PAST: i64 = 1_000_000_000;

/// How a request shows who sends it.
#[derive(Clone, Default)]
struct Shown {
    headers: Vec<(&'static str, String)>,
    certificate: Option<&'static str>,
}

fn bearer(token: impl Into<String>) -> Shown {
    Shown {
        headers: vec![("authorization", format!("Bearer {}", token.into()))],
        certificate: None,
    }
}

fn certificate(name: &'static str) -> Shown {
    Shown {
        headers: Vec::new(),
        certificate: Some(name),
    }
}

/// A key with another secret.
fn spoiled(text: &str) -> String {
    let last = if text.ends_with('a') { "b" } else { "a" };
    format!("{}{last}", &text[..text.len() - 1])
}

fn by_header(key: impl Into<String>) -> Shown {
    Shown {
        headers: vec![("x-api-key", key.into())],
        certificate: None,
    }
}

/// Good ones.
fn good(issuer: &Issuer, key: &str) -> BTreeMap<&'static str, Shown> {
    BTreeMap::from([
        ("key", bearer(key)),
        ("key in its own header", by_header(key)),
        ("RS256", bearer(issuer.rs256_token.clone())),
        ("ES256", bearer(issuer.sign("ES256", "p1", &claims(FAR)))),
        ("EdDSA", bearer(issuer.sign("EdDSA", "e1", &claims(FAR)))),
        ("reviewed", bearer("known-to-the-cluster")),
        ("certificate", certificate(KNOWN)),
    ])
}

/// One of each kind that isn't good, and what only looks like one.
fn bad(issuer: &Issuer, key: &str) -> BTreeMap<&'static str, Shown> {
    let other = Issuer::new(2);
    let (head, signature) = issuer.rs256_token.rsplit_once('.').unwrap();
    let cut = format!("{head}.{}A{}", &signature[..10], &signature[11..]);
    let with = |change: fn(&mut Value)| {
        let mut changed = claims(FAR);
        change(&mut changed);
        bearer(issuer.sign("EdDSA", "e1", &changed))
    };
    BTreeMap::from([
        ("wrong key", bearer(spoiled(key))),
        ("wrong key in its own header", by_header(spoiled(key))),
        ("RS256 changed", bearer(cut)),
        (
            "ES256 of another",
            bearer(other.sign("ES256", "p1", &claims(FAR))),
        ),
        (
            "EdDSA of another",
            bearer(other.sign("EdDSA", "e1", &claims(FAR))),
        ),
        ("ES256 as EdDSA", bearer(issuer.sign("EdDSA", "p1", &claims(FAR)))),
        ("expired", bearer(issuer.sign("EdDSA", "e1", &claims(PAST)))),
        ("another audience", with(|claims| claims["aud"] = json!("other"))),
        (
            "another issuer",
            with(|claims| claims["iss"] = json!("https://evil")),
        ),
        ("another team", with(|claims| claims["team"] = json!("red"))),
        ("unknown to the cluster", bearer("unknown-to-the-cluster")),
        ("another user of the cluster", bearer("another-user")),
        ("unknown certificate", certificate(UNKNOWN)),
        (
            "two credentials",
            Shown {
                headers: vec![
                    ("authorization", format!("Bearer {key}")),
                    ("x-api-key", key.to_owned()),
                ],
                certificate: None,
            },
        ),
        (
            "identity from outside",
            Shown {
                headers: vec![
                    ("x-forwarded-client-cert", format!("DNS={KNOWN}")),
                    ("x-forwarded-user", "robot".to_owned()),
                ],
                certificate: None,
            },
        ),
    ])
}

/// An API server that knows two users.
async fn api_server() -> (Scripted, String) {
    Scripted::start_tls(|_, asked| {
        let question: Value = serde_json::from_slice(&asked.body).unwrap();
        let user = match question["spec"]["token"].as_str() {
            Some("known-to-the-cluster") => "system:serviceaccount:apps:robot",
            Some("another-user") => "system:serviceaccount:other:robot",
            _ => return Reply::json(r#"{"status": {"user": {}, "error": "unknown"}}"#),
        };
        Reply::json(
            &json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                "status": {"authenticated": true, "user": {"username": user, "groups": []}, "audiences": ["kvasir"]},
            })
            .to_string(),
        )
    })
    .await
}

/// The part of the file about who may come: every credential is the one tenant's.
fn access(pki: &Pki, api_server: &Scripted, scopes: &str, is_open: bool) -> String {
    let path = |name: &str| pki.path(name, "file").display().to_string();
    let anonymous = if is_open {
        "\n  anonymous: {serveEverybodyAs: t}"
    } else {
        ""
    };
    format!(
        "auth:\n  apiKeys: {{files: [{}]}}\n  jwt: [{{issuer: \"https://issuer.test\", audiences: [kvasir], jwks: {{file: {}}}, \
         claim: {{name: team, tenants: {{blue: t}}}}}}]\n  tokenReview: {{audience: kvasir, rules: [{{namespace: apps, tenant: t}}], \
         apiServer: {{url: \"{}\", authorities: {}, tokenFile: {}}}}}\n  certificates: [{{name: \"dns:{KNOWN}\", tenant: t}}]{anonymous}\n\
         tenants: [{{name: t, models: \"*\", scopes: [{scopes}]}}]",
        path("keys"),
        path("jwks"),
        api_server.url(""),
        path("api-ca"),
        path("api-token"),
    )
}

fn request(route: &Route, shown: &Shown) -> Request<Full<Bytes>> {
    let path = route.path.replace("{*model}", "fake");
    let body = if route.method != Method::POST {
        Value::Null
    } else if path.contains("detokenize") {
        json!({"tokens": [104]})
    } else if path.contains("chat") {
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    } else {
        body("hi", 2)
    };
    let text = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let mut request = Request::builder()
        .method(route.method.clone())
        .uri(path)
        .header("host", "chat.example")
        .header("content-type", "application/json")
        .body(Full::from(text))
        .unwrap();
    for (name, value) in &shown.headers {
        let value = HeaderValue::from_str(value).unwrap();
        request.headers_mut().append(HeaderName::from_static(name), value);
    }
    request
}

/// The walk through one gateway whose only tenant has these scopes.
struct Walk<'a> {
    pki: &'a Pki,
    gateway: SecureGateway,
    scopes: &'static str,
}

impl Walk<'_> {
    async fn expect(&self, what: &str, shown: &Shown, expected: impl Fn(&Route, bool) -> u16) {
        let client = self.pki.client(shown.certificate);
        for route in Edge::routes().iter().filter(|route| route.path != "/debug/dump") {
            let is_allowed = match route.scope {
                Scope::Public => true,
                Scope::Inference => self.scopes.contains("inference"),
                Scope::Operations => self.scopes.contains("operations"),
                Scope::Admin => self.scopes.contains("admin"),
            };
            let answer = self.gateway.ask(&client, request(route, shown)).await;
            let (status, text) = answer.unwrap();
            let expected = expected(route, is_allowed);
            let scopes = self.scopes;
            assert_eq!(status, expected, "{what} with [{scopes}] at {route:?}: {text}");
        }
    }
}

fn as_tenant(_: &Route, is_allowed: bool) -> u16 {
    if is_allowed { 200 } else { 403 }
}

fn as_nobody(route: &Route, _: bool) -> u16 {
    if route.scope == Scope::Public { 200 } else { 401 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_answers_every_credential_by_its_scope() {
    let (pki, issuer) = (Pki::new(), Issuer::new(1));
    pki.issue(KNOWN, KNOWN);
    pki.issue(UNKNOWN, UNKNOWN);
    let key = new_key(TenantName::new("t").unwrap(), None);
    let (server, server_ca) = api_server().await;
    for (name, content) in [
        ("keys", key.key_file()),
        ("jwks", issuer.key_set()),
        ("api-ca", server_ca),
        ("api-token", "our-own-token".to_owned()),
    ] {
        std::fs::write(pki.path(name, "file"), content).unwrap();
    }
    let engine = SecureEngine::start(&pki).await;
    let (good, bad) = (good(&issuer, key.text()), bad(&issuer, key.text()));
    for (scopes, is_open) in SCOPES
        .iter()
        .flat_map(|scopes| [(*scopes, false), (*scopes, true)])
    {
        let more = access(&pki, &server, scopes, is_open);
        let gateway = SecureGateway::start(&pki, engine.address, &RIGHT, &more).await;
        let walk = Walk {
            pki: &pki,
            gateway: gateway.with_engine().await,
            scopes,
        };
        for (what, shown) in &good {
            walk.expect(what, shown, as_tenant).await;
        }
        // Whoever shows something bad isn't anonymous.
        for (what, shown) in &bad {
            let is_nobody = shown.certificate.is_none()
                && shown.headers.iter().any(|(name, _)| name.contains("forwarded"));
            if is_open && is_nobody {
                walk.expect(what, shown, as_tenant).await;
            } else {
                walk.expect(what, shown, as_nobody).await;
            }
        }
        let nothing = Shown::default();
        if is_open {
            walk.expect("anonymous", &nothing, as_tenant).await;
        } else {
            walk.expect("nothing", &nothing, as_nobody).await;
        }
    }
    let log = server.requests();
    assert!(
        !log.is_empty()
            && log
                .iter()
                .all(|asked| asked.header("authorization") == Some("Bearer our-own-token"))
    );
}

const OPEN: &str =
    "auth: {anonymous: {serveEverybodyAs: t}}\ntenants: [{name: t, models: \"*\", scopes: [inference]}]";

fn completion(max_tokens: u32, is_stream: bool) -> Request<Full<Bytes>> {
    let mut asked = body("hi", max_tokens);
    asked["stream"] = is_stream.into();
    Request::post("/v1/completions")
        .header("host", "chat.example")
        .header("content-type", "application/json")
        .body(Full::from(asked.to_string()))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_of_another_authority_opens_nothing() {
    let (pki, other) = (Pki::new(), Pki::new());
    other.issue(KNOWN, KNOWN);
    let engine = SecureEngine::start(&pki).await;
    let gateway = SecureGateway::start(&pki, engine.address, &RIGHT, OPEN)
        .await
        .with_engine()
        .await;
    for kind in ["pem", "key"] {
        std::fs::copy(other.path(KNOWN, kind), pki.path("foreign", kind)).unwrap();
    }
    let refused = gateway
        .ask(&pki.client(Some("foreign")), completion(1, false))
        .await;
    assert!(refused.is_err(), "{refused:?}");
    let (status, _) = gateway
        .ask(&pki.client(None), completion(1, false))
        .await
        .unwrap();
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_and_gateways_of_other_names_refuse_each_other() {
    let pki = Pki::new();
    let engine = SecureEngine::start(&pki).await;
    for (shown, expected, what) in [
        (GATEWAY, "engine.other.svc", "an engine of another service"),
        (GATEWAY, GATEWAY, "a gateway where an engine should be"),
        (ENGINE, ENGINE, "an engine's certificate as a client"),
        (OPERATOR, ENGINE, "the operator at the port of gateways"),
    ] {
        let meeting = Meeting { shown, expected };
        let gateway = SecureGateway::start(&pki, engine.address, &meeting, OPEN).await;
        let failures = "kvasir_gateway_engine_connection_failures_total";
        eventually(what, async || gateway.metric(failures).await >= 2.0).await;
        assert_eq!(
            gateway.metric("kvasir_gateway_engines{state=\"usable\"}").await,
            0.0,
            "{what}"
        );
        let (status, _) = gateway
            .ask(&pki.client(None), completion(1, false))
            .await
            .unwrap();
        assert_eq!(status, 503, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_certificates_serve_the_next_connections_and_cut_no_stream() {
    use http_body_util::BodyExt;
    let pki = Pki::new();
    let engine = SecureEngine::start(&pki).await;
    let gateway = SecureGateway::start(&pki, engine.address, &RIGHT, OPEN)
        .await
        .with_engine()
        .await;
    let pace = engine.pace();
    let client = pki.client(None);
    let (running, old) = gateway.begin(&client, completion(1500, true)).await.unwrap();
    let mut running = running.into_body();
    let first = running.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(!first.ends_with(b"data: [DONE]\n\n"), "{first:?}");
    // Of both directions: to clients, and to engines.
    pki.issue("chat.example", "chat.example");
    pki.issue(GATEWAY, GATEWAY);
    eventually("the new certificate", async || {
        let probe = Request::get("/health").header("host", "chat.example");
        let probe = probe.body(Full::default()).unwrap();
        // Between its two files the old one stays.
        gateway
            .begin(&client, probe)
            .await
            .is_ok_and(|(_, shown)| shown != old)
    })
    .await;
    drop(pace);
    engine.control.open();
    let rest = running.collect().await.unwrap().to_bytes();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    let (status, _) = gateway.ask(&client, completion(1, false)).await.unwrap();
    assert_eq!(status, 200);
    assert!(gateway.folder().path().join("audit").exists());
    // A bad one is refused, once, and said.
    let good = "kvasir_gateway_config_last_reload_successful";
    let file = pki.path("chat.example", "pem");
    let certificate = std::fs::read(&file).unwrap();
    std::fs::write(&file, "garbage").unwrap();
    eventually("the refusal", async || gateway.metric(good).await == 0.0).await;
    std::fs::write(&file, certificate).unwrap();
    eventually("the good one", async || gateway.metric(good).await == 1.0).await;
}
