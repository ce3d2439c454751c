//! What is in the caches, and how it leaves them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::default_model;
use super::hub::{HubCache, repo_of_dir};
use super::{FetchError, FetchOptions};

/// Deepest folder that is looked into for sizes.
const MAX_DEPTH: usize = 8;

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// The name that [`resolve`](super::resolve) and [`remove`] take.
    pub name: String,
    /// Its file or directory.
    pub path: PathBuf,
    /// Bytes that it takes on disk, incomplete files included.
    pub bytes: u64,
}

/// All models in the caches, sorted by name.
///
/// # Errors
/// [`FetchError::Io`] when a cache exists and can't be read.
pub fn list(options: &FetchOptions) -> Result<Vec<CachedModel>, FetchError> {
    let mut models = own_files(&options.cache_dir)?;
    for path in entries(&options.hub_cache)? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let Some(repo) = name.as_deref().and_then(repo_of_dir) else {
            continue;
        };
        // Other tools keep tokenizers and configurations here without any weights.
        if has_weights(&path.join("snapshots"), MAX_DEPTH)? {
            let bytes = disk_bytes(&path, MAX_DEPTH)?;
            models.push(CachedModel {
                name: repo,
                path,
                bytes,
            });
        }
    }
    models.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

/// Removes a model with everything that belongs to it; returns what was removed.
///
/// # Errors
/// [`FetchError::NotCached`], or [`FetchError::Io`] when a file can't be removed.
pub fn remove(name: &str, options: &FetchOptions) -> Result<CachedModel, FetchError> {
    let wanted = if default_model::is_name(name) {
        default_model::FILE.trim_end_matches(".gguf")
    } else {
        name
    };
    // Only what is listed can be removed, whatever the name looks like.
    let found = list(options)?
        .into_iter()
        .find(|model| model.name == wanted || model.name == name);
    let model = found.ok_or_else(|| FetchError::NotCached {
        name: name.to_owned(),
    })?;
    if model.path.is_dir() {
        let cache = HubCache::new(&options.hub_cache, &model.name);
        remove_dir(cache.dir())?;
        remove_dir(cache.locks())?;
    } else {
        for path in [
            model.path.clone(),
            model.path.with_added_extension("incomplete"),
            model.path.with_added_extension("lock"),
        ] {
            missing_is_fine(fs::remove_file(&path)).map_err(FetchError::io("remove", path))?;
        }
    }
    Ok(model)
}

fn own_files(dir: &Path) -> Result<Vec<CachedModel>, FetchError> {
    let mut models = Vec::new();
    for path in entries(dir)? {
        let is_gguf = path.extension().is_some_and(|extension| extension == "gguf");
        if let Some(stem) = path.file_stem().filter(|_| is_gguf && path.is_file()) {
            let name = stem.to_string_lossy().into_owned();
            let bytes = disk_bytes(&path, 0)?;
            models.push(CachedModel { name, path, bytes });
        }
    }
    Ok(models)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, FetchError> {
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(FetchError::io("read", dir)(error)),
    };
    listing
        .map(|entry| {
            entry
                .map(|entry| entry.path())
                .map_err(FetchError::io("read", dir))
        })
        .collect()
}

fn has_weights(dir: &Path, depth: usize) -> Result<bool, FetchError> {
    for path in entries(dir)? {
        let is_weights = path
            .extension()
            .is_some_and(|extension| extension == "gguf" || extension == "safetensors");
        if is_weights || (depth > 0 && path.is_dir() && !path.is_symlink() && has_weights(&path, depth - 1)?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Bytes of regular files; links count nothing, so that blobs count once.
fn disk_bytes(path: &Path, depth: usize) -> Result<u64, FetchError> {
    let metadata = path.symlink_metadata().map_err(FetchError::io("read", path))?;
    if metadata.is_file() {
        return Ok(metadata.len());
    }
    if !metadata.is_dir() || depth == 0 {
        return Ok(0);
    }
    entries(path)?
        .iter()
        .map(|path| disk_bytes(path, depth - 1))
        .sum()
}

fn remove_dir(dir: &Path) -> Result<(), FetchError> {
    missing_is_fine(fs::remove_dir_all(dir)).map_err(FetchError::io("remove", dir))
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
