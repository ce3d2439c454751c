//! Brings a model out of an image that holds nothing else.
//!
//! A pod can mount an image as a volume only on Kubernetes 1.35 and containerd 2.1 or later. What works everywhere is a container of the
//! image that copies its files into a volume of the pod, but images of models are mostly built from nothing: they have no shell and
//! no `cp`. So another container puts this program there first, with the loader and the libraries it is linked to: the model's container runs that.

mod files;
mod program;

pub(crate) use files::copy;
pub(crate) use program::install;

use std::io;
use std::path::{Path, PathBuf};

use kvasir_config::{ByteCount, StartFault};

use crate::disk::has_no_room;
use crate::exit::{Failure, chain};

/// Why files weren't copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    /// There is nothing of that name.
    #[error("{path} doesn't exist: {} has {found}", folder.display())]
    Missing {
        /// What was asked for, as a person reads it.
        path: String,
        /// The last folder on the way there that exists.
        folder: PathBuf,
        /// What that folder has instead.
        found: String,
    },
    /// A folder without files.
    #[error("{} holds no file", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// Links that lead in circles, or something that isn't a model.
    #[error("{} has more than {limit} {what}: this is no model", path.display())]
    TooMany {
        /// What was asked for.
        path: PathBuf,
        /// Files and folders, or levels of folders.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// The files are larger than what the volume has left.
    #[error("no space left in {}: the model needs {}, {} are free", path.display(), ByteCount(*needed), ByteCount(*free))]
    NoSpace {
        /// The target.
        path: PathBuf,
        /// Bytes that are still to be copied.
        needed: u64,
        /// Bytes that fit.
        free: u64,
    },
    /// A file can't be read.
    #[error("can't read {}: it must be readable for user {user}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Who reads.
        user: u32,
        /// Why not.
        source: io::Error,
    },
    /// A file can't be written.
    #[error("can't write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The system doesn't say what this process is made of.
    #[error("can't tell which files this program consists of: {0}")]
    Program(String),
}

impl CopyError {
    fn read(path: &Path, source: io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            user: rustix::process::geteuid().as_raw(),
            source,
        }
    }

    fn write(path: &Path, source: io::Error) -> Self {
        Self::Write {
            path: path.to_owned(),
            source,
        }
    }

    fn fault(&self) -> Option<StartFault> {
        match self {
            Self::Missing { .. } | Self::Empty { .. } => Some(StartFault::NotFound),
            Self::TooMany { .. } | Self::Read { .. } => Some(StartFault::BadFiles),
            Self::NoSpace { .. } => Some(StartFault::NoSpace),
            Self::Write { source, .. } => has_no_room(source).then_some(StartFault::NoSpace),
            Self::Program(_) => None,
        }
    }
}

impl From<CopyError> for Failure {
    /// With the same codes as an engine that can't have its model.
    fn from(error: CopyError) -> Self {
        let text = chain(&error);
        match error.fault() {
            Some(fault) => Self::Model { fault, text },
            None => Self::Failed(text),
        }
    }
}
