//! Engines that fail, drain and come back.

use std::io::Write;
use std::sync::{Mutex, Once, PoisonError};

use crate::support::*;

/// What the log has had since the first look, of all tests of this program.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct IntoLog;

impl Write for IntoLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How many lines of the log, of a level, hold a text and are about an engine that no other test has.
fn num_logged(engine: &str, level: &str, text: &str) -> usize {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(|| IntoLog);
        lines.init();
    });
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let log = String::from_utf8_lossy(&log);
    let engine = format!("engine=\"{engine}/");
    let is_meant = |line: &&str| line.contains(&engine) && line.contains(level) && line.contains(text);
    log.lines().filter(is_meant).count()
}

fn engine(instance: &'static str) -> EngineOptions {
    EngineOptions {
        instance,
        ..EngineOptions::default()
    }
}

fn options(more: &str) -> GatewayOptions {
    GatewayOptions {
        more: more.to_owned(),
        ..GatewayOptions::default()
    }
}

/// More than twice the reserve of retries.
const NUM_WAITING: usize = 60;

/// Two engines, and a gateway that has found both.
async fn pair(more: &str) -> (TestEngine, TestEngine, TestGateway) {
    pair_of("a", more).await
}

/// The same, with a name for the first one.
async fn pair_of(first: &'static str, more: &str) -> (TestEngine, TestEngine, TestGateway) {
    let first = TestEngine::start(engine(first)).await;
    let second = TestEngine::start(engine("b")).await;
    let gateway = TestGateway::start(&[first.address, second.address], options(more))
        .await
        .with_engines(2)
        .await;
    (first, second, gateway)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_engine_ends_begun_streams_with_an_error_and_others_are_answered_elsewhere() {
    let (first, _second, gateway) = pair("routing: {policy: RoundRobin}").await;
    first.control.hold();
    first.control.allow(6);
    // In turn: one begins on each.
    let begun = [
        gateway.stream("a", body("hello", 500)).await.begun().await,
        gateway.stream("a", body("hello", 500)).await.begun().await,
    ];
    // In turn again: half of them, more than the reserve of retries, wait for their first tokens on the engine that is about to go.
    first.control.hold();
    let answered = std::sync::atomic::AtomicUsize::new(0);
    let waiting = (0..NUM_WAITING).map(|_| async {
        let answer = gateway.complete("a", body("one", 3)).await;
        answered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        answer
    });
    let killing = async {
        // When the other one has had its half, at least as many but one have come to this one before.
        eventually("the other engine's answers", async || {
            answered.load(std::sync::atomic::Ordering::Relaxed) == NUM_WAITING / 2
        })
        .await;
        first.kill().await;
    };
    let (answers, ()) = futures::join!(futures::future::join_all(waiting), killing);
    for answer in answers {
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let mut num_failed = 0;
    for events in begun {
        let data = events.rest().await;
        assert_eq!(data.last().unwrap(), "[DONE]");
        assert!(
            !data.concat().contains("127.0.0.1"),
            "where engines are is nobody's business: {data:?}"
        );
        num_failed += usize::from(data[data.len() - 2].contains("\"error\""));
    }
    assert_eq!(num_failed, 1);
    assert!(gateway.metric("kvasir_gateway_retries_total").await >= (NUM_WAITING / 2 - 1) as f64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_engine_gets_nothing_new_and_nobody_notices() {
    let (first, _second, gateway) = pair("routing: {policy: RoundRobin}").await;
    let drained = {
        let engine = std::sync::Arc::clone(&first.engine);
        tokio::spawn(async move { engine.drain(std::time::Duration::from_secs(30)).await })
    };
    for _ in 0..20 {
        let answer = gateway.complete("a", body("hello", 2)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    assert_eq!(drained.await.unwrap(), 0);
    eventually("the engine to be seen draining", async || {
        gateway.metric("kvasir_gateway_engines{state=\"draining\"}").await == 1.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_without_first_tokens_is_left_alone_and_its_requests_are_answered() {
    assert_eq!(num_logged("slow", "WARN", "ejected"), 0);
    let options = "routing: {policy: RoundRobin, firstTokenTimeoutSeconds: 1}";
    let (slow, _good, gateway) = pair_of("slow", options).await;
    slow.control.hold();
    let asked = (0..8).map(|_| gateway.complete("a", body("hello", 2)));
    for answer in futures::future::join_all(asked).await {
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    assert_eq!(
        gateway.metric("kvasir_gateway_engines{state=\"ejected\"}").await,
        1.0
    );
    eventually("the line about it", async || {
        num_logged("slow", "WARN", "an engine is ejected") == 1
    })
    .await;
    slow.control.open();
    eventually("the line about its return", async || {
        // One of these is its probe.
        gateway.complete("a", body("hello", 2)).await;
        num_logged("slow", "INFO", "an ejected engine is used again") == 1
    })
    .await;
    assert_eq!(num_logged("slow", "WARN", ""), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_stops_between_tokens_ends_its_streams_with_an_error_and_they_pay_for_what_came() {
    assert_eq!(num_logged("stuck", "WARN", ""), 0);
    let options = "routing: {policy: RoundRobin, interTokenTimeoutSeconds: 1}";
    let (stuck, _good, gateway) = pair_of("stuck", options).await;
    // Its connection lives; its steps end no more after these.
    stuck.control.hold();
    stuck.control.allow(4);
    let ask = |id: &'static str| {
        let mut asked = body("hello", 500);
        asked["stream"] = true.into();
        let request = gateway.request("a", "/v1/completions", &asked);
        request.header("x-request-id", id).send()
    };
    let (first, second) = futures::join!(ask("one"), ask("two"));
    let mut num_failed = 0;
    for (id, response) in [("one", first), ("two", second)] {
        let text = response.unwrap().text().await.unwrap();
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        let is_failed = text.contains("the engine made no token for too long");
        assert_eq!(is_failed, text.contains("\"error\""), "{text}");
        num_failed += usize::from(is_failed);
        let line = gateway.audited(id).await;
        let expected = if is_failed { "inter_token_timeout" } else { "ok" };
        assert_eq!(line["reason"], expected, "{line}");
        let num_tokens = line["output_tokens"].as_u64().unwrap();
        assert!(if is_failed {
            (1..=4).contains(&num_tokens)
        } else {
            num_tokens == 500
        });
    }
    assert_eq!(num_failed, 1);
    let series = "kvasir_gateway_engine_failures_total{reason=\"inter_token_timeout\"}";
    assert_eq!(gateway.metric(series).await, 1.0);
    assert_eq!(
        num_logged("stuck", "WARN", "failed a request after its first token"),
        1
    );
    eventually("the engine to have given it up", async || {
        stuck.control.allow(1);
        stuck.engine.client().load().await.unwrap().num_running == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_comes_back_at_its_address_is_used_again() {
    let first = TestEngine::start(engine("a")).await;
    let gateway = TestGateway::start(&[first.address], options("waiting: {holdSeconds: 30}"))
        .await
        .with_engines(1)
        .await;
    assert_eq!(gateway.complete("a", body("hello", 2)).await.status, 200);
    let listen = first.address;
    first.kill().await;
    let again = async {
        let options = EngineOptions {
            listen,
            ..engine("c")
        };
        TestEngine::start(options).await
    };
    // Held while there is no engine, and answered by the one that comes.
    let (answer, _again) = futures::join!(gateway.complete("a", body("hello", 2)), again);
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_follow_their_prefix_to_the_engine_that_has_it() {
    let (_first, _second, gateway) = pair("").await;
    let prompt = |number: u32| {
        format!(
            "{number:03}{}",
            "a long conversation that goes on and on. ".repeat(12)
        )
    };
    for number in 0..6 {
        assert_eq!(gateway.complete("a", body(&prompt(number), 2)).await.status, 200);
    }
    let filed = async || gateway.metric("kvasir_gateway_index_blocks").await;
    // Six prompts of 495 tokens in blocks of 4.
    eventually("the news of the caches", async || filed().await >= 6.0 * 123.0).await;
    for number in 0..6 {
        let answer = gateway.complete("a", body(&prompt(number), 2)).await;
        assert_eq!(answer.cached_tokens(), 492, "prompt {number}");
    }
}
