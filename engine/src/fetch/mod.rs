//! Model sources: local paths, Hugging Face repositories, files at addresses, and the default model.
//!
//! [`resolve`] turns what a person typed into files on this machine. It blocks; async callers run it on a blocking
//! thread. What it guarantees about every file that it fetches:
//!
//! 1. A file appears under its name only when it is whole and, where its publisher states a SHA-256, verified; so a
//!    file that exists is never checked or fetched again. Until then it is called `*.incomplete`.
//! 2. A transfer that was cut, by the network or by `kill -9`, goes on where it stopped.
//! 3. Two processes that want the same file fetch it once: the second waits for the first.
//! 4. A token is sent to the hub's own origin only, never along a redirect to another one.
//! 5. Names that come from the hub are checked before they become paths.
//!
//! The `hf-hub` crate does the first half of 2 and the layout of the cache, but it never compares a digest, appends a
//! whole body to a part when a server ignores the range, and sends the token along redirects; hence our own transfer.

mod cache;
mod default_model;
mod direct;
mod error;
mod hub;
mod lock;
mod options;
mod package;
mod progress;
mod source;
mod transfer;

use std::path::{Path, PathBuf};

use kvasir_config::LoadFormat;

pub use cache::{CachedModel, list, remove};
pub use direct::DirectModel;
pub use error::{Attempt, FetchError};
pub use hub::{HubModel, SelectError, Selector};
pub use options::{FetchOptions, Timing, Token};
pub use progress::{FetchEvent, Progress};
pub use source::{InvalidName, Source};

/// A model whose files are all on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// What people call it: the file's stem, the directory's name, or `org/name`.
    pub name: String,
    /// The file or directory for `Checkpoint::open`.
    pub path: PathBuf,
}

/// What of a repository with several forms of a model is wanted, where its name doesn't say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The form of the files.
    pub format: LoadFormat,
    /// The quantization.
    pub quantization: Option<String>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            format: LoadFormat::Auto,
            quantization: None,
        }
    }
}

/// Finds or fetches a model; no name means the default one.
///
/// # Errors
/// [`FetchError`]; its text says what was tried and what to do.
pub fn resolve(
    model: Option<&str>,
    options: &FetchOptions,
    progress: &dyn Progress,
) -> Result<LocalModel, FetchError> {
    resolve_wanted(model, &Wanted::default(), options, progress)
}

/// The same, where it matters which form of the model it is. Files that have another form aren't refused here: whoever opens them sees it.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_wanted(
    model: Option<&str>,
    wanted: &Wanted,
    options: &FetchOptions,
    progress: &dyn Progress,
) -> Result<LocalModel, FetchError> {
    let invalid = |source| FetchError::InvalidName {
        name: model.unwrap_or_default().to_owned(),
        source,
    };
    match Source::parse(model).map_err(invalid)? {
        Source::Default => default_model::resolve(options, progress),
        Source::Local(path) => local(path),
        Source::Hub(mut model) => {
            model.wanted = wanted.clone();
            hub::resolve(&model, options, progress)
        }
        Source::Direct(model) => direct::resolve(&model, options, progress),
    }
}

/// The files in `folder` that a model is served from, by name, as [`resolve`] would fetch them from a repository.
///
/// # Errors
/// [`FetchError::Io`] if the folder can't be read, [`FetchError::NoModel`] if it holds none, or several.
pub(crate) fn model_files(folder: &Path) -> Result<Vec<String>, FetchError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(FetchError::io("read", folder))? {
        let entry = entry.map_err(FetchError::io("read", folder))?;
        files.extend(entry.file_name().into_string());
    }
    files.sort_unstable();
    hub::served(&files).map_err(|source| FetchError::NoModel {
        path: folder.to_owned(),
        source,
    })
}

fn local(path: PathBuf) -> Result<LocalModel, FetchError> {
    if !path.exists() {
        return Err(FetchError::NoSuchFile { path });
    }
    let stem = if path.is_dir() {
        // The last component of `.` or `a/..` is only known after the links are followed.
        path.canonicalize()
            .ok()
            .and_then(|full| full.file_name().map(ToOwned::to_owned))
    } else {
        path.file_stem().map(ToOwned::to_owned)
    };
    let name = stem.map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok(LocalModel { name, path })
}
