//! Files at addresses: verified, resumed, and refused with the reason.

use std::fs;

use kvasir::fetch::{FetchError, LocalModel, list};
use kvasir_weights::Digest;
use sha2::{Digest as _, Sha256};

use crate::stub::{Reply, Request, Stub, content};
use crate::{options, pull};

const LEN: usize = 700_000;

/// A server that has no names for its files' content.
fn plain(request: &Request) -> Reply {
    let bytes = content(LEN);
    let reply = |status, body: &[u8]| Reply {
        status,
        body: body.to_vec(),
        ..Reply::default()
    };
    if !request.path.starts_with("/files/m.gguf") {
        return Reply::status(404);
    }
    match request.range {
        Some(start) if start < LEN => {
            reply(206, &bytes[start..]).with("Content-Range", &format!("bytes {start}-{}/{LEN}", LEN - 1))
        }
        Some(_) => Reply::status(416),
        None => reply(200, &bytes),
    }
}

fn digest() -> String {
    Digest::new(Sha256::digest(content(LEN)).into()).to_string()
}

fn name(stub: &Stub, path: &str) -> String {
    format!("{}{path}#sha256={}", stub.endpoint, digest())
}

fn assert_fetched(model: &LocalModel) {
    assert!(fs::read(&model.path).unwrap() == content(LEN), "the file differs");
    assert_eq!(model.name, "m");
}

fn gets(stub: &Stub) -> Vec<Option<usize>> {
    let requests = stub.requests();
    let gets = requests.iter().filter(|request| request.method == "GET");
    gets.map(|request| request.range).collect()
}

#[test]
fn a_file_is_fetched_once_and_listed() {
    let stub = Stub::start(plain);
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), "http://hub.invalid");
    let model = pull(&name(&stub, "/files/m.gguf"), &options).unwrap();
    assert_fetched(&model);
    let before = stub.requests().len();
    assert_eq!(pull(&name(&stub, "/files/m.gguf"), &options).unwrap(), model);
    assert_eq!(stub.requests().len(), before, "a verified file needs no server");
    assert_eq!(list(&options).unwrap().len(), 1);
}

#[test]
fn a_wrong_digest_is_reported_and_nothing_of_it_is_kept() {
    let stub = Stub::start(plain);
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), "http://hub.invalid");
    let wrong = format!("{}/files/m.gguf#sha256={}", stub.endpoint, "0".repeat(64));
    let error = pull(&wrong, &options).unwrap_err();
    let FetchError::Corrupted { found, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(found.to_string(), digest());
    assert!(list(&options).unwrap().is_empty());
    // With the right one it is fetched anew.
    assert_fetched(&pull(&name(&stub, "/files/m.gguf"), &options).unwrap());
}

#[test]
fn a_redirect_is_followed_and_a_cut_transfer_goes_on() {
    let stub = Stub::start(|request| {
        if request.path == "/latest/m.gguf" {
            return Reply::status(302).with("Location", "/files/m.gguf?signature=secret");
        }
        plain(request).cut_after(400_000)
    });
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), "http://hub.invalid");
    assert_fetched(&pull(&name(&stub, "/latest/m.gguf"), &options).unwrap());
    assert!(gets(&stub).contains(&Some(400_000)), "{:?}", gets(&stub));
}

#[test]
fn a_transfer_that_never_gets_further_ends_and_the_next_run_resumes_it() {
    let stub = Stub::start(|request| {
        let cut = if request.range.is_none() { 1000 } else { 0 };
        plain(request).cut_after(cut)
    });
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), "http://hub.invalid");
    let error = pull(&name(&stub, "/files/m.gguf"), &options).unwrap_err();
    assert!(
        matches!(error, FetchError::Truncated { received: 1000, .. }),
        "{error}"
    );
    let whole = Stub::start(plain);
    assert_fetched(&pull(&name(&whole, "/files/m.gguf"), &options).unwrap());
    assert_eq!(gets(&whole), [Some(1000)]);
}

#[test]
fn a_server_without_head_requests_serves_too() {
    let stub = Stub::start(|request| {
        if request.method == "HEAD" {
            return Reply::status(405);
        }
        plain(request)
    });
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), "http://hub.invalid");
    assert_fetched(&pull(&name(&stub, "/files/m.gguf"), &options).unwrap());
}

#[test]
fn refusals_are_told_apart_and_never_show_a_signature() {
    type Expected = fn(&FetchError) -> bool;
    let cases: [(u16, Expected); 4] = [
        (403, |error| {
            matches!(error, FetchError::UrlRefused { status: 403, .. })
        }),
        (401, |error| {
            matches!(error, FetchError::UrlRefused { status: 401, .. })
        }),
        (404, |error| matches!(error, FetchError::NoSuchUrl { .. })),
        (500, |error| {
            matches!(error, FetchError::UrlStatus { status: 500, .. })
        }),
    ];
    for (status, expected) in cases {
        let stub = Stub::start(move |_| Reply::status(status));
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path(), "http://hub.invalid");
        let error = pull(&name(&stub, "/files/m.gguf?signature=secret"), &options).unwrap_err();
        assert!(expected(&error), "{status}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
