//! Copies a file, or what is in a folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::CopyError;

/// Files and folders that a model may have: far more than any, far fewer than links that lead in circles make.
const MOST_ENTRIES: usize = 100_000;
/// Levels of folders.
const MOST_LEVELS: usize = 16;
/// Names in the message about a missing file.
const MOST_NAMES: usize = 12;

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// How many files.
    pub(crate) files: usize,
    /// Their bytes.
    pub(crate) bytes: u64,
}

/// Copies the file `source`, or what is in that folder, into the folder `target`. Links are followed: files arrive, and nothing else. What arrived
/// whole before isn't copied again, so that a copy that was interrupted goes on.
pub(crate) fn copy(source: &Path, target: &Path) -> Result<Copied, CopyError> {
    let files = files_of(source)?;
    fs::create_dir_all(target).map_err(|error| CopyError::write(target, error))?;
    let missing: Vec<&Item> = files.iter().filter(|file| !file.is_at(target)).collect();
    check_space(target, missing.iter().map(|file| file.bytes).sum())?;
    for file in missing {
        file.copy(target)?;
    }
    Ok(Copied {
        files: files.len(),
        bytes: files.iter().map(|file| file.bytes).sum(),
    })
}

/// A file to copy.
#[derive(Debug)]
struct Item {
    from: PathBuf,
    /// Where it goes within the target.
    name: PathBuf,
    bytes: u64,
}

impl Item {
    fn is_at(&self, target: &Path) -> bool {
        fs::metadata(target.join(&self.name)).is_ok_and(|there| there.is_file() && there.len() == self.bytes)
    }

    /// Under another name until it is whole.
    fn copy(&self, target: &Path) -> Result<(), CopyError> {
        let to = target.join(&self.name);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(|error| CopyError::write(folder, error))?;
        }
        let mut partial = to.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let mut input = File::open(&self.from).map_err(|error| CopyError::read(&self.from, error))?;
        let written = File::create(&partial).and_then(|mut output| io::copy(&mut input, &mut output));
        written
            .and_then(|_| fs::rename(&partial, &to))
            .map_err(|error| CopyError::write(&to, error))
    }
}

/// A full disk makes the kubelet evict pods of everybody: better not to begin.
fn check_space(target: &Path, needed: u64) -> Result<(), CopyError> {
    let state = rustix::fs::statvfs(target).map_err(|error| CopyError::write(target, error.into()))?;
    let free = state.f_bavail.saturating_mul(state.f_frsize);
    if needed > free {
        return Err(CopyError::NoSpace {
            path: target.to_owned(),
            needed,
            free,
        });
    }
    Ok(())
}

/// The files under `source`, in the order of their names.
fn files_of(source: &Path) -> Result<Vec<Item>, CopyError> {
    let found = fs::metadata(source).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => missing(source),
        _ => CopyError::read(source, error),
    })?;
    if found.is_file() {
        let name = source.file_name().unwrap_or_default();
        return Ok(vec![Item {
            from: source.to_owned(),
            name: name.into(),
            bytes: found.len(),
        }]);
    }
    let mut files = Vec::new();
    let mut seen = 0;
    let mut folders = vec![(source.to_owned(), PathBuf::new())];
    while let Some((folder, name)) = folders.pop() {
        if name.components().count() > MOST_LEVELS {
            return Err(too_many(source, "levels of folders", MOST_LEVELS));
        }
        for entry in fs::read_dir(&folder).map_err(|error| CopyError::read(&folder, error))? {
            let entry = entry.map_err(|error| CopyError::read(&folder, error))?;
            seen += 1;
            if seen > MOST_ENTRIES {
                return Err(too_many(source, "files and folders", MOST_ENTRIES));
            }
            let (from, name) = (entry.path(), name.join(entry.file_name()));
            // A link to nowhere is no file, as little as a socket is.
            let Ok(about) = fs::metadata(&from) else { continue };
            if about.is_dir() {
                folders.push((from, name));
            } else if about.is_file() {
                let bytes = about.len();
                files.push(Item { from, name, bytes });
            }
        }
    }
    if files.is_empty() {
        return Err(CopyError::Empty {
            path: source.to_owned(),
        });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn too_many(source: &Path, what: &'static str, limit: usize) -> CopyError {
    CopyError::TooMany {
        path: source.to_owned(),
        what,
        limit,
    }
}

/// Says what is there instead, because nobody can look into such an image.
fn missing(source: &Path) -> CopyError {
    let folder = source.ancestors().skip(1).find(|folder| folder.is_dir());
    let folder = folder.unwrap_or(Path::new("/"));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    let found = match (names.as_slice(), more) {
        ([], _) => "nothing".to_owned(),
        (names, 0) => names.join(", "),
        (names, more) => format!("{} and {more} more", names.join(", ")),
    };
    CopyError::Missing {
        path: source.display().to_string(),
        folder: folder.to_owned(),
        found,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn write(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_folders_files_arrive_with_their_folders_and_links_become_files() {
        let (source, target) = (folder(), folder());
        write(source.path(), "blobs/1", "weights");
        write(source.path(), "deep/er/config.json", "{}");
        symlink("blobs/1", source.path().join("model.gguf")).unwrap();
        symlink("nowhere", source.path().join("broken")).unwrap();
        let target = target.path().join("new");
        let copied = copy(source.path(), &target).unwrap();
        assert_eq!(copied, Copied { files: 3, bytes: 16 });
        assert_eq!(fs::read_to_string(target.join("model.gguf")).unwrap(), "weights");
        assert_eq!(
            fs::read_to_string(target.join("deep/er/config.json")).unwrap(),
            "{}"
        );
        assert!(fs::symlink_metadata(target.join("model.gguf")).unwrap().is_file());
        assert!(!target.join("broken").exists());
    }

    #[test]
    fn a_single_file_arrives_under_its_name() {
        let (source, target) = (folder(), folder());
        write(source.path(), "a/model.gguf", "weights");
        copy(&source.path().join("a/model.gguf"), target.path()).unwrap();
        assert_eq!(
            fs::read_to_string(target.path().join("model.gguf")).unwrap(),
            "weights"
        );
    }

    #[test]
    fn a_copy_that_was_interrupted_goes_on_with_what_is_missing() {
        let (source, target) = (folder(), folder());
        write(source.path(), "a", "whole");
        write(source.path(), "b", "other");
        write(target.path(), "a", "WHOLE");
        write(target.path(), "b.partial", "ot");
        copy(source.path(), target.path()).unwrap();
        assert_eq!(fs::read_to_string(target.path().join("a")).unwrap(), "WHOLE");
        assert_eq!(fs::read_to_string(target.path().join("b")).unwrap(), "other");
        assert!(!target.path().join("b.partial").exists());
    }

    #[test]
    fn what_is_there_instead_is_named() {
        let (source, target) = (folder(), folder());
        write(source.path(), "weights/model.gguf", "");
        write(source.path(), "LICENSE", "");
        let error = copy(&source.path().join("models/small"), target.path()).unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("has LICENSE, weights"), "{text}");
        assert!(
            matches!(error.into(), crate::exit::Failure::Model { fault, .. } if fault == kvasir_config::StartFault::NotFound)
        );
    }

    #[test]
    fn a_folder_without_files_is_refused() {
        let (source, target) = (folder(), folder());
        fs::create_dir(source.path().join("empty")).unwrap();
        assert!(matches!(
            copy(source.path(), target.path()),
            Err(CopyError::Empty { .. })
        ));
    }

    #[test]
    fn links_that_lead_in_circles_end() {
        let (source, target) = (folder(), folder());
        for name in ["a", "b"] {
            symlink(".", source.path().join(name)).unwrap();
        }
        write(source.path(), "model.gguf", "weights");
        assert!(matches!(
            copy(source.path(), target.path()),
            Err(CopyError::TooMany { .. })
        ));
    }

    #[test]
    fn more_than_fits_is_not_begun() {
        let (source, target) = (folder(), folder());
        // A file with a hole is as large as it says.
        File::create(source.path().join("model.gguf"))
            .unwrap()
            .set_len(1 << 42)
            .unwrap();
        let error = copy(source.path(), target.path()).unwrap_err();
        assert!(
            matches!(error, CopyError::NoSpace { needed, .. } if needed == 1 << 42),
            "{error}"
        );
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
    }
}
