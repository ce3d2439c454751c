//! Whole processes over the real model: start, streams, signals, exit codes, chat and generate.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::Read;

use serde_json::Value;
use support::{Server, kvasir, model, run, run_with_input};

/// Enough tokens that a stream can't end by itself before a signal arrives.
const LONG: u32 = 4000;
/// Enough that some are still to come when the signal arrives, and few enough to wait for.
const SHORT: u32 = 100;

fn serve(model: &str, more: &[&str]) -> Server {
    Server::start(
        &[
            &["serve", model, "--port", "0", "--kv-cache-memory-bytes", "256MiB"],
            more,
        ]
        .concat(),
    )
}

/// The text of a stream's events.
fn streamed_text(events: &str) -> String {
    events
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
        .map(|json| serde_json::from_str::<Value>(&format!("{{{json}")).unwrap())
        .filter_map(|event| Some(event["choices"][0]["text"].as_str()?.to_owned()))
        .collect()
}

#[test]
fn server_says_what_it_serves_and_serves_it() {
    let Some(model) = model() else { return };
    let server = serve(
        &model,
        &["--served-model-name", "smol", "--max-model-len", "2048"],
    );
    for expected in [
        "max-model-len",
        "2048",
        "(flag)",
        "kv-cache-memory-bytes",
        "/v1/chat/completions",
        "public",
        "curl http://",
    ] {
        assert!(
            server.banner.contains(expected),
            "{expected} is missing in\n{}",
            server.banner
        );
    }
    assert_eq!(server.request("GET", "/ready", None, "").0, 200);
    let body = r#"{"model": "smol", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 24, "temperature": 0}"#;
    let (status, answer) = server.request("POST", "/v1/chat/completions", None, body);
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("Paris"), "{answer}");
    server.signal("TERM");
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn configuration_is_served_with_sources_and_without_keys() {
    let Some(model) = model() else { return };
    let server = serve(&model, &["--api-key", "hunter2", "--max-num-seqs", "7"]);
    assert!(!server.banner.contains("hunter2"), "{}", server.banner);
    assert!(server.banner.contains("$KVASIR_API_KEY"), "{}", server.banner);
    assert_eq!(server.request("GET", "/server_info", None, "").0, 401);
    let (status, info) = server.request("GET", "/server_info", Some("hunter2"), "");
    assert_eq!(status, 200);
    assert!(info.contains("<set>") && !info.contains("hunter2"), "{info}");
    assert!(
        info.contains(r#""max-num-seqs":{"value":7,"source":"flag"}"#),
        "{info}"
    );
}

/// The texts that a request is answered with.
fn texts(server: &Server, n: u32, seed: u64) -> Vec<String> {
    let body = format!(
        r#"{{"prompt": "One day a fox and a hen met at the river and", "max_tokens": 24, "n": {n}, "seed": {seed}, "temperature": 0.9}}"#
    );
    let (status, answer) = server.request("POST", "/v1/completions", None, &body);
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let choices = answer["choices"].as_array().unwrap().iter();
    choices
        .map(|choice| choice["text"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn sequences_that_share_a_prompt_are_those_of_requests_with_the_seeds_that_follow() {
    let Some(model) = model() else { return };
    let server = serve(&model, &[]);
    let together = texts(&server, 4, 11);
    let alone: Vec<String> = (11..15).flat_map(|seed| texts(&server, 1, seed)).collect();
    assert_eq!(together, alone);
    assert_ne!(together[0], together[1]);
}

#[test]
fn streams_are_finished_before_a_terminated_server_ends() {
    let Some(model) = model() else { return };
    let server = serve(&model, &[]);
    let (mut undisturbed, mut expected) = server.begin_stream(SHORT);
    undisturbed.read_to_string(&mut expected).unwrap();
    let (mut stream, mut text) = server.begin_stream(SHORT);
    server.signal("TERM");
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    assert_eq!(streamed_text(&text), streamed_text(&expected));
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn the_end_of_its_terminal_ends_a_server_after_its_streams_unless_it_was_started_to_stay() {
    let Some(model) = model() else { return };
    let server = serve(&model, &[]);
    let (mut stream, mut text) = server.begin_stream(30);
    server.signal("HUP");
    server.signal("HUP");
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    for role in ["serve", "engine"] {
        let place = if role == "serve" {
            "--port=0"
        } else {
            "--listen=127.0.0.1:0"
        };
        let server = Server::start_to_stay(&[role, &model, place, "--kv-cache-memory-bytes=64MiB"]);
        server.signal("HUP");
        server.signal("TERM");
        let (status, said) = server.wait();
        assert_eq!(status.code(), Some(0), "{role}: {said}");
        assert!(
            !said.contains("SIGHUP") && said.contains("SIGTERM"),
            "{role}: {said}"
        );
    }
}

#[test]
fn second_signal_ends_at_once() {
    let Some(model) = model() else { return };
    for first in ["TERM", "INT"] {
        let server = serve(&model, &["--shutdown-timeout", "100000"]);
        let (mut stream, mut text) = server.begin_stream(LONG);
        server.signal(first);
        // Readiness fails first, so the second signal comes while the server drains.
        while server.request("GET", "/ready", None, "").0 == 200 {}
        server.signal("TERM");
        let (status, said) = server.wait();
        assert_eq!(status.code(), Some(75), "{said}");
        assert!(said.contains("second signal"), "{said}");
        drop(stream.read_to_string(&mut text));
        assert!(!text.contains("\"finish_reason\":\"length\""));
    }
}

#[test]
fn deadline_of_the_shutdown_cuts_streams_and_is_told() {
    let Some(model) = model() else { return };
    let server = serve(&model, &["--shutdown-timeout", "200ms"]);
    let (_stream, _) = server.begin_stream(LONG);
    server.signal("TERM");
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(75), "{said}");
    assert!(
        said.contains("1 requests still running") && said.contains("--shutdown-timeout"),
        "{said}"
    );
}

#[test]
fn split_processes_answer_and_end_as_one() {
    let Some(model) = model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}/engine.sock", folder.path().display());
    let engine = Server::start(&[
        "engine",
        &model,
        "--listen",
        &socket,
        "--kv-cache-memory-bytes",
        "256MiB",
    ]);
    assert_eq!(engine.target, socket);
    let edge = Server::start(&["serve", "--port", "0", "--engine", &socket]);
    let body = r#"{"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}"#;
    let (status, answer) = edge.request("POST", "/v1/completions", None, body);
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("Paris"), "{answer}");
    let (mut stream, mut text) = edge.begin_stream(SHORT);
    engine.signal("TERM");
    stream.read_to_string(&mut text).unwrap();
    assert!(
        text.contains("data: [DONE]") && text.contains("\"finish_reason\":\"length\""),
        "{text}"
    );
    let (status, said) = engine.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    edge.signal("INT");
    let (status, said) = edge.wait();
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn engine_whose_deadline_passes_exits_with_75() {
    let Some(model) = model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}/engine.sock", folder.path().display());
    let engine = Server::start(&[
        "engine",
        &model,
        "--listen",
        &socket,
        "--kv-cache-memory-bytes",
        "256MiB",
        "--shutdown-timeout",
        "0.2",
    ]);
    let edge = Server::start(&["serve", "--port", "0", "--engine", &socket]);
    let (_stream, _) = edge.begin_stream(LONG);
    engine.signal("TERM");
    let (status, said) = engine.wait();
    assert_eq!(status.code(), Some(75), "{said}");
}

#[test]
fn chat_answers_each_line_of_a_pipe() {
    let Some(model) = model() else { return };
    let arguments = ["chat", &model, "--temperature", "0", "--max-tokens", "24"];
    let ran = run_with_input(
        &mut kvasir(&arguments),
        "What is the capital of France?\n\nAnd of Italy?\n",
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("Paris") && ran.stdout.contains("Rome"),
        "{}",
        ran.stdout
    );
    assert!(
        !ran.stdout.contains('\u{1b}') && ran.stdout.ends_with('\n'),
        "{:?}",
        ran.stdout
    );
    assert_eq!(ran.stderr, "");
}

#[test]
fn generate_equals_the_server_and_continues_where_it_stopped() {
    let Some(model) = model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (input, output) = (path("in.jsonl"), path("out.jsonl"));
    let row = |row: u32| {
        format!("{{\"id\": \"row-{row}\", \"prompt\": \"{row} plus one is\", \"max_tokens\": 6}}\n")
    };
    let rows = (0..20).map(row).collect::<Vec<_>>().concat();
    fs::write(
        &input,
        format!("{rows}{{\"id\": \"bad\", \"prompt\": \"a\", \"temperature\": 9}}\n"),
    )
    .unwrap();
    let arguments = [
        "generate",
        &model,
        "--input",
        &input,
        "--output",
        &output,
        "--temperature",
        "0",
    ];
    let ran = run(&mut kvasir(&arguments));
    assert_eq!(ran.code, Some(3), "one row can't be answered: {}", ran.stderr);
    let sorted = |text: &str| {
        let mut rows: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        rows.sort_by_key(|row| row["index"].as_u64());
        // Rows that failed are asked again, and stand there again; no other row does.
        rows.dedup_by(|row, before| row == before && !row["error"].is_null());
        rows
    };
    let whole = fs::read_to_string(&output).unwrap();
    let first = sorted(&whole);
    assert_eq!(first.len(), 21);
    assert_eq!(first[20]["error"]["param"], "temperature");
    // A process killed while it wrote its ninth line.
    let kept: usize = whole.split_inclusive('\n').take(8).map(str::len).sum::<usize>() + 5;
    fs::write(&output, &whole[..kept]).unwrap();
    let resumed = run(&mut kvasir(&arguments));
    assert_eq!(resumed.code, Some(3), "{}", resumed.stderr);
    let done = sorted(&whole.split_inclusive('\n').take(8).collect::<String>());
    let done = done.iter().filter(|row| row["error"].is_null()).count();
    let said = format!("{done} rows are done");
    assert!(resumed.stderr.contains(&said), "{said}: {}", resumed.stderr);
    assert_eq!(sorted(&fs::read_to_string(&output).unwrap()), first);
    let server = serve(&model, &[]);
    let body = r#"{"prompt": "7 plus one is", "max_tokens": 6, "temperature": 0}"#;
    let (_, answer) = server.request("POST", "/v1/completions", None, body);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(first[7]["text"], answer["choices"][0]["text"]);
}

#[test]
fn prompts_of_the_command_line_are_answered_on_standard_output() {
    let Some(model) = model() else { return };
    let arguments = [
        "generate",
        &model,
        "--prompt",
        "The capital of France is",
        "--max-tokens",
        "4",
        "--temperature",
        "0",
    ];
    let ran = run(&mut kvasir(&arguments));
    let row: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(row["text"].as_str().unwrap().contains("Paris"), "{row}");
    assert_eq!(row["usage"]["completion_tokens"], 4);
}

#[test]
fn sequences_that_cannot_fit_are_refused_before_anything_is_loaded() {
    let Some(model) = model() else { return };
    let ran = run(&mut kvasir(&[
        "serve",
        &model,
        "--port",
        "0",
        "--max-model-len",
        "8192",
        "--kv-cache-memory-bytes",
        "1MiB",
    ]));
    assert_eq!(ran.code, Some(64), "{}", ran.stderr);
    assert!(ran.stderr.contains("kv-cache-memory-bytes"), "{}", ran.stderr);
    let ran = run(&mut kvasir(&[
        "serve",
        &model,
        "--port",
        "0",
        "--max-model-len",
        "1M",
    ]));
    assert_eq!(ran.code, Some(64), "{}", ran.stderr);
}

#[test]
fn chat_talks_to_a_running_server() {
    let Some(model) = model() else { return };
    let server = serve(&model, &["--api-key", "a-key"]);
    let arguments = [
        "chat",
        "--url",
        &server.target,
        "--temperature",
        "0",
        "--max-tokens",
        "24",
    ];
    let refused = run_with_input(&mut kvasir(&arguments), "Hello\n");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    let with_key = [&arguments[..], &["--api-key", "a-key"]].concat();
    let ran = run_with_input(&mut kvasir(&with_key), "What is the capital of France?\n");
    assert!(ran.stdout.contains("Paris"), "{}{}", ran.stdout, ran.stderr);
    let local = ["chat", &model, "--temperature", "0", "--max-tokens", "24"];
    assert_eq!(
        run_with_input(&mut kvasir(&local), "What is the capital of France?\n").stdout,
        ran.stdout
    );
}

#[test]
fn unix_socket_serves_its_owner_and_goes_with_its_server() {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    let Some(model) = model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("http.sock");
    let server = serve(&model, &["--uds", socket.to_str().unwrap()]);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&socket).unwrap();
    write!(
        stream,
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.signal("TERM");
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(!socket.exists());
}
