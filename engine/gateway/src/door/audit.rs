//! The audit log: one line of JSON for each request. Who, what, the decision and its reason, the tokens; never content or credentials.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use kvasir_client::Recurring;
use serde::Serialize;

/// Lines that wait to be written; more are counted and dropped, because a full disk must not stop the service.
const MAX_UNWRITTEN: usize = 16_384;
/// Between two tries to ask a writer with a full queue for its end.
const FULL_PAUSE: Duration = Duration::from_millis(20);

/// Where lines go. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    lines: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

enum Entry {
    Line(Vec<u8>),
    /// Everything before has been written when this one is dropped.
    Flush(SyncSender<()>),
    /// The file was moved away: what comes goes to a new one.
    Reopen,
}

/// One line.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct AuditLine<'a> {
    /// Milliseconds since 1970.
    pub(crate) time_ms: u64,
    pub(crate) request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<&'a str>,
    /// The kind of the credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<&'static str>,
    /// Which credential of that kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<std::net::SocketAddr>,
    pub(crate) http_method: &'a str,
    /// A route of the table, so nothing that a client wrote.
    pub(crate) route: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) engines: Vec<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) attempts: u32,
    /// `allowed`, `denied`, `limited` or `failed`.
    pub(crate) decision: &'static str,
    /// The stable code of the reason.
    pub(crate) reason: &'static str,
    pub(crate) status: u16,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) duration_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Audit {
    /// Writes to the end of a file, or to standard output.
    ///
    /// # Errors
    /// The file can't be opened.
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Self> {
        let path = path.map(Path::to_owned);
        let out: Box<dyn Write + Send> = match &path {
            Some(path) => Box::new(append(path)?),
            None => Box::new(io::stdout()),
        };
        let (lines, entries) = sync_channel(MAX_UNWRITTEN);
        let dropped = Arc::<AtomicU64>::default();
        let not_written = Arc::clone(&dropped);
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write((out, path), &entries, &not_written))?;
        Ok(Self { lines, dropped })
    }

    pub(crate) fn log(&self, line: &AuditLine<'_>) {
        let Ok(mut json) = serde_json::to_vec(line) else {
            return;
        };
        json.push(b'\n');
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.lines.try_send(Entry::Line(json))
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens the file anew behind the lines so far, as whoever rotates logs asks. Standard output stays.
    pub(crate) fn reopen(&self) {
        // A full queue has many lines before this one; whoever asked can ask again.
        if self.lines.try_send(Entry::Reopen).is_err() {
            tracing::error!("the audit log is too busy to be opened anew; ask again");
        }
    }

    /// Lines that were never written.
    pub(crate) fn num_dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything so far is written, at most so long: whoever should read a pipe may have stopped. Blocks.
    ///
    /// Answers whether it's written.
    pub(crate) fn flush(&self, at_most: Duration) -> bool {
        let end = Instant::now() + at_most;
        let (done, written) = sync_channel(1);
        let mut entry = Entry::Flush(done);
        loop {
            match self.lines.try_send(entry) {
                Ok(()) => break,
                Err(TrySendError::Full(unsent)) if Instant::now() < end => entry = unsent,
                Err(_) => return false,
            }
            std::thread::sleep(FULL_PAUSE);
        }
        written
            .recv_timeout(end.saturating_duration_since(Instant::now()))
            .is_ok()
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

type Out = (Box<dyn Write + Send>, Option<PathBuf>);

fn write((mut out, path): Out, entries: &Receiver<Entry>, dropped: &AtomicU64) {
    let mut trouble = Recurring::default();
    while let Ok(entry) = entries.recv() {
        let written = match entry {
            Entry::Line(line) => out.write_all(&line).inspect_err(|_| {
                dropped.fetch_add(1, Ordering::Relaxed);
            }),
            Entry::Flush(done) => {
                let flushed = out.flush();
                // Whoever waited may have left.
                done.send(()).unwrap_or_default();
                flushed
            }
            Entry::Reopen => match path.as_deref().map(append).transpose() {
                Ok(None) => Ok(()),
                Ok(Some(new)) => {
                    tracing::info!("the audit log was opened anew");
                    out = Box::new(new);
                    Ok(())
                }
                Err(error) => Err(error),
            },
        };
        match written {
            Ok(()) => trouble.is_over(),
            Err(error) if trouble.is_news(&error.to_string(), Instant::now()) => {
                tracing::error!(%error, "the audit log can't be written; lines that are lost are counted");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_away_gets_no_more_lines_once_it_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (file, moved) = (folder.path().join("audit"), folder.path().join("audit.1"));
        let audit = Audit::open(Some(&file)).unwrap();
        let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
        let log = |number: usize| {
            for _ in 0..number {
                audit.log(&AuditLine::default());
            }
            assert!(audit.flush(Duration::from_mins(1)));
        };
        log(2);
        std::fs::rename(&file, &moved).unwrap();
        log(1);
        assert_eq!(lines(&moved), 3);
        audit.reopen();
        log(4);
        assert_eq!((lines(&moved), lines(&file)), (3, 4));
        // Where no new one can be opened, the old one goes on.
        std::fs::rename(&file, &moved).unwrap();
        std::fs::create_dir(&file).unwrap();
        audit.reopen();
        log(1);
        assert_eq!(lines(&moved), 5);
        assert_eq!(audit.num_dropped(), 0);
    }

    #[test]
    fn lines_that_the_disk_refuses_are_counted() {
        let audit = Audit::open(Some(Path::new("/dev/full"))).unwrap();
        for _ in 0..3 {
            audit.log(&AuditLine::default());
        }
        assert!(audit.flush(Duration::from_mins(1)));
        assert_eq!(audit.num_dropped(), 3);
    }

    #[test]
    fn a_reader_that_has_stopped_holds_nobody_up() {
        struct Stuck;
        impl Write for Stuck {
            fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
                loop {
                    std::thread::park();
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (lines, entries) = sync_channel(1);
        std::thread::spawn(move || write((Box::new(Stuck), None), &entries, &AtomicU64::new(0)));
        let dropped = Arc::default();
        let audit = Audit { lines, dropped };
        // The first is being written and the second waits, or the first waits: either way there is no place for long.
        for _ in 0..3 {
            audit.log(&AuditLine::default());
        }
        assert!(!audit.flush(Duration::from_millis(50)));
    }
}
