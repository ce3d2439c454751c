use std::io::Cursor;
use std::sync::Mutex;

use async_trait::async_trait;
use futures::stream;
use serde_json::{Map, Value};

use super::*;
use crate::answerer::{Answer, Piece, PieceStream};

/// Repeats the last message word by word; says which messages it saw; never ends after the word `forever`.
#[derive(Default)]
struct Parrot {
    seen: Mutex<Vec<usize>>,
    longest: Option<usize>,
}

#[async_trait]
impl Answerer for Parrot {
    async fn answer(&self, _request: AnswerRequest) -> Result<Answer, AnswerError> {
        Err(AnswerError::invalid("n", "not needed here"))
    }

    async fn stream(&self, request: AnswerRequest) -> Result<PieceStream, AnswerError> {
        let messages = request.body["messages"].as_array().unwrap();
        self.seen.lock().unwrap().push(messages.len());
        if self.longest.is_some_and(|longest| messages.len() > longest) {
            return Err(AnswerError::invalid(
                "prompt",
                "it exceeds the model's context of 3 tokens",
            ));
        }
        let said = messages.last().unwrap()["content"].as_str().unwrap().to_owned();
        if said == "bad" {
            return Err(AnswerError::invalid("temperature", "refused"));
        }
        let mut pieces: Vec<Result<Piece, AnswerError>> = said
            .split_inclusive(' ')
            .map(|word| {
                Ok(Piece {
                    text: word.to_owned(),
                    ..Piece::default()
                })
            })
            .collect();
        let usage = Some(TokenUsage {
            prompt_tokens: 1,
            completion_tokens: 2,
        });
        let last = Piece {
            finish_reason: Some("stop".into()),
            usage,
            ..Piece::default()
        };
        if said == "forever" {
            return Ok(Box::pin(stream::iter(pieces).chain(stream::pending())));
        }
        pieces.push(Ok(last));
        Ok(Box::pin(stream::iter(pieces)))
    }
}

/// What a person types, key by key.
struct Script(std::vec::IntoIter<Typed>);

impl Lines for Script {
    fn next(&mut self) -> io::Result<Typed> {
        Ok(self.0.next().unwrap_or(Typed::End))
    }
}

struct Talk {
    result: Result<(), ChatError>,
    output: String,
    notes: String,
}

fn talk(parrot: &Parrot, lines: &mut dyn Lines, is_interactive: bool) -> Talk {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (mut output, mut notes) = (Vec::new(), Vec::new());
    // Interrupts come once nothing else happens any more.
    let interrupt: &dyn Fn() -> Interrupt = &|| {
        Box::pin(async {
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
        })
    };
    let chat = Chat {
        answerer: parrot,
        runtime: &runtime,
        conversation: Conversation::new(None, Map::<String, Value>::new()),
        output: &mut output,
        notes: &mut notes,
        is_interactive,
        shows_stats: false,
        interrupt,
    };
    let result = chat.run(lines);
    Talk {
        result,
        output: String::from_utf8(output).unwrap(),
        notes: String::from_utf8(notes).unwrap(),
    }
}

fn person(parrot: &Parrot, lines: &[&str]) -> Talk {
    let typed: Vec<Typed> = lines.iter().map(|line| Typed::Line((*line).to_owned())).collect();
    talk(parrot, &mut Script(typed.into_iter()), true)
}

fn piped(parrot: &Parrot, text: &str, is_one_message: bool) -> Talk {
    talk(
        parrot,
        &mut Pipe::new(Cursor::new(text.to_owned()), is_one_message),
        false,
    )
}

#[test]
fn turns_are_remembered_until_reset() {
    let parrot = Parrot::default();
    let said = person(&parrot, &["a b", "c", "/reset", "d"]);
    assert_eq!(said.output, "a b\nc\nd\n");
    assert_eq!(*parrot.seen.lock().unwrap(), [1, 3, 1]);
}

#[test]
fn each_line_of_a_pipe_is_a_turn_and_nothing_else_is_written() {
    let parrot = Parrot::default();
    let said = piped(&parrot, "one two\n\n/help\nlast", false);
    assert_eq!(
        (said.output.as_str(), said.notes.as_str()),
        ("one two\n/help\nlast\n", "")
    );
    assert_eq!(*parrot.seen.lock().unwrap(), [1, 3, 5]);
}

#[test]
fn whole_pipe_can_be_one_message() {
    let parrot = Parrot::default();
    assert_eq!(piped(&parrot, "one\ntwo\n", true).output, "one\ntwo\n");
    assert_eq!(*parrot.seen.lock().unwrap(), [1]);
}

#[test]
fn empty_pipe_says_nothing() {
    let said = piped(&Parrot::default(), "", false);
    assert_eq!((said.output.as_str(), said.result.is_ok()), ("", true));
}

#[test]
fn interrupt_stops_the_answer_and_the_chat_goes_on() {
    let parrot = Parrot::default();
    let said = person(&parrot, &["forever", "next"]);
    assert_eq!(said.output, "forever\nnext\n");
    assert!(said.notes.contains("(stopped)"));
    assert_eq!(*parrot.seen.lock().unwrap(), [1, 3]);
}

#[test]
fn second_interrupt_in_a_row_leaves() {
    let parrot = Parrot::default();
    let line = |text: &str| Typed::Line(text.to_owned());
    let typed = vec![
        Typed::Interrupted(true),
        line("a"),
        Typed::Interrupted(true),
        Typed::Interrupted(true),
        line("never said"),
    ];
    let said = talk(&parrot, &mut Script(typed.into_iter()), true);
    assert_eq!(said.output, "a\n");
}

#[test]
fn refused_message_is_taken_back_for_a_person_and_ends_a_pipe() {
    let parrot = Parrot::default();
    let said = person(&parrot, &["bad", "good"]);
    assert!(said.notes.contains("error: refused"));
    assert_eq!(said.output, "good\n");
    assert_eq!(*parrot.seen.lock().unwrap(), [1, 1]);
    let said = piped(&Parrot::default(), "bad\ngood\n", false);
    assert!(matches!(said.result, Err(ChatError::Answer(_))));
    assert_eq!(said.output, "");
}

#[test]
fn conversation_that_outgrows_the_model_forgets_its_oldest_turn() {
    let parrot = Parrot {
        longest: Some(3),
        ..Parrot::default()
    };
    let said = person(&parrot, &["a", "b", "c"]);
    assert_eq!(said.output, "a\nb\nc\n");
    assert_eq!(*parrot.seen.lock().unwrap(), [1, 3, 5, 3]);
    assert!(said.notes.contains("oldest turn is forgotten"));
}

#[test]
fn answers_cannot_command_the_terminal() {
    assert_eq!(
        harmless("a\u{1b}[2J\r\n\tb\u{9b}c\u{7f}é"),
        "a\u{241b}[2J\u{240d}\n\tb\u{fffd}c\u{fffd}é"
    );
}

#[test]
fn retry_asks_again() {
    let parrot = Parrot::default();
    let said = person(&parrot, &["/retry", "a", "/retry", "/exit", "b"]);
    assert_eq!(said.output, "a\na\n");
    assert!(said.notes.contains("nothing was said yet"));
    assert_eq!(*parrot.seen.lock().unwrap(), [1, 1]);
}
