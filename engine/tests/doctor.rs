//! Each cause is brought about in a real server, and `kvasir doctor` names it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Ran, Server, kvasir, model, run};

/// Generous: a cause shows within seconds, on a busy machine later.
const DEADLINE: Duration = Duration::from_mins(3);

/// Two servers at once would take each other's CPUs, and that is a cause too.
static TURN: Mutex<()> = Mutex::new(());

/// The only server that runs.
struct Serving {
    server: Server,
    _turn: MutexGuard<'static, ()>,
}

fn serve(model: &str, more: &[&str]) -> Serving {
    // A test that failed leaves nothing behind that the next one could stumble over.
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Serving {
        server: Server::start(&[&["serve", model, "--port", "0"], more].concat()),
        _turn: turn,
    }
}

fn doctor(server: &Server) -> Value {
    let ran = run(&mut kvasir(&[
        "doctor",
        &server.target,
        "--interval",
        "4",
        "--json",
    ]));
    assert!(matches!(ran.code, Some(0 | 3)), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let is_bad = report["diagnosis"]["state"] == "held_back";
    assert_eq!(ran.code == Some(3), is_bad, "{report}");
    report["diagnosis"].clone()
}

fn finding<'a>(diagnosis: &'a Value, place: &str) -> &'a Value {
    let mut findings = diagnosis["findings"].as_array().unwrap().iter();
    findings.find(|finding| finding["place"] == place).unwrap()
}

/// Clients that ask again and again, each prompt with a number of its own.
struct Load {
    num_clients: u32,
    /// Makes a request of a number that never comes again.
    body: fn(u64) -> Value,
}

impl Load {
    /// Runs the load until the doctor says what is expected.
    fn until(&self, server: &Server, what: &str, is_expected: impl Fn(&Value) -> bool) {
        let (stop, next) = (AtomicBool::new(false), AtomicU64::new(1));
        thread::scope(|scope| {
            for _ in 0..self.num_clients {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let body = (self.body)(next.fetch_add(1, Ordering::Relaxed)).to_string();
                        let mut answer = String::new();
                        // Cut off when the server ends.
                        let mut stream = server.send("POST", "/v1/completions", None, &body);
                        stream.read_to_string(&mut answer).ok();
                    }
                });
            }
            let start = Instant::now();
            let outcome = loop {
                let diagnosis = doctor(server);
                if is_expected(&diagnosis) {
                    break None;
                }
                if start.elapsed() > DEADLINE {
                    break Some(diagnosis);
                }
            };
            stop.store(true, Ordering::Relaxed);
            assert_eq!(outcome, None, "{what} was not named");
        });
    }
}

fn names(place: &'static str) -> impl Fn(&Value) -> bool {
    move |diagnosis| diagnosis["state"] == "held_back" && diagnosis["what"] == place
}

#[test]
fn a_tiny_kv_pool_with_long_outputs_is_named() {
    let Some(model) = model() else { return };
    let flags = [
        "--num-gpu-blocks-override",
        "48",
        "--max-model-len",
        "512",
        "--max-num-seqs",
        "8",
    ];
    let serving = serve(&model, &flags);
    let load = Load {
        num_clients: 8,
        body: |number| json!({ "prompt": format!("{number} is a number that"), "max_tokens": 300, "ignore_eos": true }),
    };
    load.until(&serving.server, "the KV cache", names("kv_cache"));
}

#[test]
fn a_sequence_cap_of_one_with_many_clients_is_named() {
    let Some(model) = model() else { return };
    let serving = serve(&model, &["--max-num-seqs", "1"]);
    let load = Load {
        num_clients: 6,
        body: |number| json!({ "prompt": format!("{number} is"), "max_tokens": 30, "ignore_eos": true }),
    };
    load.until(&serving.server, "the sequence cap", |diagnosis| {
        names("limits")(diagnosis) && diagnosis["summary"].as_str().unwrap().contains("--max-num-seqs")
    });
}

/// Some 130 tokens that begin like no others.
fn long_prompt(number: u64) -> String {
    format!("{number} {}", "words of a long story ".repeat(25))
}

#[test]
fn a_tiny_token_budget_with_long_prompts_is_named() {
    let Some(model) = model() else { return };
    let serving = serve(&model, &["--max-num-batched-tokens", "16", "--max-num-seqs", "8"]);
    let load = Load {
        num_clients: 2,
        body: |number| json!({ "prompt": long_prompt(number), "max_tokens": 1 }),
    };
    load.until(&serving.server, "the token budget", |diagnosis| {
        let summary = diagnosis["summary"].as_str().unwrap();
        names("limits")(diagnosis) && summary.contains("--max-num-batched-tokens")
    });
}

#[test]
fn prompts_that_share_nothing_are_named_and_prompts_that_share_are_not() {
    let Some(model) = model() else { return };
    // Large enough not to be the cause, and small enough that requests wait for the next step on machines of any speed.
    let serving = serve(
        &model,
        &["--max-num-batched-tokens", "520", "--max-num-seqs", "64"],
    );
    let unique = Load {
        num_clients: 12,
        body: |number| json!({ "prompt": long_prompt(number), "max_tokens": 1 }),
    };
    // Other programs may take the CPUs of the machine that tests run on, which comes first in the order then.
    unique.until(&serving.server, "the prefix cache", |diagnosis| {
        finding(diagnosis, "prefix_cache")["verdict"] == "holds"
            && (names("prefix_cache")(diagnosis) || names("scheduling")(diagnosis))
    });
    let shared = Load {
        body: |number| json!({ "prompt": format!("{} {number}", long_prompt(0)), "max_tokens": 1 }),
        ..unique
    };
    shared.until(&serving.server, "a good hit rate", |diagnosis| {
        let finding = finding(diagnosis, "prefix_cache");
        let hit_rate = finding["measured"][0]["value"].as_f64();
        finding["verdict"] == "fine" && hit_rate.is_some_and(|rate| rate > 0.8)
    });
}

/// Processes that do nothing, as fast as they can.
struct Neighbours(Vec<Child>);

impl Neighbours {
    fn start() -> Self {
        let cpus = thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let spin = || {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            command.spawn().unwrap()
        };
        Self((0..4 * cpus).map(|_| spin()).collect())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that ended can't be killed again.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

#[test]
fn neighbours_that_take_the_cpus_are_named() {
    let Some(model) = model() else { return };
    if !PathBuf::from("/proc/self/schedstat").exists() {
        eprintln!("skipped: this kernel doesn't count how long threads wait for a CPU");
        return;
    }
    let serving = serve(&model, &[]);
    let neighbours = Neighbours::start();
    let load = Load {
        num_clients: 2,
        body: |number| json!({ "prompt": format!("{number} is"), "max_tokens": 40, "ignore_eos": true }),
    };
    load.until(&serving.server, "the lack of CPUs", names("scheduling"));
    drop(neighbours);
}

#[test]
fn an_idle_server_is_called_idle_and_keys_are_asked_for() {
    let Some(model) = model() else { return };
    let serving = serve(&model, &["--api-key", "hunter2"]);
    let url = serving.server.target.as_str();
    let refused = run(&mut kvasir(&["doctor", url, "--interval", "0.1"]));
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("answers 401") && refused.stderr.contains("--api-key"),
        "{}",
        refused.stderr
    );
    let with_key = [&["doctor", url, "--interval", "0.5", "--api-key", "hunter2"][..]].concat();
    let idle = run(&mut kvasir(&with_key));
    assert_eq!(idle.code, Some(0), "{}", idle.stderr);
    assert!(
        idle.stdout.contains("Idle. The server is idle"),
        "{}",
        idle.stdout
    );
    assert!(
        !idle.stdout.contains('\u{1b}'),
        "colours in a pipe: {}",
        idle.stdout
    );
    let by_variable =
        run(kvasir(&["doctor", url, "--interval", "0.5", "--json"]).env("KVASIR_API_KEY", "hunter2"));
    assert!(
        by_variable.stdout.contains(r#""state":"idle""#),
        "{}",
        by_variable.stdout
    );
}

#[test]
fn what_is_no_server_is_no_diagnosis() {
    let ran = run(&mut kvasir(&[
        "doctor",
        "http://127.0.0.1:9",
        "--interval",
        "0.1",
    ]));
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("can't reach http://127.0.0.1:9/metrics"),
        "{}",
        ran.stderr
    );
    for wrong in [
        &["doctor"][..],
        &["doctor", "http://x", "--interval", "0"],
        &["doctor", "http://x", "--interval", "NaN"],
    ] {
        assert_eq!(run(&mut kvasir(wrong)).code, Some(64), "{wrong:?}");
    }
}

/// The URL of something that answers every request with these bytes, over and over if it is to be endless.
fn answering(answer: Vec<u8>, is_endless: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // It ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            if stream.read(&mut request).is_err() {
                continue;
            }
            let mut is_open = stream.write_all(&answer).is_ok();
            while is_open && is_endless {
                is_open = stream
                    .write_all(&b"vllm:num_requests_running 1\n".repeat(1000))
                    .is_ok();
            }
        }
    });
    url
}

#[test]
fn hostile_answers_are_refused_in_words() {
    for (answer, words) in [
        (
            &b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"[..],
            "answers 404",
        ),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
            "answers 302",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "breaks off in its last line",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n",
            "has no figure",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nvllm:\xff\x00{\n",
            "has no figure",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nvllm:a 1\n",
            "can't be read",
        ),
        (b"no HTTP at all\r\n\r\n", "can't reach"),
    ] {
        let url = answering(answer.to_vec(), false);
        let ran = run(&mut kvasir(&["doctor", &url, "--interval", "0.1"]));
        assert_eq!(ran.code, Some(1), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
}

#[test]
fn an_endless_answer_is_refused_at_its_limit() {
    let url = answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec(), true);
    let ran = run(&mut kvasir(&["doctor", &url, "--interval", "0.1"]));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("more than 16777216 bytes"), "{}", ran.stderr);
}

/// Diagnoses what was recorded of a server.
fn recorded(name: &str, more: &[&str]) -> Ran {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let path = |when: &str| folder.join(format!("{name}-{when}.prom")).display().to_string();
    let (before, after) = (path("before"), path("after"));
    let arguments = ["doctor", "--interval", "5", "--recorded", &before, &after];
    run(&mut kvasir(&[&arguments, more].concat()))
}

#[test]
fn ranks_that_wait_for_collectives_are_named_from_recorded_figures() {
    let text = recorded("tensor-parallel", &[]);
    assert_eq!(text.code, Some(3), "{}", text.stderr);
    assert!(
        text.stdout
            .contains("Bottleneck. Topology: Tensor parallel ranks"),
        "{}",
        text.stdout
    );
    let json: Value = serde_json::from_str(&recorded("tensor-parallel", &["--json"]).stdout).unwrap();
    assert_eq!(json["diagnosis"]["what"], "topology");
}

#[test]
fn stages_that_wait_for_each_other_are_named_from_recorded_figures() {
    let text = recorded("pipeline-parallel", &[]);
    assert!(
        text.stdout.contains("Bottleneck. Topology: Pipeline stages"),
        "{}",
        text.stdout
    );
}
