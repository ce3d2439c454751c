//! A running server as the one who answers: `kvasir chat --url`.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::answerer::{
    Answer, AnswerChoice, AnswerError, AnswerRequest, Answerer, Piece, PieceStream, Route, TokenUsage,
};

/// Pieces that wait for the terminal.
const PIECES_AHEAD: usize = 64;
/// Longest line of a stream and longest other body, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// For the connection; an answer may take as long as it likes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A server with OpenAI's API.
#[derive(Clone)]
pub(crate) struct Remote {
    agent: ureq::Agent,
    /// Without `/v1` and without a slash at its end.
    base: String,
    key: Option<String>,
    model: String,
}

impl Remote {
    /// Asks a server which model it serves. Blocks.
    ///
    /// # Errors
    /// If it can't be reached, refuses the key, or serves nothing.
    pub(crate) fn connect(url: &str, key: Option<String>) -> Result<Self, AnswerError> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // A redirect would carry the key to somebody else.
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .user_agent(concat!("kvasir/", env!("CARGO_PKG_VERSION")))
            .build();
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let mut remote = Self {
            agent: config.into(),
            base,
            key,
            model: String::new(),
        };
        let url = format!("{}/v1/models", remote.base);
        let mut request = remote.agent.get(&url);
        if let Some(key) = &remote.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let response = request.call().map_err(|error| unreachable(&url, &error))?;
        let models = json_body(response)?;
        let model = models["data"][0]["id"].as_str();
        model
            .ok_or_else(|| failure(502, format!("{url} names no model")))?
            .clone_into(&mut remote.model);
        Ok(remote)
    }

    /// The model that the server names first.
    pub(crate) fn model_name(&self) -> &str {
        &self.model
    }

    /// Sends the request and hands its events to `sender` until either is gone. Blocks.
    fn run(
        &self,
        body: &Map<String, Value>,
        route: Route,
        sender: &mpsc::Sender<Result<Piece, AnswerError>>,
    ) {
        let lines = match self.open(body, route) {
            Ok(reader) => BufReader::new(reader),
            Err(error) => return drop(sender.blocking_send(Err(error))),
        };
        for line in Lines(lines) {
            let piece = match line {
                Ok(line) => event(&line),
                Err(error) => Some(Err(failure(502, format!("the stream broke: {error}")))),
            };
            let Some(piece) = piece else { continue };
            let is_last = piece.is_err();
            if sender.blocking_send(piece).is_err() || is_last {
                return;
            }
        }
    }

    fn open(&self, body: &Map<String, Value>, route: Route) -> Result<impl Read + use<>, AnswerError> {
        let path = match route {
            Route::Chat => "chat/completions",
            Route::Completion => "completions",
        };
        let url = format!("{}/v1/{path}", self.base);
        let mut request = self.agent.post(&url).header("Content-Type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let body = Value::Object(body.clone()).to_string();
        let response = request
            .send(body.as_bytes())
            .map_err(|error| unreachable(&url, &error))?;
        if response.status().is_success() {
            Ok(response.into_body().into_reader())
        } else {
            Err(refusal(response))
        }
    }
}

#[async_trait]
impl Answerer for Remote {
    async fn answer(&self, request: AnswerRequest) -> Result<Answer, AnswerError> {
        let mut pieces = self.stream(request).await?;
        let mut choice = AnswerChoice {
            text: String::new(),
            finish_reason: "error".to_owned(),
            logprobs: None,
        };
        let mut usage = TokenUsage::default();
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            choice.text.push_str(&piece.text);
            choice.finish_reason = piece.finish_reason.unwrap_or(choice.finish_reason);
            usage = piece.usage.unwrap_or(usage);
        }
        Ok(Answer {
            choices: vec![choice],
            usage,
        })
    }

    async fn stream(&self, request: AnswerRequest) -> Result<PieceStream, AnswerError> {
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        let AnswerRequest { route, mut body } = request;
        body.insert("model".to_owned(), json!(self.model));
        body.insert("stream".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        let remote = self.clone();
        // A thread of its own, because it waits for the network; it ends when the receiver is dropped.
        std::thread::spawn(move || remote.run(&body, route, &sender));
        Ok(Box::pin(ReceiverStream::new(receiver)))
    }
}

/// Lines of bounded length.
struct Lines<R>(R);

impl<R: BufRead> Iterator for Lines<R> {
    type Item = std::io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = String::new();
        match self.0.by_ref().take(MAX_BYTES).read_line(&mut line) {
            Ok(0) => None,
            Ok(count) if count as u64 == MAX_BYTES => {
                Some(Err(std::io::Error::other("an event is too long")))
            }
            Ok(_) => Some(Ok(line)),
            Err(error) => Some(Err(error)),
        }
    }
}

/// What a line of a stream says; none for comments, empty lines and the end.
fn event(line: &str) -> Option<Result<Piece, AnswerError>> {
    let data = line.strip_prefix("data:")?.trim();
    if data == "[DONE]" {
        return None;
    }
    let Ok(event) = serde_json::from_str::<Value>(data) else {
        return Some(Err(failure(
            502,
            "the server sent an event that isn't JSON".to_owned(),
        )));
    };
    if event.get("error").is_some_and(|error| !error.is_null()) {
        return Some(Err(error_object(&event, 500)));
    }
    let choice = &event["choices"][0];
    let text = choice["delta"]["content"]
        .as_str()
        .or_else(|| choice["text"].as_str())
        .unwrap_or_default();
    let usage = event
        .get("usage")
        .filter(|usage| !usage.is_null())
        .map(|usage| TokenUsage {
            prompt_tokens: usage["prompt_tokens"].as_u64().unwrap_or(0),
            completion_tokens: usage["completion_tokens"].as_u64().unwrap_or(0),
        });
    Some(Ok(Piece {
        text: text.to_owned(),
        finish_reason: choice["finish_reason"].as_str().map(ToOwned::to_owned),
        usage,
    }))
}

fn json_body(response: ureq::http::Response<ureq::Body>) -> Result<Value, AnswerError> {
    if !response.status().is_success() {
        return Err(refusal(response));
    }
    let reader = response.into_body().into_reader().take(MAX_BYTES);
    serde_json::from_reader(reader)
        .map_err(|error| failure(502, format!("the server's answer isn't JSON: {error}")))
}

fn refusal(response: ureq::http::Response<ureq::Body>) -> AnswerError {
    let status = response.status().as_u16();
    let reader = response.into_body().into_reader().take(MAX_BYTES);
    match serde_json::from_reader::<_, Value>(reader) {
        Ok(body) => error_object(&body, status),
        Err(_) => failure(status, format!("the server answered {status}")),
    }
}

/// `{"error": {"message", "param", "code"}}`.
fn error_object(body: &Value, status: u16) -> AnswerError {
    let error = &body["error"];
    let message = error["message"]
        .as_str()
        .map_or_else(|| error.to_string(), ToOwned::to_owned);
    let status = error["code"]
        .as_u64()
        .and_then(|code| u16::try_from(code).ok())
        .unwrap_or(status);
    AnswerError {
        message,
        status,
        param: error["param"].as_str().map(ToOwned::to_owned),
    }
}

fn unreachable(url: &str, error: &ureq::Error) -> AnswerError {
    failure(503, format!("can't reach {url}: {error}"))
}

fn failure(status: u16, message: String) -> AnswerError {
    AnswerError {
        message,
        status,
        param: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_both_routes_are_read() {
        let chat = event(r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}"#);
        assert_eq!(
            chat,
            Some(Ok(Piece {
                text: "a".into(),
                ..Piece::default()
            }))
        );
        let last = event(
            r#"data:{"choices":[{"text":"b","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
        );
        let usage = Some(TokenUsage {
            prompt_tokens: 1,
            completion_tokens: 2,
        });
        assert_eq!(
            last,
            Some(Ok(Piece {
                text: "b".into(),
                finish_reason: Some("stop".into()),
                usage
            }))
        );
        for silent in ["", ": keep-alive", "data: [DONE]", "event: x"] {
            assert_eq!(event(silent), None, "{silent}");
        }
    }

    #[test]
    fn errors_inside_a_stream_are_errors() {
        let error = event(r#"data: {"error": {"message": "m", "param": "p", "code": 400}}"#)
            .unwrap()
            .unwrap_err();
        assert_eq!(
            error,
            AnswerError {
                message: "m".into(),
                status: 400,
                param: Some("p".into())
            }
        );
        assert!(event("data: {broken").unwrap().is_err());
        assert_eq!(
            event(r#"data: {"error": "Unauthorized"}"#)
                .unwrap()
                .unwrap_err()
                .message,
            "\"Unauthorized\""
        );
    }

    #[test]
    fn endless_lines_are_cut() {
        let endless = std::io::Cursor::new(vec![b'x'; MAX_BYTES as usize + 5]);
        assert!(Lines(endless).next().unwrap().is_err());
        let lines: Vec<String> = Lines(std::io::Cursor::new("a\nb")).map(Result::unwrap).collect();
        assert_eq!(lines, ["a\n", "b"]);
    }
}
