//! Figures, reported and not asserted: `cargo test --release -p kvasir-gateway --test gateway -- --ignored figures --nocapture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kvasir_client::GrpcClient;
use kvasir_edge::{Edge, EdgeConfig, Pipeline, PipelineOptions, Prompt};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::support::*;

const NUM_REQUESTS: usize = 2000;
const PER_SECOND: u32 = 200;
const NUM_STREAMS: usize = 1000;
const STEPS_PER_SECOND: u32 = 20;
const NUM_STEPS: u32 = 200;

fn quantile(sorted: &[Duration], part: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

fn show(what: &str, mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    let (p50, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
    eprintln!("{what}: p50 {p50:?}, p99 {p99:?} of {}", times.len());
    (p50, p99)
}

async fn connect(engine: &TestEngine) -> Arc<GrpcClient> {
    let client = GrpcClient::connect(&format!("http://{}", engine.address)).await;
    Arc::new(client.unwrap())
}

/// An edge in front of the engine, and where it listens until the task is dropped.
async fn edge_alone(engine: &TestEngine) -> (String, AbortOnDropHandle<()>) {
    let edge = Edge::new(EdgeConfig::default(), connect(engine).await)
        .await
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        edge.serve(listener, CancellationToken::new()).await.unwrap();
    });
    (url, AbortOnDropHandle::new(serving))
}

/// Requests of 1,000 characters at a steady rate, in turn through the gateway and through an edge in front of the same engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a benchmark"]
async fn figures_of_added_latency() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    let pipeline = Pipeline::connect(connect(&engine).await, PipelineOptions::default())
        .await
        .unwrap();
    let (edge, _serving) = edge_alone(&engine).await;
    let direct = format!("{edge}/v1/completions");
    let mut pace = tokio::time::interval(Duration::from_secs(1) / PER_SECOND);
    let (mut through, mut past, mut tokenizing) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..NUM_REQUESTS {
        pace.tick().await;
        let text: String = format!("{number:06} ").repeat(143).chars().take(1000).collect();
        let asked = body(&text, 1);
        let is_through = number % 2 == 0;
        let request = if is_through {
            gateway.request("a", "/v1/completions", &asked)
        } else {
            gateway.client.post(&direct).json(&asked)
        };
        let began = Instant::now();
        let answer = Answer::of(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        if is_through { &mut through } else { &mut past }.push(began.elapsed());
        let began = Instant::now();
        let prompt = Prompt::Text {
            text,
            add_special_tokens: true,
        };
        pipeline.tokenize(prompt).await.unwrap();
        tokenizing.push(began.elapsed());
    }
    let through = show("through the gateway", through);
    let past = show("through an edge alone", past);
    show("tokenization, in both", tokenizing);
    let more = |a: Duration, b: Duration| a.as_secs_f64().mul_add(1e6, -b.as_secs_f64() * 1e6);
    eprintln!(
        "added: p50 {:.0} us, p99 {:.0} us",
        more(through.0, past.0),
        more(through.1, past.1)
    );
}

/// A thousand streams at once, each with 20 tokens a second: through the gateway, then through an edge alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a benchmark"]
async fn figures_of_a_thousand_streams() {
    let options = EngineOptions {
        max_num_seqs: NUM_STREAMS as u32,
        // Room for all of them to their end: an engine that must preempt streams stalls them, whoever is in front of it.
        num_blocks: NUM_STREAMS as u32 * (NUM_STEPS / BLOCK_SIZE + 2) + 1,
        ..EngineOptions::default()
    };
    let engine = TestEngine::start(options).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    let (edge, _serving) = edge_alone(&engine).await;
    engine.control.hold();
    let pacing = {
        let control = Arc::clone(&engine.control);
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_secs(1) / STEPS_PER_SECOND);
            pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                pace.tick().await;
                control.allow(1);
            }
        }))
    };
    let asked = |number: usize| {
        let mut asked = body(&format!("{number:04}"), NUM_STEPS);
        asked["stream"] = json!(true);
        // Then each token is an event, also where its text is half a character.
        asked["return_token_ids"] = json!(true);
        asked
    };
    let through = |number| gateway.request("a", "/v1/completions", &asked(number));
    let past = |number| {
        gateway
            .client
            .post(format!("{edge}/v1/completions"))
            .json(&asked(number))
    };
    show_streams("through the gateway", heard(through).await);
    show_streams("through an edge alone", heard(past).await);
    let report = engine.engine.load();
    assert_eq!(
        report.num_preemptions, 0,
        "the engine had no room for all streams"
    );
    drop(pacing);
}

/// Asks for all streams at once and reads them to their ends.
async fn heard(request: impl Fn(usize) -> RequestBuilder) -> Vec<Heard> {
    futures::future::join_all((0..NUM_STREAMS).map(|number| listen(request(number)))).await
}

/// What a client heard of one stream.
struct Heard {
    /// Until its first event.
    first: Duration,
    /// Between its events.
    gaps: Vec<Duration>,
    num_events: usize,
    is_whole: bool,
}

async fn listen(request: RequestBuilder) -> Heard {
    let began = Instant::now();
    let mut bytes = Box::pin(request.send().await.unwrap().bytes());
    let (mut times, mut num_events, mut end) = (Vec::new(), 0, String::new());
    while let Some(more) = bytes.next().await {
        times.push(Instant::now());
        end = String::from_utf8_lossy(&more).into_owned();
        num_events += end.matches("data: {").count();
    }
    Heard {
        first: times.first().map_or(Duration::MAX, |first| *first - began),
        gaps: times.windows(2).map(|pair| pair[1] - pair[0]).collect(),
        num_events,
        is_whole: end.ends_with("data: [DONE]\n\n"),
    }
}

fn show_streams(what: &str, heard: Vec<Heard>) {
    let num_whole = heard.iter().filter(|heard| heard.is_whole).count();
    let num_events: usize = heard.iter().map(|heard| heard.num_events).sum();
    eprintln!("{what}: {num_whole} of {NUM_STREAMS} streams came to their end, {num_events} events");
    show(
        "  until the first event",
        heard.iter().map(|heard| heard.first).collect(),
    );
    let gaps: Vec<Duration> = heard.into_iter().flat_map(|heard| heard.gaps).collect();
    let longest = gaps.iter().max().copied().unwrap_or_default();
    show("  between two events of a stream", gaps);
    eprintln!("  longest: {longest:?}");
}
