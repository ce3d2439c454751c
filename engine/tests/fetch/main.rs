//! Fetching models from a stub of the hub.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy doesn't know the helpers of an integration test as tests"
)]

mod cache;
mod direct;
mod package;
mod refusals;
mod stub;
mod transfer;

use std::path::Path;
use std::time::Duration;

use kvasir::fetch::{FetchError, FetchOptions, LocalModel, Timing, resolve};

/// Options that keep everything in `dir` and lose no time with waiting.
fn options(dir: &Path, endpoint: &str) -> FetchOptions {
    FetchOptions {
        cache_dir: dir.to_owned(),
        hub_cache: dir.join("hub"),
        endpoint: endpoint.to_owned(),
        token: None,
        offline: false,
        pip_commands: Vec::new(),
        timing: Timing {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(20),
            body: Duration::from_secs(20),
            retry_delay: Duration::from_millis(1),
            max_tries: 3,
        },
    }
}

fn pull(model: &str, options: &FetchOptions) -> Result<LocalModel, FetchError> {
    resolve(Some(model), options, &())
}

/// The place of the repository `o/n` in the cache.
fn repo_dir(options: &FetchOptions) -> std::path::PathBuf {
    options.hub_cache.join("models--o--n")
}
