//! One line of input becomes one request. Pure.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::answerer::{AnswerError, AnswerRequest, Route};

/// Longest input line, in bytes: a prompt of a million tokens is shorter.
pub(crate) const MAX_LINE_BYTES: usize = 16 << 20;
/// Enough to tell the rows of one file from changed ones; nobody gains by forging them.
const DIGEST_BYTES: usize = 16;

/// How lines are read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Format {
    /// A JSON object per line.
    Jsonl,
    /// A prompt per line.
    Text,
}

/// What all rows share.
#[derive(Clone, Debug)]
pub(crate) struct RowRules {
    /// How lines are read.
    pub(crate) format: Format,
    /// Whether a plain prompt is a user's message instead of the beginning of a text.
    pub(crate) as_chat: bool,
    /// Fields for rows that don't set them.
    pub(crate) defaults: Map<String, Value>,
    /// The model that is asked, as it was named; empty for the default one.
    pub(crate) model: String,
}

/// A row of the input.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// Its number, from 0; empty lines don't count.
    pub(crate) index: u64,
    /// Its own name, if it has one.
    pub(crate) id: Option<String>,
    /// What it asks, of which model and with which defaults, as a number: a row that was answered before and has another one now
    /// is another question.
    pub(crate) request_digest: String,
    /// What it asks, or why it can't be asked.
    pub(crate) request: Result<AnswerRequest, AnswerError>,
}

impl RowRules {
    /// Reads a line.
    pub(crate) fn row(&self, index: u64, line: &[u8]) -> Row {
        let (id, request) = self.read(line);
        Row {
            index,
            id,
            request_digest: self.digest(line),
            request,
        }
    }

    /// The first half of a SHA-256 in hexadecimal; each part goes in with its length.
    fn digest(&self, line: &[u8]) -> String {
        let defaults = Value::from(self.defaults.clone()).to_string();
        let kind = [u8::from(self.as_chat), u8::from(self.format == Format::Text)];
        let mut hash = Sha256::new();
        for part in [self.model.as_bytes(), defaults.as_bytes(), &kind, line] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let half = hash
            .finalize()
            .iter()
            .take(DIGEST_BYTES)
            .fold(0, |half: u128, byte| half << 8 | u128::from(*byte));
        format!("{half:032x}")
    }

    fn read(&self, line: &[u8]) -> (Option<String>, Result<AnswerRequest, AnswerError>) {
        let refused = |message: String| (None, Err(AnswerError::invalid("row", message)));
        if line.len() > MAX_LINE_BYTES {
            return refused(format!("the row is longer than {MAX_LINE_BYTES} bytes"));
        }
        let Ok(text) = std::str::from_utf8(line) else {
            return refused("the row isn't UTF-8".to_owned());
        };
        if self.format == Format::Text {
            return (None, Ok(self.plain(text)));
        }
        match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(mut object)) => match take_id(&mut object) {
                Ok(id) => (id, self.request(object)),
                Err(error) => (None, Err(error)),
            },
            Ok(Value::String(prompt)) => (None, Ok(self.plain(&prompt))),
            Ok(_) => refused("a row must be an object with prompt or messages, or a string".to_owned()),
            Err(error) => refused(format!("the row isn't valid JSON: {error}")),
        }
    }

    fn plain(&self, prompt: &str) -> AnswerRequest {
        let mut body = Map::new();
        body.insert("prompt".to_owned(), Value::from(prompt));
        self.with_defaults(body)
    }

    fn request(&self, mut object: Map<String, Value>) -> Result<AnswerRequest, AnswerError> {
        // OpenAI's batch files wrap the body: {"custom_id", "method", "url", "body"}.
        if let Some(body) = object.remove("body") {
            let Value::Object(body) = body else {
                return Err(AnswerError::invalid("body", "body must be an object"));
            };
            object = body;
        }
        if object
            .get("stream")
            .is_some_and(|stream| stream != &Value::Bool(false))
        {
            return Err(AnswerError::invalid(
                "stream",
                "stream can't be honoured: answers are written whole",
            ));
        }
        match (object.contains_key("messages"), object.contains_key("prompt")) {
            (true, true) => Err(AnswerError::invalid(
                "prompt",
                "a row has prompt or messages, not both",
            )),
            (false, false) => Err(AnswerError::invalid("prompt", "a row needs prompt or messages")),
            _ => Ok(self.with_defaults(object)),
        }
    }

    fn with_defaults(&self, mut body: Map<String, Value>) -> AnswerRequest {
        if self.as_chat
            && let Some(prompt) = body.get("prompt").filter(|prompt| prompt.is_string()).cloned()
        {
            body.remove("prompt");
            body.insert(
                "messages".to_owned(),
                serde_json::json!([{"role": "user", "content": prompt}]),
            );
        }
        for (name, value) in &self.defaults {
            let has_alias = name == "max_tokens" && body.contains_key("max_completion_tokens");
            if !has_alias {
                body.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        let route = if body.contains_key("messages") {
            Route::Chat
        } else {
            Route::Completion
        };
        AnswerRequest { route, body }
    }
}

fn take_id(object: &mut Map<String, Value>) -> Result<Option<String>, AnswerError> {
    match object.remove("custom_id").or_else(|| object.remove("id")) {
        None => Ok(None),
        Some(Value::String(id)) => Ok(Some(id)),
        Some(Value::Number(id)) => Ok(Some(id.to_string())),
        Some(_) => Err(AnswerError::invalid("id", "id must be a string or a number")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(format: Format) -> RowRules {
        let Value::Object(defaults) = json!({"max_tokens": 5, "temperature": 0}) else {
            unreachable!()
        };
        RowRules {
            format,
            as_chat: false,
            defaults,
            model: "m".to_owned(),
        }
    }

    fn request(line: &str) -> Result<AnswerRequest, AnswerError> {
        rules(Format::Jsonl).row(0, line.as_bytes()).request
    }

    #[test]
    fn fields_of_a_row_win_over_flags() {
        let asked = request(r#"{"prompt": "a", "max_tokens": 9}"#).unwrap();
        assert_eq!(asked.route, Route::Completion);
        assert_eq!(
            Value::Object(asked.body),
            json!({"prompt": "a", "max_tokens": 9, "temperature": 0})
        );
        let asked = request(r#"{"messages": [], "max_completion_tokens": 9}"#).unwrap();
        assert_eq!(asked.route, Route::Chat);
        assert!(!asked.body.contains_key("max_tokens"));
    }

    #[test]
    fn rows_of_openai_batch_files_are_understood() {
        let line = r#"{"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [1]}}"#;
        let row = rules(Format::Jsonl).row(3, line.as_bytes());
        assert_eq!((row.index, row.id.as_deref()), (3, Some("x")));
        assert_eq!(row.request.unwrap().body["messages"], json!([1]));
    }

    #[test]
    fn plain_lines_are_prompts_or_messages() {
        let mut rules = rules(Format::Text);
        assert_eq!(rules.row(0, b"{a").request.unwrap().body["prompt"], json!("{a"));
        rules.as_chat = true;
        let asked = rules.row(0, b"hi").request.unwrap();
        assert_eq!(asked.route, Route::Chat);
        assert_eq!(asked.body["messages"], json!([{"role": "user", "content": "hi"}]));
    }

    #[test]
    fn digest_tells_questions_apart_and_nothing_else() {
        let base = rules(Format::Jsonl);
        let digest = |rules: &RowRules, line: &str| rules.row(0, line.as_bytes()).request_digest;
        let first = digest(&base, "\"a\"");
        assert_eq!(first.len(), 2 * DIGEST_BYTES);
        assert_eq!(first, base.row(7, b"\"a\"").request_digest);
        let mut others = [base.clone(), base.clone(), base.clone(), base.clone()];
        others[0].model = "n".to_owned();
        others[1].as_chat = true;
        others[2].defaults.insert("seed".to_owned(), json!(1));
        others[3].format = Format::Text;
        for other in &others {
            assert_ne!(first, digest(other, "\"a\""), "{other:?}");
        }
        assert_ne!(first, digest(&base, "\"b\""));
    }

    #[test]
    fn rows_that_cannot_be_asked_say_why() {
        let cases = [
            ("{", "row"),
            ("[1]", "row"),
            ("{}", "prompt"),
            (r#"{"prompt": "a", "messages": []}"#, "prompt"),
            (r#"{"prompt": "a", "stream": true}"#, "stream"),
            (r#"{"id": [], "prompt": "a"}"#, "id"),
            (r#"{"body": 1}"#, "body"),
        ];
        for (line, param) in cases {
            assert_eq!(request(line).unwrap_err().param.as_deref(), Some(param), "{line}");
        }
        assert!(rules(Format::Text).row(0, b"\xff").request.is_err());
    }
}
