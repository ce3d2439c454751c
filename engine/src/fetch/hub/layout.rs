//! The hub's cache on disk, in the layout that all its tools share:
//!
//! ```text
//! models--org--name/
//!   blobs/ETAG                 the content, once for all revisions
//!   refs/REVISION              the commit that a branch or tag stood for
//!   snapshots/COMMIT/FILE      links to blobs
//! .locks/models--org--name/ETAG.lock
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{FetchError, is_commit, is_relative_name};

/// Deepest folder of a snapshot that is looked into.
const MAX_DEPTH: usize = 8;

/// Revisions that this process noted, for the names of unfinished files.
static NOTED: AtomicU64 = AtomicU64::new(0);

/// The part of the cache that belongs to one repository.
#[derive(Debug)]
pub(in crate::fetch) struct HubCache {
    dir: PathBuf,
    locks: PathBuf,
}

impl HubCache {
    /// The place of `org/name`, whose parts the caller has checked.
    pub(in crate::fetch) fn new(root: &Path, repo: &str) -> Self {
        let name = format!("models--{}", repo.replace('/', "--"));
        Self {
            dir: root.join(&name),
            locks: root.join(".locks").join(name),
        }
    }

    /// The repository's directory.
    pub(in crate::fetch) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of its locks.
    pub(in crate::fetch) fn locks(&self) -> &Path {
        &self.locks
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.dir.join("blobs").join(etag)
    }

    pub(super) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(etag).with_added_extension("lock")
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.dir.join("snapshots").join(commit)
    }

    /// The commit that a revision stood for when it was last fetched.
    pub(super) fn commit(&self, revision: &str) -> Result<Option<String>, FetchError> {
        if is_commit(revision) && self.snapshot(revision).is_dir() {
            return Ok(Some(revision.to_owned()));
        }
        let path = self.dir.join("refs").join(revision);
        match fs::read_to_string(&path) {
            Ok(commit) => Ok(Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(FetchError::io("read", path)(error)),
        }
    }

    /// Notes what a revision stands for. Writes nothing when that is known, so that a read-only cache can be used.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), FetchError> {
        if self.commit(revision)?.as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.dir.join("refs").join(revision);
        let dir = path.parent().unwrap_or(&self.dir);
        fs::create_dir_all(dir).map_err(FetchError::io("create", dir))?;
        // A name of its own: threads of one process may note the same revision at once.
        let number = NOTED.fetch_add(1, Ordering::Relaxed);
        let unfinished = path.with_added_extension(format!("{}-{number}.tmp", std::process::id()));
        fs::write(&unfinished, commit).map_err(FetchError::write(&unfinished, commit.len() as u64))?;
        fs::rename(&unfinished, &path).map_err(FetchError::io("rename", unfinished))
    }

    /// The names of a snapshot's files, relative to it and sorted; of links, those whose blob exists.
    pub(super) fn files(&self, commit: &str) -> Result<Vec<String>, FetchError> {
        let mut files = Vec::new();
        collect(&self.snapshot(commit), "", MAX_DEPTH, &mut files)?;
        files.sort_unstable();
        Ok(files)
    }

    /// Puts a blob into a snapshot under a name that the caller has checked.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), FetchError> {
        let path = self.snapshot(commit).join(file);
        let dir = path.parent().unwrap_or(&self.dir);
        fs::create_dir_all(dir).map_err(FetchError::io("create", dir))?;
        if path.symlink_metadata().is_ok() {
            // A link to a blob that is gone.
            fs::remove_file(&path).map_err(FetchError::io("remove", &path))?;
        }
        let up = "../".repeat(2 + file.matches('/').count());
        match link_file(&self.blob(etag), Path::new(&format!("{up}blobs/{etag}")), &path) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result.map_err(FetchError::io("link", &path)),
        }
    }
}

/// `org/name` of a directory's name in the cache.
pub(in crate::fetch) fn repo_of_dir(name: &str) -> Option<String> {
    let (org, name) = name.strip_prefix("models--")?.split_once("--")?;
    Some(format!("{org}/{name}"))
}

#[cfg(unix)]
fn link_file(_blob: &Path, relative: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, link)
}

/// Symbolic links need a privilege here; hard links don't.
#[cfg(not(unix))]
fn link_file(blob: &Path, _relative: &Path, link: &Path) -> io::Result<()> {
    fs::hard_link(blob, link)
}

fn collect(dir: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) -> Result<(), FetchError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(FetchError::io("read", dir)(error)),
    };
    for entry in entries {
        let path = entry.map_err(FetchError::io("read", dir))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let name = format!("{prefix}{name}");
        if path.is_file() && is_relative_name(&name) {
            files.push(name);
        } else if depth > 0 && path.is_dir() && !path.is_symlink() {
            collect(&path, &format!("{name}/"), depth - 1, files)?;
        }
    }
    Ok(())
}
