//! `kvasir gateway` as an operator of a gateway meets it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use support::{kvasir, run};

const GOOD: &str = "
auth: {apiKeys: {files: [KEYS]}}
tenants: [{name: team-a, models: '*'}]
cacheSalt: {secretFile: SALT}
engines: {static: [{address: '127.0.0.1:50051'}]}
";

#[test]
fn a_new_key_is_shown_once_and_its_file_passes_the_check() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let made = run(&mut kvasir(&[
        "gateway",
        "keys",
        "new",
        "--tenant",
        "team-a",
        "--expires-in-days",
        "30",
    ]));
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let key = made
        .stderr
        .split_whitespace()
        .find(|word| word.starts_with("kv_"))
        .unwrap();
    let secret = key.rsplit('_').next().unwrap();
    assert!(!made.stdout.contains(secret), "{}", made.stdout);
    fs::write(at("keys.yaml"), &made.stdout).unwrap();
    fs::write(at("salt"), [7; 32]).unwrap();
    let config = GOOD
        .replace("KEYS", &at("keys.yaml"))
        .replace("SALT", &at("salt"));
    fs::write(at("gateway.yaml"), config).unwrap();
    let checked = run(&mut kvasir(&["gateway", "check", "--files", &at("gateway.yaml")]));
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(!checked.stderr.contains("not read"), "{}", checked.stderr);
}

#[test]
fn the_secret_manifest_is_json_with_the_given_name() {
    let made = run(&mut kvasir(&[
        "gateway",
        "keys",
        "new",
        "--tenant",
        "team-a",
        "--format",
        "secret",
        "--secret-name",
        "mine",
    ]));
    let manifest: serde_json::Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(
        (manifest["kind"].as_str(), manifest["metadata"]["name"].as_str()),
        (Some("Secret"), Some("mine"))
    );
}

#[test]
fn all_faults_of_a_configuration_are_listed_with_their_fields() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.yaml");
    fs::write(
        &file,
        GOOD.replace("team-a", "Team").replace("127.0.0.1", "10.0.0.1"),
    )
    .unwrap();
    let checked = run(&mut kvasir(&["gateway", "check", file.to_str().unwrap()]));
    assert_eq!(checked.code, Some(64));
    for field in ["tenants[0].name: ", "engines.tls: "] {
        assert!(checked.stderr.contains(field), "{}", checked.stderr);
    }
    assert_eq!(checked.stdout, "");
}

#[test]
fn files_are_read_only_where_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.yaml");
    fs::write(&file, GOOD).unwrap();
    let file = file.to_str().unwrap();
    let without = run(&mut kvasir(&["gateway", "check", file]));
    assert_eq!(without.code, Some(0));
    // A good file says nothing of what it names, and so does the check.
    assert!(
        without.stderr.contains("files that it names were not read"),
        "{}",
        without.stderr
    );
    let with_files = run(&mut kvasir(&["gateway", "check", "--files", file]));
    assert_eq!(with_files.code, Some(64));
    assert!(with_files.stderr.contains("can't read"), "{}", with_files.stderr);
    assert_eq!(
        run(&mut kvasir(&["gateway", "check", "/nonexistent.yaml"])).code,
        Some(64)
    );
}

#[test]
fn a_tenant_with_an_impossible_name_gets_no_key() {
    let made = run(&mut kvasir(&["gateway", "keys", "new", "--tenant", "Team A"]));
    assert_eq!((made.code, made.stdout.as_str()), (Some(64), ""));
}

#[test]
fn the_schema_is_a_json_schema_of_the_file() {
    let schema: serde_json::Value =
        serde_json::from_str(&run(&mut kvasir(&["gateway", "schema"])).stdout).unwrap();
    assert!(
        schema["$schema"]
            .as_str()
            .is_some_and(|url| url.contains("json-schema.org"))
    );
    assert!(schema["properties"]["tenants"].is_object());
}

/// Asks without a key, which makes a line of the audit log.
fn knock(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[test]
fn sighup_opens_the_audit_log_anew_and_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("keys.yaml"), "[]").unwrap();
    fs::write(at("salt"), [7; 32]).unwrap();
    let config = GOOD
        .replace("KEYS", &at("keys.yaml"))
        .replace("SALT", &at("salt"));
    let more = format!(
        "listen: 127.0.0.1:0\noperationsListen: 127.0.0.2:0\nauditFile: {}\n",
        at("audit")
    );
    fs::write(at("gateway.yaml"), config + &more).unwrap();
    let mut gateway = kvasir(&["gateway", "run", "--config", &at("gateway.yaml")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(gateway.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let serving = said.find(|line| line.starts_with("Serving on ")).unwrap();
    let address = serving
        .split("http://")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    let signal = |name: &str| {
        let sent = Command::new("kill")
            .args([name, &gateway.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    };
    knock(address);
    fs::rename(at("audit"), at("audit.1")).unwrap();
    signal("-HUP");
    said.find(|line| line.contains("the audit log was opened anew"))
        .unwrap();
    knock(address);
    knock(address);
    signal("-TERM");
    assert!(said.all(|line| !line.contains("SIGHUP")));
    assert!(gateway.wait().unwrap().success());
    let lines = |name: &str| fs::read_to_string(at(name)).unwrap().lines().count();
    assert_eq!((lines("audit.1"), lines("audit")), (1, 2));
}
