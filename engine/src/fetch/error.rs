//! Why a model isn't there.

use std::fmt;
use std::io;
use std::path::PathBuf;

use kvasir_config::StartFault;
use kvasir_weights::Digest;

use super::hub::SelectError;
use super::source::InvalidName;
use crate::disk::has_no_room;

/// A model can't be found or fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The name is neither a path nor a repository.
    #[error("can't use the model name `{name}`")]
    InvalidName {
        /// What was given.
        name: String,
        /// What is wrong with it.
        #[source]
        source: InvalidName,
    },
    /// A local path doesn't exist.
    #[error("there is no file or directory {path}; a Hugging Face model is given as org/name")]
    NoSuchFile {
        /// The path.
        path: PathBuf,
    },
    /// There is no directory to keep models in.
    #[error("neither HOME nor KVASIR_CACHE is set; give the directory for models with --model-cache")]
    NoCacheDirectory,
    /// The hub's address can't be used.
    #[error("HF_ENDPOINT is `{endpoint}`; it must begin with http:// or https:// and a host name")]
    InvalidEndpoint {
        /// The address.
        endpoint: String,
    },
    /// The network is switched off and the cache lacks the model.
    #[error(
        "HF_HUB_OFFLINE is set and {repo} is not in the cache {cache}; unset it, pull the model on a machine with \
         network, or give a path"
    )]
    Offline {
        /// The repository.
        repo: String,
        /// The cache that was searched.
        cache: PathBuf,
    },
    /// A server can't be reached.
    #[error(
        "can't reach {host}: {reason}; check the network and the proxy, set HF_ENDPOINT to a mirror, or give the path \
         of a model file"
    )]
    Unreachable {
        /// The server.
        host: String,
        /// What the transport said.
        reason: String,
    },
    /// The server wants to know who asks, or rejects the token (401).
    #[error("{what}: the hub answered 401; {}", token_hint(*.had_token))]
    Unauthorized {
        /// The repository or file.
        what: String,
        /// Whether a token was sent.
        had_token: bool,
    },
    /// The repository's terms must be accepted first.
    #[error(
        "{repo} is gated: accept its terms on {endpoint}/{repo} and set HF_TOKEN to a token of that account{}",
        if *.had_token { " (the one that was sent has no access)" } else { "" }
    )]
    Gated {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        had_token: bool,
    },
    /// The server knows who asks and refuses (403).
    #[error("{what}: the hub answered 403; the token in HF_TOKEN has no access to it")]
    Forbidden {
        /// The repository or file.
        what: String,
    },
    /// There is no such repository (404).
    #[error("{endpoint} has no model {repo}; check the spelling, or set HF_TOKEN if it is private")]
    NoSuchRepo {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
    },
    /// The repository has no such branch, tag or commit (404).
    #[error("{repo} has no revision `{revision}`")]
    NoSuchRevision {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
    },
    /// The repository has no such file (404).
    #[error("{repo} has no file {file} at revision `{revision}`")]
    NoSuchRemoteFile {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// The revision.
        revision: String,
    },
    /// The server wants a credential for the address (401, 403).
    #[error(
        "{url}: the server answered {status}: it wants a credential, and none is sent with an address; use a signed one"
    )]
    UrlRefused {
        /// The address, without its query.
        url: String,
        /// The status.
        status: u16,
    },
    /// There is no file at the address (404, 410).
    #[error("{url}: the server has no such file ({status})")]
    NoSuchUrl {
        /// The address, without its query.
        url: String,
        /// The status.
        status: u16,
    },
    /// The server of an address answered something else.
    #[error("{url}: the server answered {status}")]
    UrlStatus {
        /// The address, without its query.
        url: String,
        /// The status.
        status: u16,
    },
    /// None of the repository's files can be used.
    #[error("can't choose a file of {repo}")]
    Select {
        /// The repository.
        repo: String,
        /// Why.
        #[source]
        source: SelectError,
    },
    /// A folder doesn't hold one model.
    #[error("can't tell which model {path} holds")]
    NoModel {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: SelectError,
    },
    /// The server can't continue the file where it stopped (416), twice.
    #[error("{file}: the server refused to send it from byte {offset} on (416)")]
    RangeRefused {
        /// The file.
        file: String,
        /// The first byte that was asked for.
        offset: u64,
    },
    /// The connection ended early and no further try brought more bytes.
    #[error(
        "{file}: the connection ended after {received} of {expected} bytes; run again to continue from there"
    )]
    Truncated {
        /// The file.
        file: String,
        /// Bytes that are here.
        received: u64,
        /// The file's size.
        expected: u64,
    },
    /// The server stopped sending.
    #[error(
        "{file}: nothing came for {} s after {received} of {expected} bytes; run again to continue from there",
        .seconds
    )]
    Stalled {
        /// The file.
        file: String,
        /// How long was waited.
        seconds: f64,
        /// Bytes that are here.
        received: u64,
        /// The file's size.
        expected: u64,
    },
    /// The file isn't what its publisher announced; it was removed.
    #[error(
        "{file} is corrupted: its SHA-256 is {found}, expected {expected}; it was removed, run again to fetch it anew"
    )]
    Corrupted {
        /// The file.
        file: String,
        /// The announced digest.
        expected: Digest,
        /// The digest of what arrived.
        found: Digest,
    },
    /// The server announces another size than before.
    #[error("{file}: the server sends {found} bytes, {expected} were expected")]
    WrongSize {
        /// The file.
        file: String,
        /// The size that was announced or is known.
        expected: u64,
        /// The size of the answer.
        found: u64,
    },
    /// A status that means nothing special.
    #[error("{what}: the hub answered {status}")]
    Status {
        /// The repository or file.
        what: String,
        /// The status.
        status: u16,
    },
    /// An answer doesn't follow the hub's interface.
    #[error("{what}: the hub's answer can't be used: {reason}")]
    BadAnswer {
        /// The repository or file.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// The disk is full.
    #[error(
        "no space left for {path}, which needs {needed} more bytes; free some, or set another --model-cache"
    )]
    NoSpace {
        /// The file that was being written.
        path: PathBuf,
        /// Bytes that are still missing.
        needed: u64,
    },
    /// A file operation failed.
    #[error("can't {action} {path}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The Python package with the default model can't be had.
    #[error("can't get the Python package {package}: {reason}")]
    Package {
        /// Name and version.
        package: &'static str,
        /// What failed.
        reason: String,
    },
    /// The default model isn't in the cache and every way to get it failed.
    #[error("can't get the default model {model}:{}\nConnect to the network or set HF_ENDPOINT to a mirror, install pip, or give the path of a model: `kvasir serve PATH`", Attempts(.attempts))]
    NoSource {
        /// The model.
        model: &'static str,
        /// What was tried, in order.
        attempts: Vec<Attempt>,
    },
    /// No cached model has this name.
    #[error("no model `{name}` is in the cache; `kvasir models list` shows what is")]
    NotCached {
        /// What was given.
        name: String,
    },
}

impl FetchError {
    /// What the failure is about, where the process that fails can say so by its exit code.
    pub(crate) fn fault(&self) -> Option<StartFault> {
        Some(match self {
            Self::Unauthorized { .. }
            | Self::Gated { .. }
            | Self::Forbidden { .. }
            | Self::UrlRefused { .. } => StartFault::Unauthorized,
            Self::NoSuchFile { .. }
            | Self::NoSuchRepo { .. }
            | Self::NoSuchRevision { .. }
            | Self::NoSuchRemoteFile { .. }
            | Self::NoSuchUrl { .. }
            | Self::Select { .. }
            | Self::NoModel { .. }
            | Self::NotCached { .. } => StartFault::NotFound,
            Self::Corrupted { .. } | Self::WrongSize { .. } => StartFault::Digest,
            Self::NoSpace { .. } => StartFault::NoSpace,
            Self::Unreachable { .. }
            | Self::Offline { .. }
            | Self::RangeRefused { .. }
            | Self::Truncated { .. }
            | Self::Stalled { .. }
            | Self::Status { .. }
            | Self::UrlStatus { .. }
            | Self::BadAnswer { .. }
            | Self::Package { .. }
            | Self::NoSource { .. } => StartFault::Unreachable,
            Self::InvalidName { .. }
            | Self::NoCacheDirectory
            | Self::InvalidEndpoint { .. }
            | Self::Io { .. } => return None,
        })
    }

    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// An error of writing to `path`, of which `needed` bytes are still to come.
    pub(super) fn write(path: impl Into<PathBuf>, needed: u64) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| {
            if has_no_room(&source) {
                return Self::NoSpace { path, needed };
            }
            Self::Io {
                action: "write",
                path,
                source,
            }
        }
    }
}

/// One way to get the default model, and why it failed.
#[derive(Debug)]
pub struct Attempt {
    /// The way.
    pub way: String,
    /// The reason, with its causes.
    pub reason: String,
}

struct Attempts<'a>(&'a [Attempt]);

impl fmt::Display for Attempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|attempt| write!(f, "\n  {}: {}", attempt.way, attempt.reason))
    }
}

fn token_hint(had_token: bool) -> &'static str {
    if had_token {
        "the token that was sent is wrong or has expired; check HF_TOKEN"
    } else {
        "it does not exist or is private; check the spelling, or set HF_TOKEN"
    }
}

/// An error's text with those of its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
