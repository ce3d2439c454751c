//! Dumps in a folder: written whole or not at all, readable by their owner only, and few.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::DumpError;

/// Dumps that stay in a folder; the oldest go.
pub const MAX_FILES: usize = 16;

const PREFIX: &str = "kvasir-";
const SUFFIX: &str = ".dump.json";

/// Makes the folder and tries whether files can be written into it, so that what is wrong with it shows before it is needed.
///
/// # Errors
/// If there can be no such folder, or this process may not write into it.
pub fn prepare(folder: &Path) -> Result<(), DumpError> {
    let probe = folder.join(format!(".{PREFIX}{}.probe", std::process::id()));
    fs::create_dir_all(folder)
        .and_then(|()| write_private(&probe, b""))
        .and_then(|()| fs::remove_file(&probe))
        .map_err(|source| DumpError::Folder {
            path: folder.to_owned(),
            source,
        })
}

/// Writes a dump, and removes the oldest ones if there are too many.
pub(crate) fn write(folder: &Path, kind: &str, bytes: &[u8]) -> Result<PathBuf, DumpError> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let unix_us = since_1970.map_or(0, |since| since.as_micros());
    // Of equal length for some centuries, so that the order of names is the order of time. Two engines may share a folder.
    let name = format!("{PREFIX}{unix_us:016}-{}-{kind}{SUFFIX}", std::process::id());
    let path = folder.join(&name);
    let partial = folder.join(format!(".{name}.partial"));
    let written = write_private(&partial, bytes).and_then(|()| fs::rename(&partial, &path));
    if let Err(source) = written {
        // Nothing more can be done about what can't even be removed.
        drop(fs::remove_file(&partial));
        return Err(failed(&path, source));
    }
    if let Err(error) = remove_oldest(folder) {
        tracing::warn!("old dumps in {} can't be removed: {error}", folder.display());
    }
    Ok(path)
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)
}

fn remove_oldest(folder: &Path) -> io::Result<()> {
    let mut dumps = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_ours = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        if is_ours {
            dumps.push(path);
        }
    }
    dumps.sort_unstable();
    let excess = dumps.len().saturating_sub(MAX_FILES);
    dumps[..excess].iter().try_for_each(fs::remove_file)
}

fn failed(path: &Path, source: io::Error) -> DumpError {
    DumpError::Write {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn the_newest_dumps_stay_and_foreign_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        let old = folder.path().join("kvasir-0000000000000001-1-stall.dump.json");
        fs::write(&old, "old").unwrap();
        let mut last = PathBuf::new();
        for _ in 0..MAX_FILES {
            last = write(folder.path(), "stall", b"{}").unwrap();
        }
        let names = names(folder.path());
        assert_eq!(names.len(), MAX_FILES + 1);
        assert!(!old.exists() && last.exists());
        assert_eq!(names.last().unwrap(), "notes.txt");
    }

    #[test]
    fn only_the_owner_can_read_a_dump() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), "stall", b"{}").unwrap();
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_folder_that_cant_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        prepare(&folder.path().join("dumps")).unwrap();
        assert_eq!(names(&folder.path().join("dumps")), [""; 0], "the probe is gone");
        let error = prepare(&file.join("dumps")).unwrap_err().to_string();
        assert!(error.contains("dumps"), "{error}");
    }
}
