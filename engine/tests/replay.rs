//! Dumps of the real server, and `kvasir replay` over them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use support::{Server, kvasir, model, run};

/// A file is there, or is soon.
fn only_file(folder: &Path) -> String {
    let begin = Instant::now();
    loop {
        let mut names = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        if let Some(path) = names.next() {
            assert!(names.next().is_none(), "more than one dump");
            return path.to_str().unwrap().to_owned();
        }
        assert!(begin.elapsed() < Duration::from_mins(2), "no dump was written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_recorded_run_replays_to_the_plans_that_were_executed() {
    let Some(model) = model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let dumps = folder.path().join("dumps");
    let server = Server::start(&[
        "serve",
        &model,
        "--port",
        "0",
        "--kv-cache-memory-bytes",
        "64MiB",
        "--max-num-batched-tokens",
        "32",
        "--max-num-seqs",
        "4",
        "--record-inputs",
        "100000",
        "--enable-debug-dump",
        "--dump-dir",
        dumps.to_str().unwrap(),
    ]);
    assert!(server.banner.contains("/debug/dump"), "{}", server.banner);
    std::thread::scope(|scope| {
        for i in 0..6 {
            let server = &server;
            scope.spawn(move || {
                let body = format!(
                    r#"{{"prompt": "{}", "max_tokens": {}, "n": 2, "seed": {i}}}"#,
                    "one two three ".repeat(1 + 3 * i),
                    3 + i
                );
                let (status, answer) = server.request("POST", "/v1/completions", None, &body);
                assert_eq!(status, 200, "{answer}");
            });
        }
    });
    let (status, dump) = server.request("GET", "/debug/dump", None, "");
    assert_eq!(status, 200, "{dump}");
    server.signal("USR1");
    let written = only_file(&dumps);
    let asked = folder.path().join("asked.json");
    fs::write(&asked, dump).unwrap();

    for file in [asked.to_str().unwrap(), &written] {
        let quiet = run(&mut kvasir(&["replay", "--quiet", file]));
        assert_eq!(quiet.code, Some(0), "{}", quiet.stderr);
        assert!(quiet.stdout.is_empty());
        let plans = run(&mut kvasir(&["replay", file]));
        let steps = plans
            .stdout
            .lines()
            .filter(|line| line.starts_with("step "))
            .count();
        let conclusion =
            format!("{steps} plans; {steps} compared with those that the server executed: all equal\n");
        assert!(steps > 10);
        assert_eq!((quiet.stderr, plans.stderr), (conclusion.clone(), conclusion));
    }
    let summary = run(&mut kvasir(&["replay", "--summary", &written])).stdout;
    assert!(summary.starts_with("step 0 tokens "), "{summary}");
    let events = run(&mut kvasir(&["replay", "--events", &written])).stdout;
    assert!(events.contains("\nfinished seq 0 length\n"), "{events}");
}

#[test]
fn files_that_are_no_dumps_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("foreign.json");
    let foreign = foreign.to_str().unwrap();
    for (content, reason) in [
        ("", "no dump"),
        ("{\"a\": 1}", "no dump"),
        ("{\"format\": \"kvasir.dump.v9\"}", "kvasir.dump.v9"),
    ] {
        fs::write(foreign, content).unwrap();
        let ran = run(&mut kvasir(&["replay", foreign]));
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("foreign.json") && ran.stderr.contains(reason),
            "{}",
            ran.stderr
        );
    }
    let missing = run(&mut kvasir(&["replay", "/nowhere/at/all"]));
    assert_eq!(missing.code, Some(64), "{}", missing.stderr);
    assert!(missing.stderr.contains("/nowhere/at/all"), "{}", missing.stderr);
}
