//! Answers of refusal, each an error of its own.

use kvasir::fetch::{FetchError, SelectError, Token};

use crate::stub::{Reply, Repo, Stub, content};
use crate::{options, pull};

/// The error of a pull from a hub that answers every request alike.
fn refused(model: &str, reply: Reply, token: Option<&str>) -> FetchError {
    let stub = Stub::start(move |_| reply.clone());
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &stub.endpoint);
    options.token = token.and_then(Token::new);
    pull(model, &options).unwrap_err()
}

/// The error of a pull from a hub that has these files and answers requests for their content alike.
fn refused_file(reply: Reply) -> FetchError {
    let repo = Repo(vec![("m.gguf", content(10))]);
    let stub = Stub::start(move |request| {
        if request.path.contains("/resolve/") {
            reply.clone()
        } else {
            repo.answer(request)
        }
    });
    let dir = tempfile::tempdir().unwrap();
    pull("o/n", &options(dir.path(), &stub.endpoint)).unwrap_err()
}

#[test]
fn missing_token_and_wrong_token_are_told_apart() {
    let missing = refused("o/n", Reply::status(401), None);
    assert!(
        matches!(missing, FetchError::Unauthorized { had_token: false, .. }),
        "{missing}"
    );
    assert!(missing.to_string().contains("set HF_TOKEN"), "{missing}");
    let wrong = refused("o/n", Reply::status(401), Some("t"));
    assert!(
        matches!(wrong, FetchError::Unauthorized { had_token: true, .. }),
        "{wrong}"
    );
    assert!(wrong.to_string().contains("wrong or has expired"), "{wrong}");
}

#[test]
fn gated_repository_is_answered_with_where_to_accept_its_terms() {
    for status in [401, 403] {
        let error = refused(
            "o/n",
            Reply::status(status).with("X-Error-Code", "GatedRepo"),
            None,
        );
        assert!(matches!(error, FetchError::Gated { .. }), "{error}");
        assert!(error.to_string().contains("/o/n"), "{error}");
    }
}

#[test]
fn forbidden_file_is_named() {
    let error = refused_file(Reply::status(403));
    assert!(
        matches!(&error, FetchError::Forbidden { what } if what == "o/n/m.gguf"),
        "{error}"
    );
}

#[test]
fn missing_repository_revision_and_file_are_told_apart() {
    let repo = refused(
        "o/n",
        Reply::status(404).with("X-Error-Code", "RepoNotFound"),
        None,
    );
    assert!(matches!(repo, FetchError::NoSuchRepo { .. }), "{repo}");
    let revision = refused(
        "o/n@v9",
        Reply::status(404).with("X-Error-Code", "RevisionNotFound"),
        None,
    );
    assert!(
        matches!(&revision, FetchError::NoSuchRevision { revision, .. } if revision == "v9"),
        "{revision}"
    );
    let file = refused_file(Reply::status(404).with("X-Error-Code", "EntryNotFound"));
    assert!(
        matches!(&file, FetchError::NoSuchRemoteFile { file, .. } if file == "m.gguf"),
        "{file}"
    );
}

#[test]
fn lasting_server_error_is_reported_with_its_status() {
    let error = refused("o/n", Reply::status(500), None);
    assert!(matches!(error, FetchError::Status { status: 500, .. }), "{error}");
}

#[test]
fn endless_redirects_end() {
    let error = refused("o/n", Reply::status(302).with("Location", "/again"), None);
    assert!(error.to_string().contains("redirects"), "{error}");
}

#[test]
fn listing_that_is_no_listing_is_refused() {
    for body in ["", "[]", "{", r#"{"sha":"x","siblings":[]}"#, "<html>"] {
        let reply = Reply {
            status: 200,
            body: body.into(),
            ..Reply::default()
        };
        let error = refused("o/n", reply, None);
        assert!(matches!(error, FetchError::BadAnswer { .. }), "{body}: {error}");
    }
}

#[test]
fn repository_with_pickled_weights_only_is_refused() {
    let repo = Repo(vec![
        ("pytorch_model.bin", content(10)),
        ("config.json", b"{}".to_vec()),
    ]);
    let stub = Stub::start(move |request| repo.answer(request));
    let dir = tempfile::tempdir().unwrap();
    let error = pull("o/n", &options(dir.path(), &stub.endpoint)).unwrap_err();
    assert!(
        matches!(
            &error,
            FetchError::Select {
                source: SelectError::Pickle { .. },
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn missing_local_file_is_told_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let error = pull("./none.gguf", &options(dir.path(), "http://127.0.0.1:1")).unwrap_err();
    assert!(matches!(error, FetchError::NoSuchFile { .. }), "{error}");
}
