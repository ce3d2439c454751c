//! One gateway in front of the engines of several models.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::revisions::drain;
use crate::secure::{ENGINE, GATEWAY, Pki, RIGHT, SecureEngine, SecureGateway};
use crate::support::*;

fn engine(instance: &'static str, model: &'static str, weights: u8) -> EngineOptions {
    EngineOptions {
        instance,
        model,
        weights,
        ..EngineOptions::default()
    }
}

/// The lines of the file that serve `large`, also called `huge`, beside `small`.
fn with_large(engine: SocketAddr, more: &str) -> String {
    format!(
        "servedModelNames: [small]\nmodels: [{{servedModelNames: [large, huge], engines: {{static: [{{address: \"{engine}\"}}]}}{more}}}]"
    )
}

/// A tenant for all models, one for the large one and one for none.
fn options(more: &str) -> GatewayOptions {
    GatewayOptions {
        tenants: vec![
            ("a", "models: \"*\", scopes: [inference, operations]".to_owned()),
            ("b", "models: [large]".to_owned()),
            ("c", "models: []".to_owned()),
        ],
        more: more.to_owned(),
    }
}

/// A figure of the large model's engines and queue.
async fn of_large(gateway: &TestGateway, name: &str, more: &str) -> f64 {
    let series = format!("kvasir_gateway_{name}{{model_name=\"large\"{more}}}");
    gateway.metric(&series).await
}

async fn large_is_usable(gateway: &TestGateway) {
    eventually("a usable engine of the large model", async || {
        of_large(gateway, "engines", ",state=\"usable\"").await == 1.0
    })
    .await;
}

/// Two engines, and a gateway that can use both.
async fn both() -> (TestEngine, TestEngine, TestGateway) {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let large = TestEngine::start(engine("l", "large-file", 2)).await;
    let gateway = TestGateway::start(&[small.address], options(&with_large(large.address, ""))).await;
    let gateway = gateway.with_engines(1).await;
    large_is_usable(&gateway).await;
    (small, large, gateway)
}

/// An address at which nothing answers, also not an engine of another test, for as long as the socket is held.
fn taken() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn named(model: &str, mut body: Value) -> Value {
    body["model"] = json!(model);
    body
}

async fn get(gateway: &TestGateway, tenant: &str, path: &str) -> Answer {
    let request = gateway.client.get(format!("{}{path}", gateway.url));
    Answer::of(request.bearer_auth(&gateway.keys[tenant])).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_model_is_answered_by_its_own_engine() {
    let (_small, _large, gateway) = both().await;
    let mut fingerprints = Vec::new();
    for (model, shown, engine) in [
        (Some("small"), "small", "s/0/0"),
        (Some("large"), "large", "l/0/0"),
        (Some("huge"), "large", "l/0/0"),
        (None, "small", "s/0/0"),
        (Some(""), "small", "s/0/0"),
    ] {
        let mut asked = body("hi", 2);
        asked["model"] = json!(model);
        let id = format!("of-{}", model.unwrap_or("none"));
        let request = gateway
            .request("a", "/v1/completions", &asked)
            .header("x-request-id", &id);
        let answer = Answer::of(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.json()["model"], shown);
        fingerprints.push(answer.json()["system_fingerprint"].clone());
        let line = gateway.audited(&id).await;
        assert_eq!(line["engines"], json!([engine]), "{model:?}");
        assert_eq!(
            line["model"],
            json!(model.filter(|name| !name.is_empty()).unwrap_or("small"))
        );
    }
    assert_ne!(fingerprints[0], fingerprints[1], "the weights differ");
    assert_eq!(fingerprints[1], fingerprints[2]);
    let events = gateway
        .stream("a", named("large", body("hi", 2)))
        .await
        .rest()
        .await;
    assert!(events[0].contains("\"model\":\"large\""), "{}", events[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_and_cards_are_those_of_the_model_that_is_named() {
    let (_small, _large, gateway) = both().await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let tokens = async |model: &str| {
        let answer = Answer::of(gateway.request("a", "/tokenize", &named(model, chat.clone()))).await;
        answer.json()["tokens"].clone()
    };
    let (small, large) = (tokens("small").await, tokens("large").await);
    assert_eq!(
        small.as_array().unwrap().len() + 1,
        large.as_array().unwrap().len()
    );
    let back = named("huge", json!({"tokens": large}));
    let answer = Answer::of(gateway.request("a", "/detokenize", &back)).await;
    assert_eq!(answer.json()["prompt"], "!!hi");
    let list = get(&gateway, "a", "/v1/models").await.json();
    let cards: Vec<(&str, &str)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| (card["id"].as_str().unwrap(), card["root"].as_str().unwrap()))
        .collect();
    let expected = [
        ("small", "small-file"),
        ("large", "large-file"),
        ("huge", "large-file"),
    ];
    assert_eq!(cards, expected);
    let card = get(&gateway, "a", "/v1/models/huge").await.json();
    assert_eq!(
        (&card["id"], &card["root"]),
        (&json!("huge"), &json!("large-file"))
    );
    let info = get(&gateway, "a", "/server_info").await.json();
    assert_eq!(info["model"]["name"], "small-file");
    assert_eq!(info["served_model_names"], json!(["small"]));
    assert_eq!(info["models"][1]["model"]["name"], "large-file");
    assert_eq!(info["models"][1]["served_model_names"], json!(["large", "huge"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_of_one_model_sees_only_that_one() {
    let (_small, _large, gateway) = both().await;
    let ids = async |tenant: &str| {
        let list = get(&gateway, tenant, "/v1/models").await.json();
        let cards = list["data"].as_array().unwrap().clone();
        cards.iter().map(|card| card["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids("b").await, ["large"]);
    assert!(ids("c").await.is_empty());
    // What it means without a name is the first one that it sees.
    let answer = gateway.complete("b", body("hi", 1)).await;
    assert_eq!(answer.json()["model"], "large");
    let hidden = gateway.request("b", "/v1/completions", &named("small", body("hi", 1)));
    let hidden = Answer::of(hidden.header("x-request-id", "hidden")).await;
    let unknown = gateway.complete("b", named("neither", body("hi", 1))).await;
    assert_eq!((hidden.status, unknown.status), (404, 404));
    assert_eq!(hidden.text.replace("small", "neither"), unknown.text);
    assert_eq!(gateway.audited("hidden").await["reason"], "forbidden_model");
    assert_eq!(gateway.complete("c", body("hi", 1)).await.status, 404);
    assert_eq!(get(&gateway, "b", "/v1/models/small").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_tell_models_apart_and_those_of_the_first_are_as_ever() {
    let (_small, _large, gateway) = both().await;
    for (model, count) in [("small", 1), ("large", 2)] {
        for _ in 0..count {
            assert_eq!(
                gateway.complete("a", named(model, body("hi", 3))).await.status,
                200
            );
        }
    }
    assert_eq!(gateway.metric("kvasir_gateway_routed_requests_total").await, 1.0);
    assert_eq!(of_large(&gateway, "routed_requests_total", "").await, 2.0);
    for (model, tokens) in [("small", 3.0), ("large", 6.0)] {
        let series = format!("vllm:generation_tokens_total{{model_name=\"{model}\"}}");
        assert_eq!(gateway.metric(&series).await, tokens, "{model}");
    }
    let text = gateway.metrics().await;
    let mut described: Vec<&str> = text.lines().filter(|line| line.starts_with("# HELP ")).collect();
    let number = described.len();
    described.sort_unstable();
    described.dedup();
    assert_eq!(described.len(), number, "a family is described twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_comes_and_goes_while_streams_run() {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let large = TestEngine::start(engine("l", "large-file", 2)).await;
    let alone = "servedModelNames: [small]";
    let gateway = TestGateway::start(&[small.address], options(alone)).await;
    let gateway = gateway.with_engines(1).await;
    let _pace = (small.pace(), large.pace());
    assert_eq!(
        gateway.complete("a", named("large", body("hi", 1))).await.status,
        404
    );
    let of_small = gateway.stream("a", body("hi", 1900)).await.begun().await;
    gateway.write_config(&with_large(large.address, ""));
    large_is_usable(&gateway).await;
    let of_large = gateway
        .stream("a", named("large", body("hi", 1900)))
        .await
        .begun()
        .await;
    gateway.write_config(alone);
    eventually("the model's end", async || {
        get(&gateway, "a", "/v1/models/large").await.status == 404
    })
    .await;
    let answer = gateway.complete("a", named("large", body("hi", 1))).await;
    assert_eq!(answer.status, 404, "{}", answer.text);
    let list = get(&gateway, "a", "/v1/models").await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    assert!(!gateway.metrics().await.contains("\"large\""));
    // What runs there ends as it would have, long after the look at which its pool was given up.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    small.control.open();
    large.control.open();
    for stream in [of_small, of_large] {
        let events = stream.rest().await;
        assert_eq!(events.last().unwrap(), "[DONE]");
        assert!(events.iter().all(|event| !event.contains("error")), "{events:?}");
        assert!(events.len() > 100);
    }
    // It comes back, with new queues and figures.
    gateway.write_config(&with_large(large.address, ""));
    large_is_usable(&gateway).await;
    assert_eq!(
        gateway.complete("a", named("large", body("hi", 1))).await.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_in_their_own_models_room_and_are_answered_or_sent_away_when_that_changes() {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let (_kept, nowhere) = taken();
    let parked = ", waiting: {holdSeconds: 3600, capacity: 2}";
    let gateway = TestGateway::start(&[small.address], options(&with_large(nowhere, parked))).await;
    let gateway = gateway.with_engines(1).await;
    let num_waiting = async |number: f64| {
        eventually("requests that wait", async || {
            of_large(&gateway, "waiting_requests", "").await == number
        })
        .await;
    };
    let ask = || gateway.complete("a", named("large", body("hi", 2)));
    let told = async {
        num_waiting(1.0).await;
        // The first model's requests don't wait for it, nor does one that nobody serves.
        assert_eq!(gateway.complete("a", body("hi", 1)).await.status, 200);
        assert_eq!(
            gateway
                .complete("a", named("neither", body("hi", 1)))
                .await
                .status,
            404
        );
        assert_eq!(gateway.metric("kvasir_gateway_waiting_requests").await, 0.0);
        // Its engines are found elsewhere: who waits is answered there.
        let large = TestEngine::start(engine("l", "large-file", 2)).await;
        gateway.write_config(&with_large(large.address, parked));
        large
    };
    let (answer, large) = futures::join!(ask(), told);
    assert_eq!(
        (answer.status, &answer.json()["model"]),
        (200, &json!("large")),
        "{}",
        answer.text
    );
    // Once more without engines, and then without the model.
    let _draining = drain(&large);
    gateway.write_config(&with_large(nowhere, parked));
    let gone = async {
        num_waiting(1.0).await;
        gateway.write_config("servedModelNames: [small]");
    };
    let (answer, ()) = futures::join!(ask(), gone);
    assert_eq!(answer.status, 404, "{}", answer.text);
    assert!(answer.text.contains("large"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_change_without_new_queues_does() {
    let (_small, large, gateway) = both().await;
    let before = of_large(&gateway, "routed_requests_total", "").await;
    assert_eq!(
        gateway.complete("a", named("large", body("hi", 1))).await.status,
        200
    );
    let changed = with_large(large.address, ", waiting: {maxWaitSeconds: 7}").replace("huge", "vast");
    gateway.write_config(&changed);
    eventually("the other name", async || {
        gateway.complete("a", named("vast", body("hi", 1))).await.status == 200
    })
    .await;
    assert_eq!(
        gateway.complete("a", named("huge", body("hi", 1))).await.status,
        404
    );
    assert_eq!(
        of_large(&gateway, "routed_requests_total", "").await,
        before + 2.0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_whose_routing_changes_is_answered_all_the_while() {
    let (_small, large, gateway) = both().await;
    let ask = async || gateway.complete("a", named("large", body("hi", 1))).await.status;
    for _ in 0..5 {
        assert_eq!(ask().await, 200);
    }
    let (mut routed, mut asked) = (5.0, 5.0);
    gateway.write_config(&with_large(large.address, ", routing: {policy: LeastRequests}"));
    // New queues count from 0.
    while routed == asked {
        assert_eq!(ask().await, 200);
        asked += 1.0;
        routed = of_large(&gateway, "routed_requests_total", "").await;
    }
    large_is_usable(&gateway).await;
    assert_eq!(ask().await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_of_revisions_are_those_of_the_model() {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let revision = |instance, revision| EngineOptions {
        revision,
        ..engine(instance, "large-file", 2)
    };
    let old = TestEngine::start(revision("o", "old")).await;
    let new = TestEngine::start(revision("n", "new")).await;
    let more = format!(
        "servedModelNames: [small]\nrevisions: [{{name: old, weight: 1}}, {{name: new, weight: 0}}]\n\
         models: [{{servedModelNames: [large], revisions: [{{name: old, weight: 0}}, {{name: new, weight: 1}}], \
         engines: {{static: [{{address: \"{}\"}}, {{address: \"{}\"}}]}}}}]",
        old.address, new.address
    );
    let gateway = TestGateway::start(&[small.address], options(&more)).await;
    let gateway = gateway.with_engines(1).await;
    eventually("both engines", async || {
        of_large(&gateway, "engines", ",state=\"usable\"").await == 2.0
    })
    .await;
    for (model, engine) in [("large", "n/0/0"), ("small", "s/0/0")] {
        for number in 0..3 {
            let id = format!("{model}-{number}");
            let asked = gateway.request("a", "/v1/completions", &named(model, body("hi", 1)));
            let answer = Answer::of(asked.header("x-request-id", &id)).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            assert_eq!(gateway.audited(&id).await["engines"], json!([engine]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_is_ready_when_one_of_its_models_is() {
    let large = TestEngine::start(engine("l", "large-file", 2)).await;
    let (_kept, nowhere) = taken();
    let gateway = TestGateway::start(&[nowhere], options(&with_large(large.address, ""))).await;
    large_is_usable(&gateway).await;
    eventually("readiness", async || gateway.is_ready().await).await;
    assert_eq!(
        gateway.complete("a", named("large", body("hi", 1))).await.status,
        200
    );
    assert_eq!(
        gateway.complete("a", named("small", body("hi", 1))).await.status,
        503
    );
    let _draining = drain(&large);
    eventually("no readiness", async || !gateway.is_ready().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_models_are_refused_before_anything_waits() {
    let (_kept, nowhere) = taken();
    let parked = ", waiting: {holdSeconds: 3600}";
    let more = with_large(nowhere, parked) + "\nwaiting: {holdSeconds: 3600}";
    let gateway = TestGateway::start(&[nowhere], options(&more)).await;
    let ask = async |path: &str, text: String| {
        let request = gateway.client.post(format!("{}{path}", gateway.url));
        Answer::of(request.bearer_auth(&gateway.keys["a"]).json_text(text)).await
    };
    let long = "x".repeat(1 << 20);
    let deep = format!(
        "{{\"model\": \"large\", \"x\": {}{}}}",
        "[".repeat(1000),
        "]".repeat(1000)
    );
    for path in [
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
        "/detokenize",
    ] {
        for (text, status, said) in [
            (
                format!("{{\"model\": \"{long}\"}}"),
                400,
                "model is longer than 512 bytes",
            ),
            ("{\"model\": 5}".to_owned(), 400, "model: invalid type"),
            ("{\"model\": [\"large\"]}".to_owned(), 400, "model: invalid type"),
            (
                "{\"model\": {\"large\": 1}}".to_owned(),
                400,
                "model: invalid type",
            ),
            ("{\"model\": \"large\\ud800\"}".to_owned(), 400, "model"),
            (
                "{\"model\": \"large\", \"model\": \"neither\"}".to_owned(),
                404,
                "`neither`",
            ),
            ("{\"model\": \"Large\"}".to_owned(), 404, "`Large`"),
            ("{\"model\": \"large \"}".to_owned(), 404, "`large `"),
            (
                "{\"model\": \"large\"".to_owned(),
                400,
                "the request body is invalid",
            ),
            (deep.clone(), 400, "nests deeper than 96"),
            ("[\"large\"]".to_owned(), 400, "the request body is invalid"),
        ] {
            let answer = ask(path, text).await;
            assert_eq!(answer.status, status, "{path}: {}", answer.text);
            assert!(answer.text.contains(said), "{path}: {said}: {}", answer.text);
            assert!(answer.text.len() < 2000);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_equal_members_the_last_one_says_which_model_it_is() {
    let (_small, _large, gateway) = both().await;
    for (first, last) in [("small", "large"), ("large", "small"), ("neither", "large")] {
        let text = format!(
            "{{\"model\": \"{first}\", \"prompt\": \"hi\", \"max_tokens\": 1, \"model\": \"{last}\"}}"
        );
        let request = gateway.client.post(format!("{}/v1/completions", gateway.url));
        let answer = Answer::of(request.bearer_auth(&gateway.keys["a"]).json_text(text)).await;
        assert_eq!(answer.json()["model"], last, "{}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_a_name_twice_or_too_many_models_changes_nothing() {
    let (_small, large, gateway) = both().await;
    let refused = "kvasir_gateway_config_reloads_total{result=\"refused\"}";
    let many = (0..65).map(|number| {
        let place = 40_000 + number;
        format!(
            "{{servedModelNames: [m{number}], engines: {{static: [{{address: \"127.0.0.1:{place}\"}}]}}}}"
        )
    });
    let many = many.collect::<Vec<String>>().join(", ");
    let versions = [
        with_large(large.address, "").replace("huge", "small"),
        with_large(large.address, "").replace("huge", "large"),
        with_large(large.address, "").replace("servedModelNames: [small]", "servedModelNames: []"),
        format!("servedModelNames: [small]\nmodels: [{many}]"),
    ];
    for (number, version) in (1..).zip(&versions) {
        gateway.write_config(version);
        eventually("the refusal", async || {
            gateway.metric(refused).await == f64::from(number)
        })
        .await;
        for model in ["small", "large", "huge"] {
            assert_eq!(
                gateway.complete("a", named(model, body("hi", 1))).await.status,
                200
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_beginning_of_a_prompt_counts_where_the_file_says_so() {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let large = TestEngine::start(engine("l", "large-file", 2)).await;
    let more = with_large(large.address, ", routing: {prefixChars: 15}");
    let gateway = TestGateway::start(&[small.address], options(&more))
        .await
        .with_engines(1)
        .await;
    large_is_usable(&gateway).await;
    // Fifteen characters of two bytes each, which are tokens here: seven blocks and a half.
    let prompt = "é".repeat(40);
    let ask = async |model: &str| gateway.complete("a", named(model, body(&prompt, 1))).await;
    for model in ["small", "large"] {
        assert_eq!(ask(model).await.status, 200);
    }
    eventually("news of blocks", async || {
        let blocks = gateway.metric("kvasir_gateway_index_blocks").await;
        blocks >= 20.0 && of_large(&gateway, "index_blocks", "").await == blocks
    })
    .await;
    for model in ["small", "large"] {
        // What the engine has doesn't depend on what the choice looks at.
        assert_eq!(ask(model).await.cached_tokens(), 76);
    }
    let overlap = "routed_overlap_blocks_total";
    assert_eq!(gateway.metric(&format!("kvasir_gateway_{overlap}")).await, 20.0);
    assert_eq!(of_large(&gateway, overlap, "").await, 7.0);
}

const LARGE: &str = "engine.large.svc";

/// The large model behind mutual TLS, beside a first one of another service.
fn secure_large(pki: &Pki, engine: SocketAddr, expected: &str) -> String {
    let path = |kind: &str| pki.path(GATEWAY, kind).display().to_string();
    let tls = format!(
        "{{authorities: {}, certificate: {}, key: {}, names: [\"dns:{expected}\"]}}",
        pki.authorities().display(),
        path("pem"),
        path("key"),
    );
    format!(
        "auth: {{anonymous: {{serveEverybodyAs: a}}}}\ntenants: [{{name: a, models: '*'}}]\nservedModelNames: [small]\n\
         models: [{{servedModelNames: [large], engines: {{static: [{{address: \"{engine}\"}}], tls: {tls}}}}}]\n"
    )
}

async fn secure_status(pki: &Pki, gateway: &SecureGateway, model: &str) -> u16 {
    let asked = named(model, body("hi", 1)).to_string();
    let request = Request::post("/v1/completions")
        .header("host", "chat.example")
        .header("content-type", "application/json")
        .body(Full::from(Bytes::from(asked)))
        .unwrap();
    gateway.ask(&pki.client(None), request).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_of_one_model_with_the_names_of_anothers_is_refused() {
    let pki = Pki::new();
    pki.issue(LARGE, LARGE);
    let small = SecureEngine::start(&pki).await;
    for (shown, is_right) in [(ENGINE, false), (LARGE, true)] {
        let large = SecureEngine::start_as(&pki, shown, &engine("l", "large-file", 2)).await;
        let more = secure_large(&pki, large.address, LARGE);
        let gateway = SecureGateway::start(&pki, small.address, &RIGHT, &more)
            .await
            .with_engine()
            .await;
        let series = if is_right {
            "kvasir_gateway_engines{model_name=\"large\",state=\"usable\"}"
        } else {
            "kvasir_gateway_engine_connection_failures_total{model_name=\"large\"}"
        };
        eventually(series, async || gateway.metric(series).await >= 1.0).await;
        assert_eq!(secure_status(&pki, &gateway, "small").await, 200);
        assert_eq!(
            secure_status(&pki, &gateway, "large").await,
            if is_right { 200 } else { 503 }
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_whose_certificates_are_not_there_yet_keeps_no_other_from_being_served_and_comes_later() {
    let pki = Pki::new();
    pki.issue(LARGE, LARGE);
    let small = SecureEngine::start(&pki).await;
    let large = SecureEngine::start_as(&pki, LARGE, &engine("l", "large-file", 2)).await;
    let later = pki.path("later", "pem");
    let more = secure_large(&pki, large.address, LARGE).replace(
        &format!("certificate: {}", pki.path(GATEWAY, "pem").display()),
        &format!("certificate: {}", later.display()),
    );
    let gateway = SecureGateway::start(&pki, small.address, &RIGHT, &more)
        .await
        .with_engine()
        .await;
    let is_good = "kvasir_gateway_config_last_reload_successful";
    eventually("the trouble's figure", async || {
        gateway.metric(is_good).await == 0.0
    })
    .await;
    assert_eq!(secure_status(&pki, &gateway, "small").await, 200);
    assert_eq!(secure_status(&pki, &gateway, "large").await, 503);
    std::fs::copy(pki.path(GATEWAY, "pem"), later).unwrap();
    eventually("the large model", async || {
        secure_status(&pki, &gateway, "large").await == 200
    })
    .await;
    assert_eq!(gateway.metric(is_good).await, 1.0);
    let end = "kvasir_gateway_certificate_not_after_seconds{model_name=\"large\",certificate=\"engines\"}";
    eventually("its certificate's end", async || gateway.metric(end).await > 1e9).await;
}
