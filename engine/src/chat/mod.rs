//! The chat in a terminal: lines in, streamed answers out.

mod command;
mod conversation;
mod lines;
mod remote;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io::{self, Write};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::runtime::Runtime;

pub(crate) use conversation::Conversation;
pub(crate) use lines::{Lines, Pipe, Terminal};
pub(crate) use remote::Remote;

use crate::answerer::{AnswerError, AnswerRequest, Answerer, TokenUsage};
use command::{COMMANDS, Command};
use lines::Typed;

/// A chat: who answers, where lines come from, where text goes.
pub(crate) struct Chat<'a> {
    pub(crate) answerer: &'a dyn Answerer,
    pub(crate) runtime: &'a Runtime,
    pub(crate) conversation: Conversation,
    /// Answers.
    pub(crate) output: &'a mut dyn Write,
    /// Everything else.
    pub(crate) notes: &'a mut dyn Write,
    /// A person sits there: notes are written and the text is made safe for a terminal.
    pub(crate) is_interactive: bool,
    /// Figures after each answer.
    pub(crate) shows_stats: bool,
    /// Resolves when the answer in work is to be stopped.
    pub(crate) interrupt: &'a dyn Fn() -> Interrupt,
}

/// Resolves when the person wants the answer to stop.
pub(crate) type Interrupt = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Why a chat ended before its input did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChatError {
    /// The terminal or a pipe failed.
    #[error("can't read or write the terminal: {0}")]
    Io(#[from] io::Error),
    /// A question from a pipe could not be answered.
    #[error("{0}")]
    Answer(AnswerError),
}

impl Chat<'_> {
    /// Talks until the input ends or the person leaves. In a pipe the first failed answer ends it.
    ///
    /// # Errors
    /// See [`ChatError`].
    pub(crate) fn run(mut self, lines: &mut dyn Lines) -> Result<(), ChatError> {
        let mut was_interrupted = false;
        loop {
            let line = match lines.next()? {
                Typed::Line(line) => line,
                Typed::End => return Ok(()),
                Typed::Interrupted(_) if was_interrupted => return Ok(()),
                Typed::Interrupted(_) => {
                    was_interrupted = true;
                    self.note("(Ctrl-C again or Ctrl-D leaves)")?;
                    continue;
                }
            };
            was_interrupted = false;
            // Commands are for people; a pipe's lines are all said.
            let command = if self.is_interactive {
                command::parse(&line)
            } else {
                match line.trim() {
                    "" => Command::Nothing,
                    text => Command::Say(text.to_owned()),
                }
            };
            if command == Command::Exit {
                return Ok(());
            }
            self.obey(command)?;
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), ChatError> {
        match command {
            Command::Nothing | Command::Exit => {}
            Command::Say(text) => {
                self.conversation.say(text);
                self.answer()?;
            }
            Command::Retry => {
                if self.conversation.retry() {
                    self.answer()?;
                } else {
                    self.note("nothing was said yet")?;
                }
            }
            Command::Help => {
                for (name, help) in COMMANDS {
                    self.note(&format!("{name:8} {help}"))?;
                }
                self.note("A line that ends in \\ goes on in the next one. Ctrl-C stops an answer.")?;
            }
            Command::Reset => {
                self.conversation.reset();
                self.note("the conversation is forgotten")?;
            }
            Command::ShowSystem => {
                let text = self
                    .conversation
                    .system()
                    .unwrap_or("there is no system message")
                    .to_owned();
                self.note(&text)?;
            }
            Command::System(text) => {
                self.conversation.set_system(text);
                self.note("the conversation begins anew")?;
            }
            Command::Set(name, value) => self.conversation.set_field(name, value),
            Command::ShowSettings => {
                let fields = serde_json::Value::Object(self.conversation.fields().clone()).to_string();
                self.note(&fields)?;
            }
            Command::Stats => self.shows_stats = !self.shows_stats,
            Command::Wrong(text) => self.note(&text)?,
        }
        Ok(())
    }

    /// Answers the last message. Where the conversation has outgrown the model, its oldest turns are forgotten.
    fn answer(&mut self) -> Result<(), ChatError> {
        loop {
            match self.stream(self.conversation.request()) {
                Ok(text) => {
                    self.conversation.answered(text);
                    return Ok(());
                }
                Err(ChatError::Answer(error)) if is_too_long(&error) && self.conversation.forget_oldest() => {
                    self.note(
                        "(the conversation is longer than the model's context; its oldest turn is forgotten)",
                    )?;
                }
                Err(ChatError::Answer(error)) if self.is_interactive => {
                    self.conversation.take_back();
                    self.note(&format!("error: {error}"))?;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn stream(&mut self, request: AnswerRequest) -> Result<String, ChatError> {
        let runtime = self.runtime;
        let answered = runtime.block_on(print_answer(
            self.answerer,
            request,
            self.output,
            self.is_interactive,
            (self.interrupt)(),
        ))?;
        if answered.was_interrupted {
            self.note("(stopped)")?;
        } else if answered.is_cut {
            self.note("(cut at the length limit; /set max_tokens changes it)")?;
        }
        // Usage comes with the last piece, which a stopped answer doesn't have.
        if self.shows_stats && !answered.was_interrupted {
            self.note(&answered.figures())?;
        }
        Ok(answered.text)
    }

    fn note(&mut self, text: &str) -> io::Result<()> {
        if self.is_interactive || self.shows_stats {
            writeln!(self.notes, "{text}")?;
        }
        Ok(())
    }
}

/// A streamed answer, after its end.
#[derive(Default)]
struct Answered {
    text: String,
    was_interrupted: bool,
    is_cut: bool,
    usage: TokenUsage,
    first_after: Duration,
    took: Duration,
}

impl Answered {
    fn figures(&self) -> String {
        let decode_seconds = self.took.saturating_sub(self.first_after).as_secs_f64();
        let after_first = self.usage.completion_tokens.saturating_sub(1);
        let rate = if decode_seconds > 0.0 {
            after_first as f64 / decode_seconds
        } else {
            0.0
        };
        format!(
            "({} + {} tokens, first after {:.2} s, then {rate:.1} tokens/s)",
            self.usage.prompt_tokens,
            self.usage.completion_tokens,
            self.first_after.as_secs_f64(),
        )
    }
}

async fn print_answer(
    answerer: &dyn Answerer,
    request: AnswerRequest,
    output: &mut dyn Write,
    is_terminal: bool,
    interrupt: Interrupt,
) -> Result<Answered, ChatError> {
    let began = Instant::now();
    let mut answered = Answered::default();
    let mut interrupt = pin!(interrupt);
    let mut pieces = tokio::select! {
        pieces = answerer.stream(request) => pieces.map_err(ChatError::Answer)?,
        () = &mut interrupt => return Ok(Answered { was_interrupted: true, ..answered }),
    };
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            () = &mut interrupt => {
                answered.was_interrupted = true;
                break;
            }
        };
        let Some(piece) = piece else { break };
        let piece = piece.map_err(ChatError::Answer)?;
        if !piece.text.is_empty() {
            if answered.text.is_empty() {
                answered.first_after = began.elapsed();
            }
            answered.text.push_str(&piece.text);
            if is_terminal {
                output.write_all(harmless(&piece.text).as_bytes())?;
            } else {
                output.write_all(piece.text.as_bytes())?;
            }
            output.flush()?;
        }
        answered.is_cut |= piece.finish_reason.as_deref() == Some("length");
        answered.usage = piece.usage.unwrap_or(answered.usage);
    }
    answered.took = began.elapsed();
    output.write_all(b"\n")?;
    output.flush()?;
    Ok(answered)
}

/// Text that can't command the terminal: control characters other than line breaks and tabs become visible ones.
fn harmless(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            // The block of control pictures mirrors the C0 controls.
            '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
            '\u{7f}'..='\u{9f}' => '\u{fffd}',
            _ => c,
        })
        .collect()
}

/// A prompt that doesn't fit is the one refusal that a shorter conversation can cure. The refusal has no code of its own, so
/// its words are looked at; a wrong guess costs old turns, never the question.
fn is_too_long(error: &AnswerError) -> bool {
    let names_prompt = error
        .param
        .as_deref()
        .is_some_and(|param| matches!(param, "messages" | "prompt"));
    error.status == 400 && names_prompt && error.message.contains("context")
}
