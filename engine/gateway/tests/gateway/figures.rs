//! Figures, reported and not asserted: `cargo test --release -p kvasir-gateway --test gateway -- --ignored figures --nocapture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kvasir_client::GrpcClient;
use kvasir_edge::{Edge, EdgeConfig, Pipeline, PipelineOptions, Prompt};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

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

/// Requests of 1,000 characters at a steady rate, in turn through the gateway and through an edge in front of the same engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a benchmark"]
async fn figures_of_added_latency() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    let client = Arc::new(
        GrpcClient::connect(&format!("http://{}", engine.address))
            .await
            .unwrap(),
    );
    let pipeline = Pipeline::connect(client.clone(), PipelineOptions::default())
        .await
        .unwrap();
    let edge = Edge::new(EdgeConfig::default(), client).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let direct = format!("http://{}/v1/completions", listener.local_addr().unwrap());
    let serving = tokio::spawn(edge.serve(listener, CancellationToken::new()));
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
    serving.abort();
}

/// A thousand streams at once, each with 20 tokens a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a benchmark"]
async fn figures_of_a_thousand_streams() {
    let options = EngineOptions {
        max_num_seqs: 1024,
        ..EngineOptions::default()
    };
    let engine = TestEngine::start(options).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    engine.control.hold();
    let pacing = {
        let control = Arc::clone(&engine.control);
        tokio::spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_secs(1) / STEPS_PER_SECOND);
            loop {
                pace.tick().await;
                control.allow(1);
            }
        })
    };
    let listen = async |number: usize| {
        let mut asked = body(&format!("{number:04}"), NUM_STEPS);
        asked["stream"] = json!(true);
        let response = gateway
            .request("a", "/v1/completions", &asked)
            .send()
            .await
            .unwrap();
        let mut bytes = Box::pin(response.bytes());
        let (mut gaps, mut last, mut end) = (Vec::new(), None, String::new());
        while let Some(more) = bytes.next().await {
            let now = Instant::now();
            gaps.extend(last.map(|last| now - last));
            last = Some(now);
            end = String::from_utf8_lossy(&more).into_owned();
        }
        (gaps, end.ends_with("data: [DONE]\n\n"))
    };
    let heard = futures::future::join_all((0..NUM_STREAMS).map(listen)).await;
    let num_whole = heard.iter().filter(|(_, is_whole)| *is_whole).count();
    let gaps: Vec<Duration> = heard.into_iter().flat_map(|(gaps, _)| gaps).collect();
    let longest = gaps.iter().max().copied();
    show("between two events of a stream", gaps);
    eprintln!("longest: {longest:?}; {num_whole} of {NUM_STREAMS} streams came to their end");
    pacing.abort();
}
