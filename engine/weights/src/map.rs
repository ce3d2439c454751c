//! The one module that maps files into memory.
//!
//! A map is only as stable as the file beneath it. Whoever truncates a model while it is mapped ends the process with
//! SIGBUS at the next touch of a lost page; whoever overwrites it in place changes weights under a running engine.
//! Neither can be prevented from here without copying the file, so the defence is elsewhere: everything structural
//! (names, shapes, offsets, metadata) is parsed into owned data when the file is opened and never read from the map
//! again, tensor bytes are plain numbers for which every bit pattern is valid, and our own downloads only ever put files
//! in place by rename, which leaves an existing map on the old file.

use std::path::{Path, PathBuf};

use kvasir_files::{FileError, open_regular};
use memmap2::Mmap;

use crate::WeightsError;

/// A whole file, mapped read-only.
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps the file at `path`, which must be a regular file with at least one byte.
    pub(crate) fn open(path: &Path) -> Result<Self, WeightsError> {
        let open = |source| WeightsError::Open {
            path: path.to_owned(),
            source,
        };
        let (file, num_bytes) = open_regular(path).map_err(|error| match error {
            FileError::NotRegular { .. } => WeightsError::NotAModel {
                path: path.to_owned(),
                reason: "it is not a regular file",
            },
            other => open(other.into_io()),
        })?;
        if num_bytes == 0 {
            return Err(WeightsError::NotAModel {
                path: path.to_owned(),
                reason: "it is empty",
            });
        }
        #[expect(unsafe_code, reason = "mapping a file is the purpose of this module")]
        // SAFETY: the map is read-only and lives as long as `MappedFile`, whose `bytes` are borrowed from it. The
        // remaining obligation, that nobody truncates or rewrites the file meanwhile, can't be enforced on any Unix;
        // the module's documentation says what follows from breaking it and why nothing else depends on it: no
        // reference to a `str`, a length or an enum is ever made from mapped bytes that outlives the parse.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| WeightsError::Map {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            map,
        })
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's content.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Tells the kernel that the pages aren't needed now. Reading them later loads them again from the file.
    #[cfg(unix)]
    pub(crate) fn advise_done(&self) {
        use memmap2::UncheckedAdvice;
        #[expect(
            unsafe_code,
            reason = "the advice is unchecked because it would lose writes to a private map"
        )]
        // SAFETY: `MADV_DONTNEED` may discard unsaved changes. This map is read-only and backed by a file, so there are
        // none: a later touch reads the same bytes from the page cache or the disk.
        let advised = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
        // Advice is a hint: when the kernel refuses it, memory stays resident and nothing else changes.
        drop(advised);
    }

    /// Nothing to advise on this platform.
    #[cfg(not(unix))]
    pub(crate) fn advise_done(&self) {}
}
