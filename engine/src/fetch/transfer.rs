//! One file over HTTP: resumed, bounded in time, verified, and put in place only when it is whole.
//!
//! The bytes go to `*.incomplete` as they come, unbuffered, so that a killed process loses none that the system has
//! accepted. The next try hashes what is there and asks for the rest. A try that brings bytes doesn't count against the
//! limit of tries: on a bad line a transfer ends when the file does. Progress through the file and not time decides.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use kvasir_weights::Digest;
use sha2::{Digest as _, Sha256};

use super::hub::{Answer, Client, Remote, Trouble};
use super::lock::Lock;
use super::{FetchError, FetchEvent, Progress};

/// Bytes per read; large enough that a progress bar costs nothing.
const BUFFER_BYTES: usize = 256 << 10;

/// A file to fetch.
#[derive(Debug)]
pub(super) struct Job<'a> {
    /// For messages.
    pub(super) name: &'a str,
    /// Where the whole file goes.
    pub(super) target: &'a Path,
    /// Where its bytes go until then; on the same file system.
    pub(super) incomplete: PathBuf,
    /// Held while the file is fetched.
    pub(super) lock: PathBuf,
    /// The file's size in bytes.
    pub(super) size: u64,
    /// The file's digest, where the publisher states one.
    pub(super) sha256: Option<Digest>,
}

/// Fetches `remote` as the job says, unless the target exists when the lock is had.
pub(super) fn fetch(
    client: &Client,
    remote: &Remote<'_>,
    job: &Job<'_>,
    progress: &dyn Progress,
) -> Result<(), FetchError> {
    let _lock = Lock::acquire(&job.lock, job.name, progress)?;
    if job.is_done() {
        return Ok(());
    }
    let mut partial = Partial::open(job)?;
    progress.on_event(&FetchEvent::Started {
        file: job.name,
        total_bytes: job.size,
        resumed_bytes: partial.len,
    });
    run_tries(client, remote, job, &mut partial, progress)?;
    partial.finish(job)?;
    progress.on_event(&FetchEvent::Finished { file: job.name });
    Ok(())
}

impl Job<'_> {
    /// Whether the target is there. A file of another size is none of ours and will be replaced.
    pub(super) fn is_done(&self) -> bool {
        std::fs::metadata(self.target).is_ok_and(|metadata| metadata.is_file() && metadata.len() == self.size)
    }

    /// Removes what an unfinished transfer left, when the file came another way.
    pub(super) fn discard_incomplete(&self) -> Result<(), FetchError> {
        match std::fs::remove_file(&self.incomplete) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(FetchError::io("remove", &self.incomplete)(error))
            }
            _ => Ok(()),
        }
    }

    /// Compares digests; on a mismatch removes `file`.
    pub(super) fn verify(&self, found: Digest, file: &Path) -> Result<(), FetchError> {
        match self.sha256 {
            Some(expected) if expected != found => {
                std::fs::remove_file(file).map_err(FetchError::io("remove", file))?;
                Err(FetchError::Corrupted {
                    file: self.name.to_owned(),
                    expected,
                    found,
                })
            }
            _ => Ok(()),
        }
    }
}

fn run_tries(
    client: &Client,
    remote: &Remote<'_>,
    job: &Job<'_>,
    partial: &mut Partial,
    progress: &dyn Progress,
) -> Result<(), FetchError> {
    let speed = Speed {
        since: Instant::now(),
        from: partial.len,
    };
    let mut failed_tries = 0;
    while partial.len < job.size {
        let before = partial.len;
        match one_try(client, remote, job, partial, progress, &speed) {
            Ok(()) => {}
            Err(Trouble::Final(error)) => return Err(error),
            // Without network from the start there may be another source, and every try only costs time.
            Err(Trouble::Passing(error @ FetchError::Unreachable { .. })) if partial.len == speed.from => {
                return Err(error);
            }
            Err(Trouble::Passing(_)) if partial.len > before => failed_tries = 0,
            Err(Trouble::Passing(error)) => {
                failed_tries += 1;
                if failed_tries >= client.timing.max_tries {
                    return Err(error);
                }
                std::thread::sleep(client.timing.retry_delay * 2_u32.saturating_pow(failed_tries - 1));
            }
        }
    }
    Ok(())
}

/// Asks for the rest of the file and takes what comes.
fn one_try(
    client: &Client,
    remote: &Remote<'_>,
    job: &Job<'_>,
    partial: &mut Partial,
    progress: &dyn Progress,
    speed: &Speed,
) -> Result<(), Trouble> {
    let answer = client.get_from(remote, partial.len)?;
    let mut body = match answer {
        Answer::Whole { total, body } => {
            check_total(job, total)?;
            // Also the answer of a server that ignores ranges: what is here would come a second time.
            partial.restart()?;
            body
        }
        Answer::Rest { start, total, body } => {
            check_total(job, total)?;
            if start != partial.len {
                let reason = format!(
                    "asked for bytes from {} on, got them from {start} on",
                    partial.len
                );
                return Err(Trouble::Final(FetchError::BadAnswer {
                    what: job.name.to_owned(),
                    reason,
                }));
            }
            body
        }
        Answer::RangeRefused if partial.len > 0 => {
            // What is here can't be the beginning of what is there.
            let offset = partial.len;
            partial.restart()?;
            return Err(Trouble::Passing(FetchError::RangeRefused {
                file: job.name.to_owned(),
                offset,
            }));
        }
        Answer::RangeRefused => {
            return Err(Trouble::Final(FetchError::RangeRefused {
                file: job.name.to_owned(),
                offset: 0,
            }));
        }
    };
    let mut buffer = vec![0; BUFFER_BYTES];
    while partial.len < job.size {
        let wanted = (job.size - partial.len).min(BUFFER_BYTES as u64) as usize;
        let read = body
            .read(&mut buffer[..wanted])
            .map_err(|error| cut(client, job, partial.len, &error))?;
        if read == 0 {
            return Err(Trouble::Passing(truncated(job, partial.len)));
        }
        partial.append(&buffer[..read], job.size)?;
        progress.on_event(&FetchEvent::Advanced {
            file: job.name,
            done_bytes: partial.len,
            total_bytes: job.size,
            bytes_per_second: speed.at(partial.len),
        });
    }
    Ok(())
}

fn check_total(job: &Job<'_>, total: Option<u64>) -> Result<(), Trouble> {
    match total {
        Some(found) if found != job.size => Err(Trouble::Final(FetchError::WrongSize {
            file: job.name.to_owned(),
            expected: job.size,
            found,
        })),
        _ => Ok(()),
    }
}

fn cut(client: &Client, job: &Job<'_>, received: u64, error: &std::io::Error) -> Trouble {
    let is_timeout = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<ureq::Error>())
        .is_some_and(|inner| matches!(inner, ureq::Error::Timeout(_)));
    Trouble::Passing(if is_timeout {
        FetchError::Stalled {
            file: job.name.to_owned(),
            seconds: client.timing.body.as_secs_f64(),
            received,
            expected: job.size,
        }
    } else {
        truncated(job, received)
    })
}

fn truncated(job: &Job<'_>, received: u64) -> FetchError {
    FetchError::Truncated {
        file: job.name.to_owned(),
        received,
        expected: job.size,
    }
}

/// Mean speed since the transfer began.
struct Speed {
    since: Instant,
    from: u64,
}

impl Speed {
    fn at(&self, done: u64) -> f64 {
        let seconds = self.since.elapsed().as_secs_f64().max(1e-3);
        done.saturating_sub(self.from) as f64 / seconds
    }
}

/// The beginning of a file, and the state of its digest.
struct Partial {
    file: File,
    path: PathBuf,
    hash: Sha256,
    len: u64,
}

impl Partial {
    /// Opens or creates the incomplete file and hashes what is in it.
    fn open(job: &Job<'_>) -> Result<Self, FetchError> {
        let path = job.incomplete.clone();
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(FetchError::io("create", dir))?;
        }
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(FetchError::io("open", &path))?;
        let len = file.metadata().map_err(FetchError::io("read", &path))?.len();
        let mut partial = Self {
            file,
            path,
            hash: Sha256::new(),
            len: 0,
        };
        if len > job.size {
            partial.restart()?;
        } else {
            partial.hash_existing(len)?;
        }
        Ok(partial)
    }

    fn hash_existing(&mut self, len: u64) -> Result<(), FetchError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut existing = (&self.file).take(len);
        loop {
            let read = existing
                .read(&mut buffer)
                .map_err(FetchError::io("read", &self.path))?;
            if read == 0 {
                return Ok(());
            }
            self.hash.update(&buffer[..read]);
            self.len += read as u64;
        }
    }

    fn append(&mut self, bytes: &[u8], size: u64) -> Result<(), FetchError> {
        self.file
            .write_all(bytes)
            .map_err(FetchError::write(&self.path, size - self.len))?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), FetchError> {
        if self.len > 0 || self.file.metadata().is_ok_and(|metadata| metadata.len() > 0) {
            self.file
                .set_len(0)
                .map_err(FetchError::io("truncate", &self.path))?;
        }
        self.hash = Sha256::new();
        self.len = 0;
        Ok(())
    }

    /// Verifies the whole file and gives it its name.
    fn finish(self, job: &Job<'_>) -> Result<(), FetchError> {
        let found = Digest::new(self.hash.finalize().into());
        job.verify(found, &self.path)?;
        // Without this a power cut could leave the name on a file whose bytes never reached the disk.
        self.file.sync_all().map_err(FetchError::write(&self.path, 0))?;
        std::fs::rename(&self.path, job.target).map_err(FetchError::io("rename", &self.path))
    }
}
