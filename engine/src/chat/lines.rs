//! Where lines come from: a terminal with editing and history, or a pipe.

use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

use super::command::COMMANDS;

/// Lines of input that are kept between runs.
const HISTORY_LINES: usize = 1000;
/// Longest message that a pipe may give, in bytes: more than any context holds.
const MAX_MESSAGE_BYTES: u64 = 16 << 20;

/// What happened at the prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Typed {
    /// A line, without its end; lines that were continued with `\` are joined by line breaks.
    Line(String),
    /// Ctrl-C; `true` if the line was empty.
    Interrupted(bool),
    /// Ctrl-D, or the end of the pipe.
    End,
}

/// A source of lines.
pub(crate) trait Lines {
    /// Waits for the next line.
    ///
    /// # Errors
    /// If the terminal or pipe fails.
    fn next(&mut self) -> io::Result<Typed>;
}

/// A pipe: every line is a message, or all of them together are one.
pub(crate) struct Pipe<R> {
    reader: R,
    is_one_message: bool,
}

impl<R: BufRead> Pipe<R> {
    /// Reads lines, or everything at once.
    pub(crate) fn new(reader: R, is_one_message: bool) -> Self {
        Self {
            reader,
            is_one_message,
        }
    }
}

impl<R: BufRead> Lines for Pipe<R> {
    fn next(&mut self) -> io::Result<Typed> {
        let mut bytes = Vec::new();
        let mut reader = self.reader.by_ref().take(MAX_MESSAGE_BYTES + 1);
        let count = if self.is_one_message {
            reader.read_to_end(&mut bytes)?
        } else {
            reader.read_until(b'\n', &mut bytes)?
        };
        if count as u64 > MAX_MESSAGE_BYTES {
            let message = format!("a message has more than {MAX_MESSAGE_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        // A few bytes that are no text shouldn't end a conversation.
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(if count == 0 { Typed::End } else { Typed::Line(text) })
    }
}

/// A terminal.
pub(crate) struct Terminal {
    editor: Editor<CommandHelper, FileHistory>,
    history: Option<PathBuf>,
    prompt: String,
}

impl Terminal {
    /// Opens the terminal; `history` is read now and written after each line.
    ///
    /// # Errors
    /// If the terminal can't be set up.
    pub(crate) fn open(history: Option<PathBuf>, has_colours: bool) -> io::Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)
            .and_then(|builder| builder.history_ignore_dups(true))
            .map_err(io::Error::other)?
            .auto_add_history(true)
            .build();
        let mut editor = Editor::with_history(config.clone(), FileHistory::with_config(&config))
            .map_err(io::Error::other)?;
        editor.set_helper(Some(CommandHelper));
        if let Some(path) = &history {
            // The first run has no history yet.
            if let Err(error) = editor.load_history(path) {
                tracing::debug!(%error, path = %path.display(), "no input history");
            }
        }
        let prompt = if has_colours {
            "\u{1b}[1;32m>\u{1b}[0m "
        } else {
            "> "
        }
        .to_owned();
        Ok(Self {
            editor,
            history,
            prompt,
        })
    }

    fn save_history(&mut self) {
        let Some(path) = &self.history else { return };
        let saved = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .map_err(ReadlineError::from)
            .and_then(|()| self.editor.save_history(path));
        if let Err(error) = saved {
            tracing::debug!(%error, path = %path.display(), "can't save the input history");
        }
    }
}

impl Lines for Terminal {
    fn next(&mut self) -> io::Result<Typed> {
        let mut text = String::new();
        loop {
            let prompt = if text.is_empty() {
                self.prompt.as_str()
            } else {
                ". "
            };
            match self.editor.readline(prompt) {
                Ok(line) => {
                    if let Some(begun) = line.strip_suffix('\\') {
                        text.push_str(begun);
                        text.push('\n');
                        continue;
                    }
                    text.push_str(&line);
                    self.save_history();
                    return Ok(Typed::Line(text));
                }
                Err(ReadlineError::Interrupted) => return Ok(Typed::Interrupted(text.is_empty())),
                Err(ReadlineError::Eof) => return Ok(Typed::End),
                // Typed or pasted bytes that are no text: they are dropped, and the conversation goes on.
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(ReadlineError::Io(error)) => return Err(error),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

/// Completes the names of commands.
struct CommandHelper;

impl rustyline::Helper for CommandHelper {}
impl rustyline::highlight::Highlighter for CommandHelper {}
impl rustyline::validate::Validator for CommandHelper {}
impl rustyline::hint::Hinter for CommandHelper {
    type Hint = String;
}

impl rustyline::completion::Completer for CommandHelper {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _context: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(..position).unwrap_or(line);
        let names = COMMANDS.iter().map(|(name, _)| *name);
        let matching = names.filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, matching.map(ToOwned::to_owned).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_do_not_end_a_pipe() {
        let mut pipe = Pipe::new(&b"a\xff\xfeb\nnext\n"[..], false);
        assert_eq!(pipe.next().unwrap(), Typed::Line("a\u{fffd}\u{fffd}b\n".into()));
        assert_eq!(pipe.next().unwrap(), Typed::Line("next\n".into()));
        assert_eq!(pipe.next().unwrap(), Typed::End);
    }

    #[test]
    fn message_without_an_end_is_refused() {
        for is_one_message in [false, true] {
            let mut pipe = Pipe::new(io::BufReader::new(io::repeat(b'x')), is_one_message);
            let error = pipe.next().unwrap_err();
            assert!(error.to_string().contains("16777216"), "{error}");
        }
    }
}
