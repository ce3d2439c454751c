//! The output file: JSON lines that tell which rows are done, so that a run continues where an earlier one stopped.
//!
//! A row counts as done once it has an answer in a line that ends in a line break; each line is written by one call. What a killed process left
//! behind the last line break is cut off. A row that failed is asked again, so it may have several lines: the last one counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::{Value, json};

use super::row::Row;
use crate::answerer::{Answer, AnswerError};

/// Rows that an earlier run answered, each with the digest of what it asked. Rows that failed aren't among them: they are asked again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Done {
    answered: BTreeMap<Key, String>,
    failed: BTreeSet<Key>,
}

/// What tells rows apart.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Key {
    Id(String),
    Index(u64),
}

impl Done {
    /// What the row asked when it was answered, by its id if it has one, else by its number; `None` if it wasn't.
    pub(crate) fn digest(&self, row: &Row) -> Option<&str> {
        let key = match &row.id {
            Some(id) => Key::Id(id.clone()),
            None => Key::Index(row.index),
        };
        self.answered.get(&key).map(String::as_str)
    }

    /// How many were answered.
    pub(crate) fn len(&self) -> usize {
        self.answered.len()
    }

    /// How many have nothing but an error.
    pub(crate) fn num_failed(&self) -> usize {
        self.failed.len()
    }

    /// Takes a line of the output; says whether it is one.
    fn add(&mut self, line: &Value) -> bool {
        let Some(digest) = line.get(DIGEST_FIELD).and_then(Value::as_str) else {
            return false;
        };
        let key = match (line.get("id"), line.get("index").and_then(Value::as_u64)) {
            (Some(Value::String(id)), _) => Key::Id(id.clone()),
            (None, Some(index)) => Key::Index(index),
            _ => return false,
        };
        if line.get("error").is_some() {
            self.failed.insert(key);
        } else {
            self.failed.remove(&key);
            self.answered.insert(key, digest.to_owned());
        }
        true
    }
}

/// The field of a line that tells what its row asked.
const DIGEST_FIELD: &str = "request_digest";

/// Why an output file can't be continued.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// The file system refused.
    #[error("can't {operation} {path}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Which file.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Writing it would destroy what is read.
    #[error("{path} is the input as well; give another --output")]
    IsInput {
        /// Which file.
        path: String,
    },
    /// Another process has it locked.
    #[error("{path} is being written by another run; give another --output, or wait for that run")]
    InUse {
        /// Which file.
        path: String,
    },
    /// The file has other content.
    #[error(
        "{path}, line {line}: not a row that `kvasir generate` wrote, so the file is left alone; give another --output, or --overwrite"
    )]
    Foreign {
        /// Which file.
        path: String,
        /// Which line, from 1.
        line: usize,
    },
}

/// Opens the output for appending. An existing file is read for rows that are done, unless it is to be overwritten; a pipe or a
/// device is only written to. The file is locked until it is closed, so that two runs don't write over each other.
///
/// # Errors
/// If the file can't be opened, is the input, is in use, or isn't an output of this command.
pub(crate) fn open(path: &Path, input: Option<&Path>, overwrite: bool) -> Result<(File, Done), OutputError> {
    let io = |operation| {
        move |source| OutputError::Io {
            operation,
            path: path.display().to_string(),
            source,
        }
    };
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let file = File::options().write(true).open(path).map_err(io("open"))?;
        return Ok((file, Done::default()));
    }
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(io("open"))?;
    if input.is_some_and(|input| is_same_file(input, &file)) {
        return Err(OutputError::IsInput {
            path: path.display().to_string(),
        });
    }
    lock(&file, path)?;
    if overwrite {
        file.set_len(0).map_err(io("cut"))?;
    }
    let (done, valid_bytes) = scan(BufReader::new(&file), &path.display().to_string())?;
    file.set_len(valid_bytes).map_err(io("cut"))?;
    file.seek(SeekFrom::Start(valid_bytes)).map_err(io("seek in"))?;
    Ok((file, done))
}

/// Whether the path leads to this file, by whatever name.
fn is_same_file(path: &Path, file: &File) -> bool {
    let (Ok(one), Ok(other)) = (std::fs::metadata(path), file.metadata()) else {
        return false;
    };
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Takes the file for this process. Some network file systems have no locks; there nothing is checked.
fn lock(file: &File, path: &Path) -> Result<(), OutputError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(OutputError::InUse {
            path: path.display().to_string(),
        }),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Reads whole lines; returns how many bytes they take.
fn scan(mut reader: impl BufRead, path: &str) -> Result<(Done, u64), OutputError> {
    let mut done = Done::default();
    let mut valid_bytes = 0;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let count = reader
            .read_until(b'\n', &mut line)
            .map_err(|source| OutputError::Io {
                operation: "read",
                path: path.to_owned(),
                source,
            })?;
        if line.last() != Some(&b'\n') {
            break;
        }
        let known = serde_json::from_slice::<Value>(&line).is_ok_and(|value| done.add(&value));
        if !known {
            return Err(OutputError::Foreign {
                path: path.to_owned(),
                line: number,
            });
        }
        valid_bytes += count as u64;
    }
    Ok((done, valid_bytes))
}

/// Writes a row's line.
///
/// # Errors
/// If the file system refuses.
pub(crate) fn write_row(
    output: &mut dyn Write,
    row: &Row,
    answer: &Result<Answer, AnswerError>,
) -> std::io::Result<()> {
    let mut line = row_json(row, answer).to_string();
    line.push('\n');
    output.write_all(line.as_bytes())?;
    output.flush()
}

/// `text` is the first sequence's; `choices` has all of them where there are several or where they carry more than text.
fn row_json(row: &Row, answer: &Result<Answer, AnswerError>) -> Value {
    let mut line = json!({ "index": row.index });
    if let Some(id) = &row.id {
        line["id"] = Value::from(id.as_str());
    }
    line[DIGEST_FIELD] = Value::from(row.request_digest.as_str());
    match answer {
        Ok(answer) => {
            let first = answer.choices.first();
            line["text"] = first.map_or(Value::Null, |choice| Value::from(choice.text.as_str()));
            line["finish_reason"] =
                first.map_or(Value::Null, |choice| Value::from(choice.finish_reason.as_str()));
            if answer.choices.len() > 1 || first.is_some_and(|choice| choice.logprobs.is_some()) {
                line["choices"] = json!(answer.choices);
            }
            line["usage"] = json!(answer.usage);
        }
        Err(error) => {
            line["error"] = json!({ "message": error.message, "param": error.param, "code": error.status });
        }
    }
    line
}
