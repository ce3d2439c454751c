//! The ports of the real `kvasir engine`: which it opens, and which it refuses to.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use support::{Server, kvasir, model, run};

/// Certificate, key and authority of an engine, in a folder.
fn write_pki(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["engine.chat.svc".to_owned()])
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    for (name, pem) in [
        ("ca.crt", authority.pem()),
        ("tls.crt", leaf.pem()),
        ("tls.key", key.serialize_pem()),
    ] {
        std::fs::write(folder.join(name), pem).unwrap();
    }
}

/// An address that was free a moment ago.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_engine_for_gateways_opens_its_ports_with_mutual_tls() {
    let Some(model) = model() else { return };
    let folder = tempfile::tempdir().unwrap();
    write_pki(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (health, metrics) = (free_address(), free_address());
    let engine = Server::start(&[
        "engine",
        &model,
        "--listen=0.0.0.0:0",
        &format!("--tls-cert={}", file("tls.crt")),
        &format!("--tls-key={}", file("tls.key")),
        &format!("--tls-client-ca={}", file("ca.crt")),
        "--tls-client-name=dns:gateway.chat.svc",
        "--tls-admin-name=uri:spiffe://kvasir/operator",
        "--gateway-mode",
        &format!("--health-listen={health}"),
        &format!("--metrics-listen={metrics}"),
        "--admin-listen=127.0.0.1:0",
        "--kv-cache-memory-bytes=64MiB",
        "--served-model-name=chat",
        "--served-model-name=other",
    ]);
    assert!(engine.target.starts_with("https://0.0.0.0:"), "{}", engine.target);
    assert!(get(&health, "/health").starts_with("HTTP/1.1 200"));
    assert!(get(&health, "/ready").starts_with("HTTP/1.1 200"));
    assert!(get(&health, "/metrics").starts_with("HTTP/1.1 404"));
    let figures = get(&metrics, "/metrics");
    // As the gateway's figures of the same model are labelled.
    let named = "\nvllm:num_requests_running{model_name=\"chat\",engine=\"0\"}";
    assert!(figures.contains(named), "{figures}");
    assert!(get(&metrics, "/health").starts_with("HTTP/1.1 404"));
    engine.signal("TERM");
    let (status, said) = engine.wait();
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn an_engine_is_not_opened_to_the_network_without_mutual_tls() {
    for (arguments, named) in [
        (&["--listen=0.0.0.0:0"][..], "tls-client-ca"),
        (
            &["--listen=0.0.0.0:0", "--tls-cert=a", "--tls-key=b"],
            "belong together",
        ),
        (&["--admin-listen=127.0.0.1:0"], "mutual TLS"),
        (&["--world-size=2"], "one rank"),
        (
            &[
                "--listen=0.0.0.0:0",
                "--tls-cert=/none",
                "--tls-key=/none",
                "--tls-client-ca=/none",
                "--tls-client-name=dns:a",
            ],
            "/none",
        ),
    ] {
        let ran = run(kvasir(&["engine"]).args(arguments));
        assert_eq!(ran.code, Some(64), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(named), "{arguments:?}: {}", ran.stderr);
    }
}
