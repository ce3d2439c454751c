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
const NUM_TOKENS: u32 = 200;
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
    let stop = CancellationToken::new();
    let parent = stop.clone();
    std::thread::spawn(move || {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap_or_default();
        parent.cancel();
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
        server.serve(&engine, stop).await.unwrap();
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

/// Three engines and two gateways, and what clients have read so far.
struct House {
    engines: Vec<Process>,
    gateways: Vec<TestGateway>,
    num_tokens: u64,
}

impl House {
    async fn open() -> Self {
        let addresses = [free_address(), free_address(), free_address()];
        let engines = addresses.iter().zip(["a", "b", "c"]);
        let engines = engines
            .map(|(address, instance)| Process::start(*address, instance))
            .collect();
        let more =
            "routing: {policy: LeastRequests, firstTokenTimeoutSeconds: 2}\nwaiting: {holdSeconds: 60}";
        let options = GatewayOptions {
            more: more.to_owned(),
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
        Self {
            engines,
            gateways,
            num_tokens: 0,
        }
    }

    /// The sum of a metric of both.
    async fn sum(&self, series: &str) -> f64 {
        self.gateways[0].metric(series).await + self.gateways[1].metric(series).await
    }

    /// What clients hear of so many streams at once, while something happens.
    async fn hear(&self, num_streams: usize, happening: impl Future<Output = ()>) -> Vec<Heard> {
        let streams = (0..num_streams).map(|number| listen(&self.gateways[number % 2], number));
        futures::join!(futures::future::join_all(streams), happening).0
    }

    /// Every token that a client has read is settled, and no other.
    async fn settled(&mut self, heard: &[Heard]) {
        self.num_tokens += heard.iter().map(|heard| heard.num_tokens).sum::<u64>();
        let series = "kvasir_gateway_tokens_total{tenant=\"a\",kind=\"output\"}";
        eventually("all settlements", async || {
            self.sum(series).await as u64 == self.num_tokens
        })
        .await;
    }
}

fn is_whole(heard: &Heard) -> bool {
    !heard.has_error && heard.num_tokens == u64::from(NUM_TOKENS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_die_stop_and_restart_and_every_request_is_answered_once_and_accounted_for() {
    let mut house = House::open().await;
    // Killed while 100 streams run: what had begun there ends with an error, all else comes to its end.
    let mut killed = house.engines.remove(0);
    let killing = async {
        eventually("streams that run", async || {
            house.sum("kvasir_gateway_routed_requests_total").await >= 100.0
        })
        .await;
        killed.kill();
    };
    let heard = house.hear(100, killing).await;
    let num_cut = heard.iter().filter(|heard| heard.has_error).count();
    assert!((1..=40).contains(&num_cut), "{num_cut} streams were cut");
    assert_eq!(
        heard.iter().filter(|heard| is_whole(heard)).count(),
        100 - num_cut
    );
    house.settled(&heard).await;

    // Stopped: it holds its connections and answers nothing.
    house.engines[0].signal("-STOP");
    let heard = house.hear(24, std::future::ready(())).await;
    assert!(heard.iter().all(is_whole));
    house.settled(&heard).await;
    assert!(house.sum("kvasir_gateway_engines{state=\"ejected\"}").await >= 1.0);
    house.engines[0].signal("-CONT");

    // Restarted, all of them: requests that come meanwhile are held.
    for mut engine in std::mem::take(&mut house.engines) {
        engine.kill();
        killed = engine;
    }
    let usable = "kvasir_gateway_engines{state=\"usable\"}";
    eventually("no engine", async || house.sum(usable).await == 0.0).await;
    let restarting = async {
        eventually("requests that are held", async || {
            house.sum("kvasir_gateway_waiting_requests").await > 0.0
        })
        .await;
        killed = Process::start(killed.address, "d");
    };
    let heard = house.hear(12, restarting).await;
    assert!(heard.iter().all(is_whole));
    house.settled(&heard).await;
}
