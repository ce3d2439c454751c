//! The layout on disk, and when the hub isn't asked.

use std::fs;

use kvasir::fetch::{FetchError, Token, list, remove};

use crate::stub::{COMMIT, Reply, Repo, Stub, content, etag};
use crate::{options, pull, repo_dir};

fn safetensors_repo() -> Repo {
    Repo(vec![
        ("README.md", b"words".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{\"a\":1}".to_vec()),
        ("model.safetensors", content(100_000)),
        ("pytorch_model.bin", b"pickle".to_vec()),
    ])
}

#[test]
fn repository_arrives_in_the_layout_that_other_tools_share() {
    let repo = safetensors_repo();
    let weights = repo.0[3].1.clone();
    let stub = Stub::start(move |request| repo.answer(request));
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    let model = pull("o/n", &options).unwrap();
    let snapshot = repo_dir(&options).join("snapshots").join(COMMIT);
    assert_eq!((model.name.as_str(), &model.path), ("o/n", &snapshot));
    let mut names: Vec<_> = fs::read_dir(&snapshot)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), weights);
    let blob = repo_dir(&options)
        .join("blobs")
        .join(etag("model.safetensors", &weights));
    assert_eq!(fs::read(&blob).unwrap(), weights);
    assert_eq!(
        fs::read_link(snapshot.join("model.safetensors")).unwrap(),
        std::path::Path::new("../../blobs").join(blob.file_name().unwrap())
    );
    assert_eq!(
        fs::read_to_string(repo_dir(&options).join("refs/main")).unwrap(),
        COMMIT
    );
    let left: Vec<_> = fs::read_dir(repo_dir(&options).join("blobs")).unwrap().collect();
    assert_eq!(left.len(), 3, "no incomplete files stay: {left:?}");
}

#[test]
fn cached_files_are_not_fetched_again() {
    let repo = safetensors_repo();
    let stub = Stub::start(move |request| repo.answer(request));
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    pull("o/n", &options).unwrap();
    let before = stub.requests().len();
    pull("o/n", &options).unwrap();
    let again: Vec<_> = stub
        .requests()
        .drain(before..)
        .map(|request| request.path)
        .collect();
    assert_eq!(again, ["/api/models/o/n/revision/main"]);
}

#[test]
fn cached_commit_needs_no_hub() {
    let repo = safetensors_repo();
    let stub = Stub::start(move |request| repo.answer(request));
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    pull("o/n", &options).unwrap();
    let before = stub.requests().len();
    pull(&format!("o/n@{COMMIT}"), &options).unwrap();
    assert_eq!(stub.requests().len(), before);
}

#[test]
fn named_quantization_fetches_its_file_alone() {
    let files = vec![
        ("m.Q4_0.gguf", content(10)),
        ("m.Q8_0.gguf", content(20)),
        ("config.json", b"{}".to_vec()),
    ];
    let repo = Repo(files);
    let stub = Stub::start(move |request| repo.answer(request));
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    let model = pull("o/n:q8_0", &options).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(20));
    let got: Vec<_> = stub
        .requests()
        .into_iter()
        .filter(|request| request.is_get(""))
        .collect();
    assert_eq!(got.len(), 1, "{got:?}");
}

#[test]
fn offline_uses_the_cache_and_says_when_it_can_not() {
    let repo = safetensors_repo();
    let stub = Stub::start(move |request| repo.answer(request));
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &stub.endpoint);
    options.offline = true;
    let error = pull("o/n", &options).unwrap_err();
    assert!(matches!(error, FetchError::Offline { .. }), "{error}");
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    assert!(stub.requests().is_empty());
    options.offline = false;
    let model = pull("o/n", &options).unwrap();
    options.offline = true;
    assert_eq!(pull("o/n", &options).unwrap(), model);
}

#[test]
fn unreachable_hub_falls_back_to_the_cache() {
    let repo = safetensors_repo();
    let stub = Stub::start(move |request| repo.answer(request));
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &stub.endpoint);
    let model = pull("o/n", &options).unwrap();
    options.endpoint = closed_endpoint();
    assert_eq!(pull("o/n", &options).unwrap(), model);
}

#[test]
fn broken_hub_falls_back_to_the_cache() {
    let repo = safetensors_repo();
    let stub = Stub::start(move |request| repo.answer(request));
    let broken = Stub::start(|_| Reply::status(502));
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &stub.endpoint);
    let model = pull("o/n", &options).unwrap();
    options.endpoint.clone_from(&broken.endpoint);
    assert_eq!(pull("o/n", &options).unwrap(), model);
}

#[test]
fn without_network_the_message_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = closed_endpoint();
    let error = pull("o/n", &options(dir.path(), &endpoint)).unwrap_err();
    let FetchError::Unreachable { host, .. } = &error else {
        panic!("{error}")
    };
    assert!(endpoint.ends_with(host.as_str()), "{host}");
    assert!(
        error.to_string().contains("HF_ENDPOINT") && error.to_string().contains("path"),
        "{error}"
    );
}

/// The address of a port that was just free and has no listener.
fn closed_endpoint() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn token_reaches_the_hub_but_not_the_storage_that_it_redirects_to() {
    let weights = content(1000);
    let body = weights.clone();
    let storage = Stub::start(move |_| Reply {
        status: 200,
        body: body.clone(),
        ..Reply::default()
    });
    let location = format!("{}/blob?signature=1", storage.endpoint);
    let repo = Repo(vec![("m.gguf", weights.clone())]);
    let hub = Stub::start(move |request| {
        let mut reply = repo.answer(request);
        if request.path.ends_with("m.gguf") {
            (reply.status, reply.body) = (302, Vec::new());
            reply = reply.with("Location", &location);
        }
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &hub.endpoint);
    options.token = Token::new("secret");
    let model = pull("o/n", &options).unwrap();
    assert_eq!(fs::read(model.path).unwrap(), weights);
    assert!(
        hub.requests()
            .iter()
            .all(|request| request.authorization.as_deref() == Some("Bearer secret"))
    );
    assert_eq!(storage.requests().len(), 1);
    assert_eq!(storage.requests()[0].authorization, None);
}

#[test]
fn renamed_repository_is_followed_with_the_token() {
    let repo = safetensors_repo();
    let stub = Stub::start(move |request| match request.path.replace("/o/old/", "/o/n/") {
        path if path != request.path => Reply::status(307).with("Location", &path),
        _ => repo.answer(request),
    });
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &stub.endpoint);
    options.token = Token::new("secret");
    let model = pull("o/old", &options).unwrap();
    assert!(model.path.join("model.safetensors").is_file());
    assert!(
        stub.requests()
            .iter()
            .all(|request| request.authorization.is_some())
    );
}

#[test]
fn file_name_that_leads_out_of_the_cache_is_refused() {
    let repo = Repo(vec![
        ("../../../evil.safetensors", content(10)),
        ("model.safetensors", content(10)),
    ]);
    let stub = Stub::start(move |request| repo.answer(request));
    let dir = tempfile::tempdir().unwrap();
    let error = pull("o/n", &options(dir.path(), &stub.endpoint)).unwrap_err();
    assert!(matches!(error, FetchError::BadAnswer { .. }), "{error}");
    assert!(error.to_string().contains("evil"), "{error}");
}

#[test]
fn etag_that_leads_out_of_the_cache_is_refused() {
    let repo = safetensors_repo();
    let stub = Stub::start(move |request| {
        let mut reply = repo.answer(request);
        reply
            .headers
            .retain(|(name, _)| !name.to_lowercase().ends_with("etag"));
        reply.with("ETag", "\"../../x\"")
    });
    let dir = tempfile::tempdir().unwrap();
    let error = pull("o/n", &options(dir.path(), &stub.endpoint)).unwrap_err();
    assert!(matches!(error, FetchError::BadAnswer { .. }), "{error}");
    assert!(!dir.path().join("x").exists());
}

#[test]
fn models_are_listed_with_their_size_and_removed_by_name() {
    let repo = safetensors_repo();
    let stub = Stub::start(move |request| repo.answer(request));
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    assert_eq!(list(&options).unwrap(), []);
    pull("o/n", &options).unwrap();
    fs::write(dir.path().join("SmolLM2-135M-Instruct.Q4_1.gguf"), [0; 7]).unwrap();
    let found: Vec<_> = list(&options)
        .unwrap()
        .into_iter()
        .map(|model| (model.name, model.bytes))
        .collect();
    let weights = 100_000 + 2 + 7 + COMMIT.len() as u64;
    assert_eq!(
        found,
        [
            ("SmolLM2-135M-Instruct.Q4_1".to_owned(), 7),
            ("o/n".to_owned(), weights)
        ]
    );
    remove("smollm2", &options).unwrap();
    assert_eq!(remove("o/n", &options).unwrap().bytes, weights);
    assert_eq!(list(&options).unwrap(), []);
    assert!(!repo_dir(&options).exists());
}

#[test]
fn only_what_is_listed_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    fs::create_dir(&cache).unwrap();
    fs::write(dir.path().join("other.gguf"), "x").unwrap();
    let options = options(&cache, "http://127.0.0.1:1");
    for name in ["../other", "../other.gguf", "..", "", "o/n", "smollm2"] {
        let error = remove(name, &options).unwrap_err();
        assert!(matches!(error, FetchError::NotCached { .. }), "{name}: {error}");
    }
    assert!(dir.path().join("other.gguf").exists());
}
