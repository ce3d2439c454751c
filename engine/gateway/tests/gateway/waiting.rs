//! Waiting for engines.

use std::time::Duration;

use kvasir_edge::Shutdown;

use crate::support::*;

fn options(more: &str) -> GatewayOptions {
    GatewayOptions {
        more: more.to_owned(),
        ..GatewayOptions::default()
    }
}

/// An address at which nothing answers.
fn nowhere() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_engines_and_parking_requests_are_refused_at_once() {
    let gateway = TestGateway::start(&[nowhere()], options("")).await;
    let answer = gateway.complete("a", body("hi", 1)).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert!(!gateway.is_ready().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_requests_are_counted_and_answered_by_the_first_engine_that_comes() {
    let listen = nowhere();
    let gateway = TestGateway::start(&[listen], options("waiting: {holdSeconds: 60}")).await;
    assert!(gateway.is_ready().await);
    let asked = (0..5).map(|_| gateway.complete("a", body("hi", 2)));
    let coming = async {
        eventually("five parked requests", async || {
            gateway.metric("kvasir_gateway_waiting_requests").await == 5.0
        })
        .await;
        let options = EngineOptions {
            listen,
            ..EngineOptions::default()
        };
        TestEngine::start(options).await
    };
    let (answers, _engine) = futures::join!(futures::future::join_all(asked), coming);
    for answer in answers {
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    assert_eq!(gateway.metric("kvasir_gateway_waiting_requests").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parking_ends_with_503_and_a_client_that_leaves_makes_room() {
    let gateway = TestGateway::start(&[nowhere()], options("waiting: {holdSeconds: 1, capacity: 1}")).await;
    let left = gateway.request("b", "/v1/completions", &body("hi", 2)).send();
    assert!(
        tokio::time::timeout(Duration::from_millis(50), left)
            .await
            .is_err()
    );
    eventually("an empty room", async || {
        gateway.metric("kvasir_gateway_waiting_requests").await == 0.0
    })
    .await;
    let held = gateway.complete("a", body("hi", 2)).await;
    assert_eq!(held.status, 503);
    assert!(held.text.contains("no engine came up in time"), "{}", held.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_take_turns_in_front_of_a_busy_engine() {
    let options_of_engine = EngineOptions {
        max_num_seqs: 1,
        ..EngineOptions::default()
    };
    let engine = TestEngine::start(options_of_engine).await;
    let gateway = TestGateway::start(&[engine.address], options(""))
        .await
        .with_engines(1)
        .await;
    engine.control.hold();
    engine.control.allow(1);
    let running = gateway.stream("a", body("hi", 3)).await.begun().await;
    let ask = async |tenant: &'static str, id: String| {
        let request = gateway
            .request(tenant, "/v1/completions", &body("hi", 2))
            .header("x-request-id", id);
        assert_eq!(Answer::of(request).await.status, 200);
    };
    let waiting = async |count: f64| {
        eventually("requests that wait", async || {
            gateway.metric("kvasir_gateway_waiting_requests").await == count
        })
        .await;
    };
    let many = (0..4).map(|number| ask("a", format!("a{number}")));
    let (many, one) = (futures::future::join_all(many), async {
        waiting(4.0).await;
        ask("b", "b".to_owned()).await;
    });
    let opening = async {
        waiting(5.0).await;
        engine.control.open();
    };
    futures::join!(many, one, opening);
    assert_eq!(running.rest().await.last().unwrap(), "[DONE]");
    gateway.audited("b").await;
    let ended: Vec<String> = gateway
        .audit()
        .iter()
        .map(|line| line["request_id"].as_str().unwrap().to_owned())
        .collect();
    let place = ended.iter().position(|id| id == "b").unwrap();
    assert!(
        place <= 3,
        "b came last, but its tenant had waited with one request only: {ended:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_to_stop_the_gateway_finishes_what_runs_and_takes_nothing_new() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let mut gateway = TestGateway::start(&[engine.address], options(""))
        .await
        .with_engines(1)
        .await;
    let _pace = engine.pace();
    let running = gateway.stream("a", body("hi", 1500)).await.begun().await;
    gateway.stop();
    eventually("readiness to fail", async || !gateway.is_ready().await).await;
    // The port of probes knows a moment before the clients' does.
    let ready = || gateway.client.get(format!("{}/ready", gateway.url));
    eventually("clients to be told", async || {
        Answer::of(ready()).await.status == 503
    })
    .await;
    assert_eq!(gateway.complete("a", body("hi", 1)).await.status, 503);
    engine.control.open();
    let data = running.rest().await;
    assert_eq!(data.last().unwrap(), "[DONE]");
    assert!(!data.iter().any(|frame| frame.contains("\"error\"")), "{data:?}");
    assert_eq!(gateway.ended().await, Shutdown::Clean);
    assert_eq!(
        gateway
            .audit()
            .iter()
            .filter(|line| line["status"] == 200 && line["route"] == "/v1/completions")
            .count(),
        1
    );
}

/// Each limit on the way (the gateway's seats, its connection to the engine, the engine's own) lets in what the engine runs at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_streams_run_at_once_as_the_engine_has_places() {
    const NUM_STREAMS: u32 = 600;
    const NUM_TOKENS: u32 = 1500;
    let options_of_engine = EngineOptions {
        max_num_seqs: NUM_STREAMS,
        num_blocks: NUM_STREAMS * (NUM_TOKENS / BLOCK_SIZE + 2),
        ..EngineOptions::default()
    };
    let engine = TestEngine::start(options_of_engine).await;
    let gateway = TestGateway::start(&[engine.address], options(""))
        .await
        .with_engines(1)
        .await;
    engine.control.hold();
    let asked = (0..NUM_STREAMS).map(|number| gateway.stream("a", body(&format!("{number:03}"), NUM_TOKENS)));
    let stepping = async {
        // So rarely that no stream comes to its end while others begin.
        eventually("a place for each", async || {
            engine.control.allow(1);
            tokio::time::sleep(Duration::from_millis(50)).await;
            engine.control.known() == NUM_STREAMS as usize
        })
        .await;
        // The last prompts get only what the others' tokens leave of a step.
        engine.control.allow(100);
    };
    let (begun, ()) = futures::join!(futures::future::join_all(asked), stepping);
    assert_eq!(begun.len(), NUM_STREAMS as usize);
    assert_eq!(engine.control.known(), NUM_STREAMS as usize);
    assert_eq!(engine.engine.load().num_preemptions, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_leaves_answers_for_a_while_and_ends_each_connection_with_its_answer() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], options("leaveSeconds: 3600"))
        .await
        .with_engines(1)
        .await;
    let closes = |answer: &Answer| {
        answer
            .headers
            .get("connection")
            .is_some_and(|value| value == "close")
    };
    let before = gateway.complete("a", body("hi", 1)).await;
    assert!(before.status == 200 && !closes(&before));
    gateway.stop();
    eventually("readiness to fail", async || !gateway.is_ready().await).await;
    let after = gateway.complete("a", body("hi", 1)).await;
    assert!(after.status == 200 && closes(&after), "{:?}", after.headers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_sequence_of_a_request_takes_a_place_at_the_engine() {
    let engine = TestEngine::start(EngineOptions {
        max_num_seqs: 4,
        ..EngineOptions::default()
    })
    .await;
    let gateway = TestGateway::start(&[engine.address], options(""))
        .await
        .with_engines(1)
        .await;
    engine.control.hold();
    let mut wide = body("hi", 2);
    (wide["n"], wide["temperature"]) = (4.into(), 1.into());
    let asking = (0..3).map(|_| gateway.complete("a", wide.clone()));
    let opening = async {
        // One fills the engine, and one more stands ready there.
        eventually("the third to wait", async || {
            gateway.metric("kvasir_gateway_waiting_requests").await == 1.0
        })
        .await;
        engine.control.open();
    };
    let (answers, ()) = futures::join!(futures::future::join_all(asking), opening);
    for answer in answers {
        assert_eq!(
            answer.json()["choices"].as_array().unwrap().len(),
            4,
            "{}",
            answer.text
        );
    }
}
