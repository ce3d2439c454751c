//! Engines as processes, two gateways in front of them, and what happens when processes die, stop and come back.
//!
//! An engine's process is this test program again, which runs [`engine_process`] alone.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kvasir_service::Engine;
use kvasir_service::grpc::Listener;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::executor::Control;
use crate::support::*;

const LISTEN: &str = "KVASIR_TEST_ENGINE_LISTEN";
const INSTANCE: &str = "KVASIR_TEST_ENGINE_INSTANCE";
const NUM_TOKENS: u32 = 120;
/// Of a step, so that streams last long enough to be interrupted.
const PACE: Duration = Duration::from_millis(5);

/// Not a test: what an engine's process runs. It ends with its parent.
#[test]
#[ignore = "an engine's process, which the other tests start"]
fn engine_process() {
    let Some(listen) = std::env::var_os(LISTEN) else {
        return;
    };
    let instance = std::env::var(INSTANCE).unwrap();
    let control = Arc::new(Control::default());
    control.hold();
    let pacemaker = Arc::clone(&control);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(PACE);
            pacemaker.allow(1);
        }
    });
    // Its input closes when the parent goes.
    std::thread::spawn(|| {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap_or_default();
        std::process::exit(0);
    });
    let options = EngineOptions {
        instance: instance.leak(),
        ..EngineOptions::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = Engine::start(setup(&control, &options)).unwrap();
        let address = listen.to_str().unwrap().parse().unwrap();
        let server = Listener::Tcp(address).bind().await.unwrap();
        server.serve(&engine, CancellationToken::new()).await.unwrap();
    });
}

/// An engine's process. Killed when it's dropped.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(address: SocketAddr, instance: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "processes::engine_process"])
            .env(LISTEN, address.to_string())
            .env(INSTANCE, instance)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self {
            child: child.unwrap(),
            address,
        }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead already.
        self.child.kill().unwrap_or_default();
        drop(self.child.wait());
    }
}

fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// What a client has read of a stream.
struct Heard {
    num_tokens: u64,
    has_error: bool,
}

async fn listen(gateway: &TestGateway, number: usize) -> Heard {
    let mut asked = body(&format!("question {number}"), NUM_TOKENS);
    asked["return_token_ids"] = true.into();
    let data = gateway.stream("a", asked).await.rest().await;
    assert_eq!(data.last().map(String::as_str), Some("[DONE]"), "stream {number}");
    let mut heard = Heard {
        num_tokens: 0,
        has_error: false,
    };
    for frame in &data[..data.len() - 1] {
        assert!(!heard.has_error, "something follows an error");
        let frame: Value = serde_json::from_str(frame).unwrap();
        heard.has_error = frame.get("error").is_some();
        let tokens = frame["choices"][0]["token_ids"].as_array();
        heard.num_tokens += tokens.map_or(0, Vec::len) as u64;
    }
    heard
}

async fn output_tokens(gateways: &[TestGateway]) -> u64 {
    let mut sum = 0.0;
    for gateway in gateways {
        sum += gateway
            .metric("kvasir_gateway_tokens_total{tenant=\"a\",kind=\"output\"}")
            .await;
    }
    sum as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_die_stop_and_restart_and_every_request_is_answered_once_and_accounted_for() {
    let addresses = [free_address(), free_address(), free_address()];
    let mut engines: Vec<Process> = addresses
        .iter()
        .zip(["a", "b", "c"])
        .map(|(address, instance)| Process::start(*address, instance))
        .collect();
    let options = GatewayOptions {
        more: "routing: {policy: LeastRequests, firstTokenTimeoutSeconds: 2}\nwaiting: {holdSeconds: 60}"
            .to_owned(),
        ..GatewayOptions::default()
    };
    let mut gateways = Vec::new();
    for _ in 0..2 {
        gateways.push(
            TestGateway::start(&addresses, options.clone())
                .await
                .with_engines(3)
                .await,
        );
    }
    // Killed while 100 streams run.
    let streams = (0..100).map(|number| listen(&gateways[number % 2], number));
    let killing = async {
        eventually("streams that run", async || {
            let mut begun = 0.0;
            for gateway in &gateways {
                begun += gateway.metric("kvasir_gateway_routed_requests_total").await;
            }
            begun >= 90.0
        })
        .await;
        engines[0].kill();
    };
    let (heard, ()) = futures::join!(futures::future::join_all(streams), killing);
    let num_cut = heard.iter().filter(|heard| heard.has_error).count();
    assert!((1..=40).contains(&num_cut), "{num_cut} streams were cut");
    let whole = |heard: &&Heard| heard.has_error || heard.num_tokens == u64::from(NUM_TOKENS);
    assert_eq!(heard.iter().filter(whole).count(), 100);
    let mut sum: u64 = heard.iter().map(|heard| heard.num_tokens).sum();
    eventually("all settlements", async || output_tokens(&gateways).await == sum).await;

    // Stopped: it holds its connections and answers nothing.
    engines[1].signal("-STOP");
    let asked = (0..24).map(|number| listen(&gateways[number % 2], number));
    let heard = futures::future::join_all(asked).await;
    assert!(
        heard
            .iter()
            .all(|heard| !heard.has_error && heard.num_tokens == u64::from(NUM_TOKENS))
    );
    sum += heard.iter().map(|heard| heard.num_tokens).sum::<u64>();
    let ejected = "kvasir_gateway_engines{state=\"ejected\"}";
    let num_ejected = gateways[0].metric(ejected).await + gateways[1].metric(ejected).await;
    assert!(num_ejected >= 1.0, "{num_ejected}");
    engines[1].signal("-CONT");

    // Restarted, all of them: requests that come meanwhile are held.
    for engine in &mut engines[1..] {
        engine.kill();
    }
    let restarting = async {
        eventually("requests that are held", async || {
            gateways[0].metric("kvasir_gateway_waiting_requests").await > 0.0
        })
        .await;
        let again = engines.iter().zip(["d", "e", "f"]);
        let again: Vec<Process> = again
            .map(|(engine, instance)| Process::start(engine.address, instance))
            .collect();
        again
    };
    let asked = (0..12).map(|number| listen(&gateways[number % 2], number));
    let (heard, _again) = futures::join!(futures::future::join_all(asked), restarting);
    assert!(
        heard
            .iter()
            .all(|heard| !heard.has_error && heard.num_tokens == u64::from(NUM_TOKENS))
    );
    sum += heard.iter().map(|heard| heard.num_tokens).sum::<u64>();
    eventually("all settlements", async || output_tokens(&gateways).await == sum).await;
}
