//! Engines as processes, two gateways in front of them, and what happens when processes die, stop and come back.
//!
//! An engine's process is this test program again, which runs [`engine_process`] alone.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_service::Engine;
use kvasir_service::grpc::Listener;
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::executor::{Control, DEADLINE};
use crate::redis_server::Server;
use crate::support::*;

const LISTEN: &str = "KVASIR_TEST_ENGINE_LISTEN";
const INSTANCE: &str = "KVASIR_TEST_ENGINE_INSTANCE";
/// Milliseconds of a step, in a file that the test changes.
const PACE: &str = "KVASIR_TEST_ENGINE_PACE";
/// What makes an engine's process end when its requests have.
const DRAIN: &str = "drain";
const NUM_TOKENS: u32 = 200;
/// What the tenant may have in a minute; more than any of these tests asks for.
const QUOTA: u64 = 1_000_000;

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
    let pace = PathBuf::from(std::env::var_os(PACE).unwrap());
    std::thread::spawn(move || {
        loop {
            let millis = std::fs::read_to_string(&pace).ok();
            let millis = millis.and_then(|text| text.parse().ok()).unwrap_or(1);
            std::thread::sleep(Duration::from_millis(millis));
            pacemaker.allow(1);
        }
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
        let stop = CancellationToken::new();
        let parent = stop.clone();
        let client = engine.client();
        let heard = tokio::task::spawn_blocking(|| {
            // It closes when the parent goes.
            let mut lines = std::io::stdin().lock().lines();
            lines.any(|line| line.is_ok_and(|line| line == DRAIN))
        });
        tokio::join!(async { server.serve(&engine, stop).await.unwrap() }, async {
            if heard.await.unwrap() {
                assert_eq!(engine.drain(DEADLINE).await, 0);
            }
            drop(client);
            parent.cancel();
        });
    });
}

/// An engine's process. Killed when it's dropped.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(address: SocketAddr, instance: &str, folder: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "processes::engine_process"])
            .env(LISTEN, address.to_string())
            .env(INSTANCE, instance)
            .env(PACE, folder.join(address.port().to_string()))
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

    fn drain(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{DRAIN}").unwrap();
    }

    async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end of an engine", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
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

async fn listen(gateway: &TestGateway, number: usize, num_tokens: u32) -> Heard {
    let mut asked = body(&format!("question {number}"), num_tokens);
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

/// Three engines, two gateways that share limits, and what clients have read so far.
struct House {
    _redis: Server,
    opened: Instant,
    engines: Vec<Process>,
    gateways: Vec<TestGateway>,
    num_tokens: u64,
    num_started: usize,
    folder: TempDir,
}

impl House {
    async fn open() -> Self {
        let addresses = [free_address(), free_address(), free_address()];
        let redis = Server::start().await;
        let url = redis.socket().with_extension("url");
        std::fs::write(&url, redis.url()).unwrap();
        let more = format!(
            "routing: {{policy: LeastRequests, firstTokenTimeoutSeconds: 5}}\nwaiting: {{holdSeconds: 60}}\n\
             limits: {{replicas: 2, store: {{redisUrlFile: {}}}}}",
            url.display()
        );
        let rules = format!("models: \"*\", limits: {{tokensPerMinute: {QUOTA}}}");
        let options = GatewayOptions {
            tenants: vec![("a", rules)],
            more,
        };
        let mut house = Self {
            _redis: redis,
            opened: Instant::now(),
            engines: Vec::new(),
            gateways: Vec::new(),
            num_tokens: 0,
            num_started: 0,
            folder: TempDir::new().unwrap(),
        };
        for address in addresses {
            house.start(address);
        }
        for _ in 0..2 {
            let gateway = TestGateway::start(&addresses, options.clone()).await;
            house.gateways.push(gateway);
        }
        house.usable(3).await;
        house
    }

    /// An engine that nobody has seen before.
    fn start(&mut self, address: SocketAddr) {
        self.num_started += 1;
        let instance = format!("engine-{}", self.num_started);
        let process = Process::start(address, &instance, self.folder.path());
        self.engines.push(process);
    }

    /// From now on an engine's steps, or those of all, take so long.
    fn pace(&self, engine: Option<usize>, millis: u64) {
        let engines = self.engines.iter().enumerate();
        for (_, engine) in engines.filter(|(number, _)| engine.is_none_or(|only| only == *number)) {
            let file = self.folder.path().join(engine.address.port().to_string());
            let new = file.with_extension("new");
            std::fs::write(&new, millis.to_string()).unwrap();
            std::fs::rename(new, file).unwrap();
        }
    }

    /// Waits until both gateways can use so many engines.
    async fn usable(&self, count: usize) {
        let series = "kvasir_gateway_engines{state=\"usable\"}";
        eventually(&format!("{count} usable engines"), async || {
            for gateway in &self.gateways {
                if gateway.metric(series).await as usize != count {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// The sum of a metric of both.
    async fn sum(&self, series: &str) -> f64 {
        self.gateways[0].metric(series).await + self.gateways[1].metric(series).await
    }

    /// Waits until so many more requests have begun than at some time before.
    async fn begun(&self, before: f64, count: usize) {
        eventually("streams that run", async || {
            self.sum(BEGUN).await - before >= count as f64
        })
        .await;
    }

    /// What clients hear of so many streams at once.
    async fn hear(&self, num_streams: usize) -> Vec<Heard> {
        self.hear_short(num_streams, NUM_TOKENS).await
    }

    /// The same of streams of so many tokens each.
    async fn hear_short(&self, num_streams: usize, num_tokens: u32) -> Vec<Heard> {
        let streams = (0..num_streams).map(|number| listen(&self.gateways[number % 2], number, num_tokens));
        futures::future::join_all(streams).await
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

    /// What is left of the tenant's minute, at each gateway, is its quota less every token that was settled.
    async fn quota_is_exact(&self) {
        let series = |kind| format!("kvasir_gateway_tokens_total{{tenant=\"a\",kind=\"{kind}\"}}");
        for gateway in &self.gateways {
            eventually("an exact quota", async || {
                // Settlements reach the server a moment later, and each of these questions costs two tokens.
                let had = self.sum(&series("input")).await + self.sum(&series("output")).await;
                let answer = gateway.complete("a", body("1", 1)).await;
                let left: u64 = answer.header("x-ratelimit-remaining-tokens").parse().unwrap();
                assert!(
                    self.opened.elapsed() < Duration::from_mins(1),
                    "the minute is over"
                );
                left == QUOTA - had as u64 - 2
            })
            .await;
        }
    }
}

const BEGUN: &str = "kvasir_gateway_routed_requests_total";
/// Steps so slow that no stream ends before something happens to it.
const SLOW: u64 = 200;
const FAST: u64 = 1;
/// Much slower than any machine makes a fast engine look, and faster than the longest wait for a first token.
const VERY_SLOW: u64 = 1500;

fn is_whole(heard: &Heard) -> bool {
    !heard.has_error && heard.num_tokens == u64::from(NUM_TOKENS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_engine_cuts_the_streams_that_it_had_begun_and_no_other() {
    let mut house = House::open().await;
    house.pace(None, SLOW);
    let mut killed = house.engines.pop().unwrap();
    let killing = async {
        house.begun(0.0, 90).await;
        killed.kill();
        house.pace(None, FAST);
    };
    let (heard, ()) = futures::join!(house.hear(100), killing);
    let num_cut = heard.iter().filter(|heard| heard.has_error).count();
    // It had about a third of them; with which of the others it would have begun isn't known.
    assert!((1..=60).contains(&num_cut), "{num_cut} streams were cut");
    let num_whole = heard.iter().filter(|heard| is_whole(heard)).count();
    assert_eq!(num_whole, 100 - num_cut);
    house.settled(&heard).await;
    house.quota_is_exact().await;
    house.start(killed.address);
    house.usable(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_engine_fails_no_request_and_its_successor_takes_its_place() {
    let mut house = House::open().await;
    house.pace(None, SLOW);
    let mut drained = house.engines.pop().unwrap();
    let file = house.folder.path().join(drained.address.port().to_string());
    std::fs::write(&file, SLOW.to_string()).unwrap();
    let draining = async {
        house.begun(0.0, 20).await;
        drained.drain();
        let seen = "kvasir_gateway_engines{state=\"draining\"}";
        eventually("an engine that drains", async || house.sum(seen).await == 2.0).await;
        // What it runs ends while others come.
        house.pace(None, FAST);
        std::fs::write(&file, FAST.to_string()).unwrap();
        futures::join!(drained.ended(), house.hear(20))
    };
    let (mut heard, (status, later)) = futures::join!(house.hear(20), draining);
    assert!(status.success());
    heard.extend(later);
    assert!(heard.iter().all(is_whole));
    house.settled(&heard).await;
    house.quota_is_exact().await;
    house.start(drained.address);
    house.usable(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_stands_still_is_ejected_and_what_it_had_not_begun_is_answered() {
    let mut house = House::open().await;
    // It holds its connections and answers nothing.
    house.engines[0].signal("-STOP");
    let heard = house.hear(60).await;
    assert!(heard.iter().all(is_whole));
    house.settled(&heard).await;
    assert!(house.sum("kvasir_gateway_engines{state=\"ejected\"}").await >= 1.0);
    house.engines[0].signal("-CONT");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_slower_than_its_peers_is_ejected_and_used_again_when_it_is_no_slower() {
    const SHORT: u32 = 2;
    let mut house = House::open().await;
    house.pace(Some(0), VERY_SLOW);
    let is_short = |heard: &Heard| !heard.has_error && heard.num_tokens == u64::from(SHORT);
    let ejected = "kvasir_gateway_engines{state=\"ejected\"}";
    // A gateway judges an engine by eight first tokens, of each of three.
    for _ in 0..10 {
        let heard = house.hear_short(60, SHORT).await;
        assert!(heard.iter().all(is_short), "slow isn't lost");
        house.settled(&heard).await;
        if house.sum(ejected).await == 2.0 {
            break;
        }
    }
    assert_eq!(house.sum(ejected).await, 2.0, "both gateways leave it alone");
    let failures = house.gateways[0].metrics().await + &house.gateways[1].metrics().await;
    assert!(
        !failures.contains("kvasir_gateway_engine_failures_total{"),
        "it has failed nothing: {failures}"
    );
    house.quota_is_exact().await;
    house.pace(Some(0), FAST);
    let usable = "kvasir_gateway_engines{state=\"usable\"}";
    eventually("its good probes", async || {
        let heard = house.hear_short(2, SHORT).await;
        assert!(heard.iter().all(is_short));
        house.sum(usable).await == 6.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_all_engines_restart_requests_are_held_and_answered_once() {
    let mut house = House::open().await;
    let first = house.hear(12).await;
    assert!(first.iter().all(is_whole));
    house.settled(&first).await;
    let addresses: Vec<SocketAddr> = house.engines.iter().map(|engine| engine.address).collect();
    for mut engine in std::mem::take(&mut house.engines) {
        engine.kill();
    }
    house.usable(0).await;
    let streams = (0..12).map(|number| listen(&house.gateways[number % 2], number, NUM_TOKENS));
    let streams = futures::future::join_all(streams);
    let restarting = async {
        eventually("requests that are held", async || {
            house.sum("kvasir_gateway_waiting_requests").await == 12.0
        })
        .await;
        let started = addresses.iter().enumerate().map(|(number, address)| {
            Process::start(*address, &format!("restarted-{number}"), house.folder.path())
        });
        started.collect::<Vec<Process>>()
    };
    let (heard, restarted) = futures::join!(streams, restarting);
    house.engines = restarted;
    assert!(heard.iter().all(is_whole));
    house.settled(&heard).await;
    house.usable(3).await;
}
