//! Locks between processes that fetch the same file.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use super::{FetchError, FetchEvent, Progress};

/// A lock that ends with this value, or with the process however it dies.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock file at `path`, waiting as long as another process has it. The file stays: removing it would let
    /// a waiting process lock a file that nobody else sees.
    pub(super) fn acquire(path: &Path, file: &str, progress: &dyn Progress) -> Result<Self, FetchError> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(FetchError::io("create", dir))?;
        }
        let mut options = OpenOptions::new();
        let lock = options
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(FetchError::io("open", path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.on_event(&FetchEvent::Waiting { file });
                lock.lock().map_err(FetchError::io("lock", path))?;
            }
            Err(TryLockError::Error(source)) => return Err(FetchError::io("lock", path)(source)),
        }
        Ok(Self { _file: lock })
    }
}
