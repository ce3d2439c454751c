//! The input: lines of a file, of standard input, or of the command line, read by a thread so that slow pipes hold up nobody.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::row::{Format, MAX_LINE_BYTES};

/// Lines read ahead of the rows in work.
const LINES_AHEAD: usize = 16;

/// Lines to come.
pub(crate) struct Input {
    reader: Box<dyn BufRead + Send>,
    /// How the lines are written.
    pub(crate) format: Format,
    /// How many rows there are, if that is known before reading.
    pub(crate) total: Option<u64>,
}

impl Input {
    /// Prompts given on the command line.
    pub(crate) fn of_prompts(prompts: Vec<String>) -> Self {
        let total = prompts.len() as u64;
        // As JSON strings, so that a prompt may hold line breaks.
        let lines: Vec<String> = prompts
            .into_iter()
            .map(|prompt| serde_json::Value::from(prompt).to_string())
            .collect();
        Self {
            reader: Box::new(io::Cursor::new(lines.join("\n"))),
            format: Format::Jsonl,
            total: Some(total),
        }
    }

    /// The lines, without their ends.
    pub(crate) fn into_lines(self) -> impl Stream<Item = io::Result<Vec<u8>>> + Send {
        let (sender, receiver) = mpsc::channel(LINES_AHEAD);
        let mut reader = self.reader;
        // Ends at the end of the input or when the receiver is gone; a thread blocked on a silent pipe ends with the process.
        std::thread::spawn(move || {
            while let Some(line) = read_line(&mut reader).transpose() {
                let is_last = line.is_err();
                if sender.blocking_send(line).is_err() || is_last {
                    return;
                }
            }
        });
        ReceiverStream::new(receiver)
    }
}

/// Opens a file, or standard input for `-`. The format follows from the file's name, else from its first character.
///
/// # Errors
/// If the file can't be opened or read.
pub(crate) fn open_input(path: &Path, format: Option<Format>) -> io::Result<Input> {
    if path == Path::new("-") {
        return read_once(io::stdin(), format);
    }
    let format = format.or_else(|| format_of_name(path));
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return read_once(file, format);
    }
    let format = match format {
        Some(format) => format,
        None => sniff(&mut BufReader::new(file))?,
    };
    let total = count_rows(BufReader::new(File::open(path)?))?;
    Ok(Input {
        reader: Box::new(BufReader::new(File::open(path)?)),
        format,
        total: Some(total),
    })
}

/// A pipe or a device: it gives its bytes once, and it may have no end.
fn read_once(source: impl Read + Send + 'static, format: Option<Format>) -> io::Result<Input> {
    let mut reader = BufReader::new(source);
    let format = match format {
        Some(format) => format,
        None => sniff(&mut reader)?,
    };
    Ok(Input {
        reader: Box::new(reader),
        format,
        total: None,
    })
}

fn format_of_name(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "jsonl" | "ndjson" | "json" => Some(Format::Jsonl),
        "txt" => Some(Format::Text),
        _ => None,
    }
}

fn sniff(reader: &mut impl BufRead) -> io::Result<Format> {
    let first = reader.fill_buf()?.iter().find(|byte| !byte.is_ascii_whitespace());
    Ok(if first == Some(&b'{') {
        Format::Jsonl
    } else {
        Format::Text
    })
}

fn count_rows(mut reader: impl BufRead) -> io::Result<u64> {
    let mut rows = 0;
    while let Some(line) = read_line(&mut reader)? {
        rows += u64::from(!line.trim_ascii().is_empty());
    }
    Ok(rows)
}

/// The next line without its end. Of a line that is too long just enough is kept to tell that it is.
fn read_line(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let limit = MAX_LINE_BYTES as u64 + 1;
    if reader.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    } else if line.len() as u64 == limit {
        reader.skip_until(b'\n')?;
    }
    Ok(Some(line))
}
