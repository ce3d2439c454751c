//! The command line as a person meets it, without a model.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::net::TcpListener;

use support::{kvasir, run, run_with_input};

const NO_MODEL: &str = "/nonexistent/model.gguf";

#[test]
fn version_and_help_are_no_errors() {
    let version = run(&mut kvasir(&["--version"]));
    assert_eq!(
        (version.code, version.stdout.trim()),
        (Some(0), concat!("kvasir ", env!("CARGO_PKG_VERSION")))
    );
    let help = run(&mut kvasir(&["--help"]));
    assert_eq!(help.code, Some(0));
    for command in [
        "serve",
        "engine",
        "chat",
        "generate",
        "doctor",
        "models",
        "completions",
    ] {
        assert!(
            help.stdout.contains(&format!("\n  {command}")),
            "{command} is missing in\n{}",
            help.stdout
        );
        assert_eq!(run(&mut kvasir(&[command, "--help"])).code, Some(0), "{command}");
    }
}

#[test]
fn help_of_serve_knows_the_flags_of_vllm() {
    let help = run(&mut kvasir(&["serve", "--help"])).stdout;
    for flag in [
        "--host",
        "--port",
        "--uds",
        "--api-key",
        "--served-model-name",
        "--max-model-len",
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--max-num-active-seqs",
        "--block-size",
        "--kv-cache-memory-bytes",
        "--kv-cache-dtype",
        "--num-gpu-blocks-override",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--long-prefill-token-threshold",
        "--max-num-queued-reqs",
        "--max-num-queued-tokens",
        "--seed",
        "--dtype",
        "--shutdown-timeout",
        "--generation-config",
        "--chat-template",
        "--trust-request-chat-template",
        "--max-logprobs",
        "--enable-prompt-tokens-details",
        "--enable-force-include-usage",
        "--enable-request-id-headers",
        "--sse-keep-alive-interval",
        "--strict",
        "--log-level",
        "--json",
        "--config",
    ] {
        assert!(help.contains(flag), "{flag} is missing in\n{help}");
    }
    for heading in ["Server:", "Model:", "Scheduler and KV cache:", "Process:"] {
        assert_eq!(
            help.matches(&format!("\n{heading}")).count(),
            1,
            "{heading} in\n{help}"
        );
    }
}

#[test]
fn output_that_is_no_terminal_has_no_escape_codes() {
    for arguments in [
        &["--help"][..],
        &["serve", "--help"],
        &["serve", "--nonsense"],
        &["serve", NO_MODEL],
    ] {
        let ran = run(&mut kvasir(arguments));
        assert!(
            !format!("{}{}", ran.stdout, ran.stderr).contains('\u{1b}'),
            "{arguments:?}"
        );
    }
}

#[test]
fn typos_are_refused_with_what_was_meant() {
    for (arguments, meant) in [
        (&["serv"][..], "'serve'"),
        (&["serve", "--max-modle-len", "5"], "'--max-model-len'"),
        (&["serve", "--kv-cache-dtype", "flaot16"], "'float16'"),
        (&["serve", "-m", "x.gguf"], "kvasir serve MODEL"),
        (&["serve", "--ctx-size=4096"], "--max-model-len"),
    ] {
        let ran = run(&mut kvasir(arguments));
        assert_eq!(ran.code, Some(64), "{arguments:?}");
        assert!(ran.stderr.contains(meant), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn bad_values_are_bad_configuration() {
    for arguments in [
        &["serve", "--port", "65536"][..],
        &["serve", "--port", "-1"],
        &["serve", "--max-model-len", "0"],
        &["serve", "--kv-cache-memory-bytes", "2QiB"],
        &["serve", NO_MODEL, "--gpu-memory-utilization", "1.5"],
        &[
            "serve",
            "--max-num-seqs",
            "4097",
            "--max-num-batched-tokens",
            "4096",
        ],
        &["serve", "--strict=maybe"],
        &["serve", NO_MODEL, "--max-num-queued-reqs", "0"],
        &["serve", NO_MODEL, "--max-num-queued-tokens", "0"],
        &["serve", NO_MODEL, "--sse-keep-alive-interval", "0.001"],
        &["serve", "--api-key", ""],
        &["serve", "a", "b"],
        &["serve", "--config", "/nonexistent.yaml"],
        &["serve", "--api-key-file", "/nonexistent"],
        &["engine", "--listen", "0.0.0.0:50051"],
        &["engine", "--listen", "192.168.1.1:50051"],
        &["serve", "--engine", "http://10.0.0.1:50051"],
        &["serve", "--engine", "https://127.0.0.1:50051"],
        &["serve", "--engine", "http://127.0.0.1:1", "--max-num-seqs", "4"],
        &["serve", "--engine", "http://127.0.0.1:1", "model.gguf"],
        &["generate"],
        &["completions", "nushell"],
        &[],
    ] {
        let ran = run(&mut kvasir(arguments));
        assert_eq!(ran.code, Some(64), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
}

#[test]
fn network_is_not_served_without_a_key() {
    for host in ["0.0.0.0", "::", "example.org"] {
        let ran = run(&mut kvasir(&["serve", NO_MODEL, "--host", host]));
        assert_eq!(ran.code, Some(64));
        for way_out in ["--api-key", "127.0.0.1", "--allow-unauthenticated"] {
            assert!(ran.stderr.contains(way_out), "{}", ran.stderr);
        }
    }
    // With a key, or with the consequences accepted, the next thing to fail is the missing model.
    let with_key =
        run(kvasir(&["serve", NO_MODEL, "--host", "0.0.0.0", "--port", "0"]).env("VLLM_API_KEY", "k"));
    assert_eq!(with_key.code, Some(1), "{}", with_key.stderr);
    let open = [
        "serve",
        NO_MODEL,
        "--host",
        "0.0.0.0",
        "--port",
        "0",
        "--allow-unauthenticated",
    ];
    let accepted = run(&mut kvasir(&open));
    assert_eq!(accepted.code, Some(1));
    assert!(accepted.stderr.contains("NO API KEY"), "{}", accepted.stderr);
}

#[test]
fn stronger_layers_hide_what_is_wrong_in_weaker_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvasir.yaml");
    fs::write(&file, "port: wrong-in-file\n").unwrap();
    let file = file.to_str().unwrap();
    let run_with = |flags: &[&str], env: Option<&str>| {
        let mut command = kvasir(&[&["serve", NO_MODEL, "--config", file], flags].concat());
        if let Some(port) = env {
            command.env("KVASIR_PORT", port);
        }
        run(&mut command)
    };
    let ran = run_with(&[], None);
    assert_eq!(ran.code, Some(64));
    assert!(
        ran.stderr.contains("wrong-in-file") && ran.stderr.contains("from file"),
        "{}",
        ran.stderr
    );
    let ran = run_with(&[], Some("wrong-in-env"));
    assert!(
        ran.stderr.contains("wrong-in-env") && ran.stderr.contains("env KVASIR_PORT"),
        "{}",
        ran.stderr
    );
    assert_eq!(run_with(&["--port", "0"], Some("wrong-in-env")).code, Some(1));
    assert_eq!(run_with(&[], Some("0")).code, Some(1));
}

#[test]
fn unknown_key_in_the_file_is_refused_with_what_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvasir.yaml");
    fs::write(&file, "max-num-sequences: 4\n").unwrap();
    let ran = run(&mut kvasir(&["serve", "--config", file.to_str().unwrap()]));
    assert_eq!(ran.code, Some(64));
    assert!(
        ran.stderr.contains("max-num-sequences") && ran.stderr.contains("\"max-num-seqs\""),
        "{}",
        ran.stderr
    );
}

#[test]
fn values_of_a_file_do_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvasir.yaml");
    fs::write(&file, "host: \"a\\u001b[31mred\\u0007\"\n").unwrap();
    let ran = run(&mut kvasir(&["serve", "--config", &file.display().to_string()]));
    assert_eq!(ran.code, Some(64), "{}", ran.stderr);
    assert!(ran.stderr.contains("a\\u{1b}[31mred\\u{7}"), "{}", ran.stderr);
    assert!(!ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
}

#[test]
fn keys_are_in_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvasir.yaml");
    fs::write(&file, "api-key: [hunter2-a, ' hunter2-b']\n").unwrap();
    for ran in [
        run(&mut kvasir(&["serve", "--config", file.to_str().unwrap()])),
        run(&mut kvasir(&["serve", NO_MODEL, "--api-key", " hunter2"])),
        run(kvasir(&["serve", NO_MODEL, "--port", "0"]).env("KVASIR_API_KEY", "hunter2")),
    ] {
        assert!(
            !format!("{}{}", ran.stdout, ran.stderr).contains("hunter2"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn variables_without_effect_are_named() {
    let ran = run(kvasir(&["serve", NO_MODEL, "--port", "0"])
        .env("VLLM_USE_V1", "1")
        .env("KVASIR_PROT", "1"));
    assert!(
        ran.stderr.contains("VLLM_USE_V1") && ran.stderr.contains("KVASIR_PORT?"),
        "{}",
        ran.stderr
    );
}

#[test]
fn missing_model_fails_the_start_and_says_so() {
    // An operator tells by the engine's code that there is no such model.
    for (code, arguments) in [
        (1, &["serve", NO_MODEL, "--port", "0"][..]),
        (66, &["engine", NO_MODEL]),
        (1, &["chat", NO_MODEL]),
        (1, &["generate", NO_MODEL, "--prompt", "a"]),
    ] {
        let ran = run(&mut kvasir(arguments));
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(NO_MODEL), "{}", ran.stderr);
    }
}

#[test]
fn port_in_use_fails_before_the_model_is_loaded() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = run(&mut kvasir(&["serve", NO_MODEL, "--port", &port]));
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains(&port) && ran.stderr.contains("--port"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_folder_for_dumps_that_cant_be_fails_before_the_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let dumps = file.join("dumps").display().to_string();
    for (command, more) in [("serve", &["--port", "0"][..]), ("engine", &[])] {
        let ran = run(kvasir(&[command, NO_MODEL, "--dump-dir", &dumps]).args(more));
        assert_eq!(ran.code, Some(1), "{command}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(&dumps) && ran.stderr.contains("--dump-dir"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn edge_without_its_engine_fails_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}/none.sock", folder.path().display());
    let ran = run(&mut kvasir(&["serve", "--port", "0", "--engine", &socket]));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("none.sock"), "{}", ran.stderr);
}

#[test]
fn files_that_are_not_ours_are_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes.txt");
    fs::write(&notes, "precious\n").unwrap();
    let output = notes.to_str().unwrap();
    let ran = run(&mut kvasir(&[
        "generate", NO_MODEL, "--prompt", "a", "--output", output,
    ]));
    assert_eq!(ran.code, Some(64));
    assert!(ran.stderr.contains("--overwrite"), "{}", ran.stderr);
    assert_eq!(fs::read_to_string(&notes).unwrap(), "precious\n");
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&mut kvasir(&["completions", shell])).stdout;
        for word in ["serve", "generate", "max-model-len", "models"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
}

#[test]
fn empty_cache_lists_nothing_and_removes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    let listed = run(&mut kvasir(&["models", "list", "--model-cache", cache]));
    assert_eq!((listed.code, listed.stdout.as_str()), (Some(0), ""));
    let json = run(&mut kvasir(&["models", "list", "--json", "--model-cache", cache]));
    assert_eq!(json.stdout, "[]\n");
    let removed = run(&mut kvasir(&["models", "rm", "org/name", "--model-cache", cache]));
    assert_eq!(removed.code, Some(1));
    assert!(removed.stderr.contains("org/name"), "{}", removed.stderr);
}

#[test]
fn closed_pipes_are_no_crash() {
    let ran = run_with_input(&mut kvasir(&["chat", NO_MODEL]), "");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
}

/// As a container of a model's image runs it: the loader and the libraries of that folder, and no variable.
#[test]
fn the_copier_runs_by_the_files_of_its_folder_alone() {
    let (tools, source, target) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let tools = tools.path().to_str().unwrap();
    let installed = run(&mut kvasir(&["models", "install-copier", tools]));
    assert_eq!(installed.code, Some(0), "{}", installed.stderr);
    fs::write(source.path().join("model.gguf"), "weights").unwrap();
    let copier = |from: &std::path::Path| {
        let mut command = std::process::Command::new(format!("{tools}/loader"));
        command
            .args([
                "--library-path",
                tools,
                &format!("{tools}/kvasir"),
                "models",
                "copy",
            ])
            .args([from, target.path()])
            .env_clear();
        run(&mut command)
    };
    let copied = copier(source.path());
    assert_eq!(copied.code, Some(0), "{}", copied.stderr);
    assert_eq!(
        fs::read_to_string(target.path().join("model.gguf")).unwrap(),
        "weights"
    );
    let missing = copier(&source.path().join("models"));
    assert_eq!(missing.code, Some(66), "{}", missing.stderr);
    assert!(
        missing.stderr.trim_end().ends_with("has model.gguf"),
        "{}",
        missing.stderr
    );
}
