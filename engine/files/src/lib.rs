//! Reads files that a person named, in a command or a configuration.
//!
//! [`read`] and [`read_text`] take regular files only and stop at a [`Limit`]: a mistyped name may lead to a pipe that nobody writes to, a
//! device without an end, or a model of a hundred gigabytes. [`read_or_stdin`] takes `-` for standard input, too, with the same limit.
//! Nothing blocks but reading from a disk, or from a standard input that is asked for.

mod error;

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

pub use error::FileError;

/// How much of a file is read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limit {
    /// Largest size, in bytes.
    pub max_bytes: u64,
    /// What to do about a larger file, as in "record fewer steps".
    pub advice: &'static str,
}

impl Limit {
    /// For files that people write by hand: configurations, lists of keys.
    pub const SMALL: Self = Self {
        max_bytes: 1 << 20,
        advice: "is it the right file?",
    };
}

/// The whole content of a regular file.
///
/// # Errors
/// If it can't be read, isn't a regular file, or is larger than the limit.
pub fn read(path: &Path, limit: Limit) -> Result<Vec<u8>, FileError> {
    let (file, num_bytes) = open_regular(path)?;
    if num_bytes > limit.max_bytes {
        return Err(FileError::TooLarge {
            name: path.display().to_string(),
            num_bytes,
            limit,
        });
    }
    // The size may change meanwhile, and that of what a kernel makes up is 0.
    drain(file, path.display().to_string(), num_bytes, limit)
}

/// The whole content of a regular file, which must be UTF-8.
///
/// # Errors
/// As [`read`], and if it isn't UTF-8.
pub fn read_text(path: &Path, limit: Limit) -> Result<String, FileError> {
    text(read(path, limit)?, &path.display().to_string())
}

/// As [`read`], with `-` for standard input.
///
/// # Errors
/// As [`read`].
pub fn read_or_stdin(path: &Path, limit: Limit) -> Result<Vec<u8>, FileError> {
    if path == Path::new("-") {
        return drain(std::io::stdin().lock(), STDIN.to_owned(), 0, limit);
    }
    read(path, limit).map_err(FileError::with_stdin)
}

/// As [`read_text`], with `-` for standard input.
///
/// # Errors
/// As [`read_text`].
pub fn read_text_or_stdin(path: &Path, limit: Limit) -> Result<String, FileError> {
    let content = read_or_stdin(path, limit)?;
    let name = if path == Path::new("-") {
        STDIN.to_owned()
    } else {
        path.display().to_string()
    };
    text(content, &name)
}

/// Opens a regular file for reading; gives its size in bytes, too. Never waits for the other end of a pipe.
///
/// # Errors
/// If it can't be opened or isn't a regular file.
pub fn open_regular(path: &Path) -> Result<(File, u64), FileError> {
    let io = |source| FileError::Io {
        name: path.display().to_string(),
        source,
    };
    // Without O_NONBLOCK, opening a pipe waits for a writer. Regular files don't know the difference.
    let no_wait = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(no_wait)
        .open(path)
        .map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if metadata.is_file() {
        return Ok((file, metadata.len()));
    }
    let kind = metadata.file_type();
    Err(FileError::NotRegular {
        name: path.display().to_string(),
        kind: match () {
            () if kind.is_dir() => "a folder",
            () if kind.is_fifo() => "a pipe",
            () if kind.is_socket() => "a socket",
            () => "a device",
        },
        takes_stdin: false,
    })
}

const STDIN: &str = "standard input";

/// Reads to the end, which must come before the limit.
fn drain(source: impl Read, name: String, expected: u64, limit: Limit) -> Result<Vec<u8>, FileError> {
    let mut content = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    let read = source
        .take(limit.max_bytes.saturating_add(1))
        .read_to_end(&mut content);
    match read {
        Err(source) => Err(FileError::Io { name, source }),
        Ok(num_bytes) if num_bytes as u64 > limit.max_bytes => Err(FileError::Endless { name, limit }),
        Ok(_) => Ok(content),
    }
}

fn text(content: Vec<u8>, name: &str) -> Result<String, FileError> {
    String::from_utf8(content).map_err(|error| FileError::NotText {
        name: name.to_owned(),
        at: error.utf8_error().valid_up_to(),
    })
}

#[cfg(test)]
mod tests;
