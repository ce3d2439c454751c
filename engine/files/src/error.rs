//! Why a file can't be read.

use super::Limit;

/// What is wrong with a file. The texts name it, say what was found and what the limit is, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refuses.
    #[error("can't read {name}: {source}")]
    Io {
        /// The file.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// It may have no end, or wait for ever.
    #[error("{name} is {kind}, not a regular file; {}", if *takes_stdin { "copy it into a file, or give - and pipe it in" } else { "give a file" })]
    NotRegular {
        /// The file.
        name: String,
        /// What it is.
        kind: &'static str,
        /// Whether standard input would do.
        takes_stdin: bool,
    },
    /// It is larger than what is read.
    #[error("{name} has {num_bytes} bytes, more than the limit of {}; {}", limit.max_bytes, limit.advice)]
    TooLarge {
        /// The file.
        name: String,
        /// Its size.
        num_bytes: u64,
        /// What is read.
        limit: Limit,
    },
    /// It went on behind what is read.
    #[error("{name} has more bytes than the limit of {}; {}", limit.max_bytes, limit.advice)]
    Endless {
        /// The file.
        name: String,
        /// What is read.
        limit: Limit,
    },
    /// It should be text.
    #[error("{name} isn't text: byte {at} is no UTF-8")]
    NotText {
        /// The file.
        name: String,
        /// The first byte that is wrong, from 0.
        at: usize,
    },
}

impl FileError {
    /// The way out where standard input is taken, too.
    pub(super) fn with_stdin(self) -> Self {
        match self {
            Self::NotRegular { name, kind, .. } if kind != "a folder" => Self::NotRegular {
                name,
                kind,
                takes_stdin: true,
            },
            other => other,
        }
    }

    /// As an error of the operating system, for those who know no other.
    pub fn into_io(self) -> std::io::Error {
        match self {
            Self::Io { source, .. } => source,
            other => std::io::Error::other(other),
        }
    }
}
