use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::*;
use crate::answerer::{AnswerChoice, AnswerRequest, PieceStream};

/// Answers with the prompt in capitals; refuses `bad`, breaks down at `crash`; counts what it was asked.
#[derive(Default)]
struct Shouter {
    asked: Mutex<Vec<String>>,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

#[async_trait]
impl Answerer for Shouter {
    async fn answer(&self, request: AnswerRequest) -> Result<Answer, AnswerError> {
        let prompt = request.body["prompt"].as_str().unwrap_or_default().to_owned();
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.asked.lock().unwrap().push(prompt.clone());
        match prompt.as_str() {
            "bad" => Err(AnswerError::invalid("prompt", "bad")),
            "crash" => Err(AnswerError {
                message: "gone".into(),
                status: 503,
                param: None,
            }),
            _ => Ok(Answer {
                choices: vec![AnswerChoice {
                    text: prompt.to_uppercase(),
                    finish_reason: "stop".into(),
                    logprobs: None,
                }],
                usage: TokenUsage {
                    prompt_tokens: 1,
                    completion_tokens: 2,
                },
            }),
        }
    }

    async fn stream(&self, _request: AnswerRequest) -> Result<PieceStream, AnswerError> {
        Err(AnswerError::invalid("stream", "not needed here"))
    }
}

struct Run {
    result: Result<Summary, RunError>,
    output: Vec<u8>,
    asked: Vec<String>,
}

/// Lines without their digests, which `row` tests.
fn without_digests(mut rows: Vec<Value>) -> Vec<Value> {
    for row in &mut rows {
        let digest = row.as_object_mut().unwrap().remove("request_digest");
        assert!(digest.is_some_and(|digest| digest.is_string()), "{row}");
    }
    rows
}

/// One process's run over `input`, on top of what the output file already holds.
fn run_over(path: &Path, input: &str, concurrency: usize) -> Run {
    let shouter = Shouter::default();
    let (mut file, done) = open_output(path, None, false).unwrap();
    let rules = RowRules {
        format: Format::Jsonl,
        as_chat: false,
        defaults: Map::new(),
        model: String::new(),
    };
    let plan = RunPlan {
        rules: &rules,
        done: &done,
        answerer: &shouter,
        concurrency,
        on_row: &|_: &Summary| {},
    };
    let lines: Vec<std::io::Result<Vec<u8>>> =
        input.lines().map(|line| Ok(line.as_bytes().to_vec())).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let result = runtime.block_on(run(
        futures::stream::iter(lines),
        plan,
        &mut file,
        std::future::pending::<()>(),
    ));
    assert!(shouter.most_running.load(Ordering::SeqCst) <= concurrency);
    Run {
        result,
        output: std::fs::read(path).unwrap(),
        asked: shouter.asked.into_inner().unwrap(),
    }
}

fn rows(output: &[u8]) -> Vec<Value> {
    let mut rows: Vec<Value> = output
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    rows.sort_by_key(|row| row["index"].as_u64());
    rows
}

use std::path::Path;

fn temporary() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    (folder, path)
}

const THREE: &str =
    "{\"id\": \"a\", \"prompt\": \"one\"}\n\n{\"prompt\": \"two\"}\n{\"id\": 7, \"prompt\": \"three\"}\n";

#[test]
fn every_row_is_answered_under_its_id_and_number() {
    let (_folder, path) = temporary();
    let run = run_over(&path, THREE, 2);
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 2});
    assert_eq!(
        without_digests(rows(&run.output)),
        [
            json!({"index": 0, "id": "a", "text": "ONE", "finish_reason": "stop", "usage": usage}),
            json!({"index": 1, "text": "TWO", "finish_reason": "stop", "usage": usage}),
            json!({"index": 2, "id": "7", "text": "THREE", "finish_reason": "stop", "usage": usage}),
        ]
    );
    assert_eq!(run.result.unwrap().answered, 3);
}

#[test]
fn second_run_asks_nothing_and_changes_nothing() {
    let (_folder, path) = temporary();
    let first = run_over(&path, THREE, 2);
    let second = run_over(&path, THREE, 2);
    assert_eq!(second.asked, Vec::<String>::new());
    assert_eq!(second.output, first.output);
    assert_eq!(second.result.unwrap().skipped, 3);
}

#[test]
fn another_question_under_a_known_id_or_number_is_refused() {
    for (first, second) in [
        (
            "{\"id\": \"a\", \"prompt\": \"x\"}",
            "{\"id\": \"a\", \"prompt\": \"y\"}",
        ),
        ("\"x\"", "\"y\""),
    ] {
        let (_folder, path) = temporary();
        let whole = run_over(&path, first, 1).output;
        let run = run_over(&path, second, 1);
        let error = run.result.unwrap_err();
        assert!(matches!(error, RunError::Changed { index: 0, .. }), "{error}");
        assert_eq!(run.output, whole);
        assert_eq!(run.asked, Vec::<String>::new());
    }
}

#[test]
fn run_killed_at_any_byte_is_completed_to_the_same_rows() {
    let (_folder, path) = temporary();
    let whole = run_over(&path, THREE, 1).output;
    for kept in 0..=whole.len() {
        std::fs::write(&path, &whole[..kept]).unwrap();
        let resumed = run_over(&path, THREE, 1);
        assert_eq!(resumed.output, whole, "killed after {kept} bytes");
        let finished_before = whole[..kept].split(|byte| *byte == b'\n').count() - 1;
        assert_eq!(
            resumed.asked.len(),
            3 - finished_before,
            "killed after {kept} bytes"
        );
    }
}

#[test]
fn rows_at_fault_become_error_lines_and_the_rest_is_answered() {
    let (_folder, path) = temporary();
    let run = run_over(
        &path,
        "{\"prompt\": \"bad\"}\n{broken\n{\"prompt\": \"two\"}\n",
        4,
    );
    let rows = rows(&run.output);
    assert_eq!(
        rows[0]["error"],
        json!({"message": "bad", "param": "prompt", "code": 400})
    );
    assert_eq!(rows[1]["error"]["param"], "row");
    assert_eq!(rows[2]["text"], "TWO");
    let summary = run.result.unwrap();
    assert_eq!((summary.answered, summary.failed), (1, 2));
}

#[test]
fn rows_that_failed_are_asked_again_and_those_that_were_answered_are_not() {
    let (_folder, path) = temporary();
    let input = "{\"prompt\": \"bad\"}\n{\"prompt\": \"two\"}\n";
    run_over(&path, input, 1);
    let again = run_over(&path, input, 1);
    assert_eq!(again.asked, ["bad"]);
    let summary = again.result.unwrap();
    assert_eq!((summary.failed, summary.skipped), (1, 1));
    // Mended in the input: the row may ask something else, for it has no answer yet.
    let mended = run_over(&path, &input.replace("bad", "good"), 1);
    assert_eq!(mended.asked, ["good"]);
    let (_, done) = open_output(&path, None, false).unwrap();
    assert_eq!((done.len(), done.num_failed()), (2, 0));
}

#[test]
fn failing_engine_ends_the_run_without_marking_its_row_done() {
    let (_folder, path) = temporary();
    let input = "{\"prompt\": \"one\"}\n{\"prompt\": \"crash\"}\n{\"prompt\": \"three\"}\n";
    let run = run_over(&path, input, 1);
    assert!(matches!(run.result, Err(RunError::Engine { index: 1, .. })));
    assert_eq!(rows(&run.output).len(), 1);
}

#[test]
fn duplicate_ids_are_refused() {
    let (_folder, path) = temporary();
    let run = run_over(
        &path,
        "{\"id\": \"a\", \"prompt\": \"x\"}\n{\"id\": \"a\", \"prompt\": \"y\"}\n",
        1,
    );
    assert!(matches!(
        run.result,
        Err(RunError::DuplicateId {
            first: 0,
            second: 1,
            ..
        })
    ));
}

#[test]
fn files_of_others_are_left_alone() {
    let (_folder, path) = temporary();
    for content in ["my notes\n", "{}\n", "[1]\n", "{\"id\": 5}\n"] {
        std::fs::write(&path, content).unwrap();
        assert!(open_output(&path, None, false).is_err(), "{content}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
    open_output(&path, None, true).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

#[test]
fn stopped_run_keeps_what_is_written() {
    let (_folder, path) = temporary();
    let (mut file, done) = open_output(&path, None, false).unwrap();
    let shouter = Shouter::default();
    let rules = RowRules {
        format: Format::Text,
        as_chat: false,
        defaults: Map::new(),
        model: String::new(),
    };
    let plan = RunPlan {
        rules: &rules,
        done: &done,
        answerer: &shouter,
        concurrency: 1,
        on_row: &|_: &Summary| {},
    };
    let lines = futures::stream::iter([Ok(b"one".to_vec())]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let summary = runtime
        .block_on(run(lines, plan, &mut file, std::future::ready(())))
        .unwrap();
    assert!(summary.interrupted);
}

#[test]
fn overlong_lines_become_error_rows_without_being_kept() {
    let (folder, _path) = temporary();
    let path = folder.path().join("in.txt");
    let mut content = vec![b'x'; row::MAX_LINE_BYTES + 10];
    content.extend(b"\r\nshort\r\nlast");
    std::fs::write(&path, content).unwrap();
    let input = open_input(&path, None).unwrap();
    assert_eq!((input.format, input.total), (Format::Text, Some(3)));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let lines: Vec<Vec<u8>> = runtime.block_on(input.into_lines().map(Result::unwrap).collect());
    assert_eq!(lines[0].len(), row::MAX_LINE_BYTES + 1);
    assert_eq!(lines[1..], [b"short".to_vec(), b"last".to_vec()]);
}

#[test]
fn format_follows_name_then_first_character() {
    let (folder, _path) = temporary();
    for (name, content, format) in [
        ("a.jsonl", "x", Format::Jsonl),
        ("a.txt", "{", Format::Text),
        ("a", " {\"prompt\": 1}", Format::Jsonl),
        ("b", "hello", Format::Text),
        ("c", "", Format::Text),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        assert_eq!(open_input(&path, None).unwrap().format, format, "{name}");
    }
}

#[test]
fn prompts_of_the_command_line_may_hold_line_breaks() {
    let input = Input::of_prompts(vec!["a\nb".into(), "{".into()]);
    let rules = RowRules {
        format: input.format,
        as_chat: false,
        defaults: Map::new(),
        model: String::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let lines: Vec<Vec<u8>> = runtime.block_on(input.into_lines().map(Result::unwrap).collect());
    let prompts: Vec<Value> = lines
        .iter()
        .map(|line| rules.row(0, line).request.unwrap().body["prompt"].clone())
        .collect();
    assert_eq!(prompts, [json!("a\nb"), json!("{")]);
}

#[test]
fn input_is_never_taken_as_the_output() {
    let (folder, path) = temporary();
    std::fs::write(&path, "{\"id\":\"a\",\"prompt\":\"x\"}\n").unwrap();
    let link = folder.path().join("link.jsonl");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for (name, overwrite) in [(&path, false), (&path, true), (&link, true)] {
        let error = open_output(name, Some(&path), overwrite).unwrap_err();
        assert!(error.to_string().contains("is the input"), "{error}");
    }
    assert!(std::fs::read_to_string(&path).unwrap().contains("prompt"));
}

#[test]
fn output_of_a_run_that_goes_on_is_refused() {
    let (_folder, path) = temporary();
    let (file, _) = open_output(&path, None, false).unwrap();
    let error = open_output(&path, None, true).unwrap_err();
    assert!(error.to_string().contains("another run"), "{error}");
    drop(file);
    open_output(&path, None, false).unwrap();
}

#[test]
fn devices_are_written_and_never_read_for_rows_that_are_done() {
    // Reading /dev/full or /dev/zero has no end.
    for device in ["/dev/null", "/dev/full", "/dev/zero"] {
        let (_file, done) = open_output(Path::new(device), None, false).unwrap();
        assert_eq!(done, Done::default(), "{device}");
    }
}

#[test]
fn pipes_are_read_once() {
    let (folder, _path) = temporary();
    let pipe = folder.path().join("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, "one\ntwo\n").unwrap()
    });
    let input = open_input(&pipe, None).unwrap();
    writer.join().unwrap();
    assert_eq!((input.format, input.total), (Format::Text, None));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let lines: Vec<Vec<u8>> = runtime.block_on(input.into_lines().map(Result::unwrap).collect());
    assert_eq!(lines, [b"one", b"two"]);
}
