//! A scripted engine, a tokenizer whose token ids are bytes, and helpers to ask an edge.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use kvasir_client::types::{
    Error, ErrorCode, Finish, FinishReason, GenerateRequest, LoadReport, ModelInfo, SequenceOutput, Timeline,
    TimelineEntry, TimelineKind, TokenLogprobs, TopLogprob,
};
use kvasir_client::{EngineClient, OutputStream, TextAssetFiles};
use kvasir_edge::{Edge, EdgeConfig};
use kvasir_text::TextAssets;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::byte_assets;
pub(crate) use crate::byte_assets::{IM_END, IM_START};

pub(crate) const VOCAB_SIZE: u32 = 260;
pub(crate) const MAX_MODEL_LEN: u32 = 512;

/// What the engine does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// Each sequence says this, so many bytes per step, then ends; `{i}` is its index.
    Say(&'static str, usize),
    /// Says the prompt's bytes backwards, one per step, giving way to other tasks in between.
    Reverse,
    /// Refuses.
    Refuse(ErrorCode, &'static str),
    /// Says one token and then nothing.
    Hang,
    /// Exactly these outputs; the request's id is filled in.
    Outputs(Vec<SequenceOutput>),
}

/// What the engine was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Generate(String),
    Abort(String, Option<u32>),
    Dropped(String),
}

pub(crate) struct FakeEngine {
    script: Script,
    pub(crate) load: Mutex<Result<LoadReport, Error>>,
    /// By whether the last stall is asked for.
    pub(crate) dumps: Mutex<[Result<Bytes, Error>; 2]>,
    /// Whether it never answers when it is asked for a dump.
    pub(crate) stands_still: AtomicBool,
    log: Arc<Mutex<Vec<Event>>>,
    requests: Mutex<Vec<GenerateRequest>>,
    aborted: Arc<Mutex<BTreeSet<(String, u32)>>>,
    pub(crate) live: Arc<AtomicUsize>,
    pub(crate) max_model_len: u32,
    assets: TextAssets,
}

impl FakeEngine {
    pub(crate) fn new(script: Script) -> Arc<Self> {
        Self::with_context(script, MAX_MODEL_LEN)
    }

    pub(crate) fn with_context(script: Script, max_model_len: u32) -> Arc<Self> {
        Arc::new(Self {
            script,
            load: Mutex::new(Ok(LoadReport::default())),
            dumps: Mutex::new([
                Ok(Bytes::from_static(b"{}")),
                Err(kvasir_client::invalid("last_stall", "no stall")),
            ]),
            stands_still: AtomicBool::new(false),
            log: Arc::default(),
            requests: Mutex::default(),
            aborted: Arc::default(),
            live: Arc::default(),
            max_model_len,
            assets: assets(),
        })
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.log.lock().unwrap().clone()
    }

    /// The last request.
    pub(crate) fn request(&self) -> GenerateRequest {
        self.requests
            .lock()
            .unwrap()
            .last()
            .cloned()
            .expect("the engine was asked")
    }

    pub(crate) fn requests(&self) -> Vec<GenerateRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until no request is in the engine.
    pub(crate) async fn idle(&self) {
        wait_for("the engine to be idle", || self.live.load(Ordering::SeqCst) == 0).await;
    }
}

/// Polls with a generous deadline.
pub(crate) async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(30), waiting)
            .await
            .is_ok(),
        "waited for {what}"
    );
}

struct Guard {
    id: String,
    live: Arc<AtomicUsize>,
    log: Arc<Mutex<Vec<Event>>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.log.lock().unwrap().push(Event::Dropped(self.id.clone()));
        self.live.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl EngineClient for FakeEngine {
    async fn model_info(&self) -> Result<ModelInfo, Error> {
        Ok(ModelInfo {
            model: "tiny".to_owned(),
            vocab_size: VOCAB_SIZE,
            max_model_len: self.max_model_len,
            block_size: 16,
            num_blocks: 64,
            max_logprobs: 20,
            text_assets_digest: kvasir_client::assets::digest(self.assets.files()),
            weights_digest: "0123456789abcdef".to_owned(),
            ..ModelInfo::default()
        })
    }

    async fn dump(&self, last_stall: bool) -> Result<Bytes, Error> {
        if self.stands_still.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        self.dumps.lock().unwrap()[usize::from(last_stall)].clone()
    }

    async fn text_assets(&self, _digest: &str) -> Result<TextAssetFiles, Error> {
        Ok(self.assets.files().clone())
    }

    async fn generate(&self, request: GenerateRequest) -> Result<OutputStream, Error> {
        self.requests.lock().unwrap().push(request.clone());
        self.log
            .lock()
            .unwrap()
            .push(Event::Generate(request.request_id.clone()));
        let outputs: OutputStream = match self.script.clone() {
            Script::Refuse(code, message) => {
                return Err(Error {
                    code: code.into(),
                    message: message.to_owned(),
                    param: String::new(),
                });
            }
            Script::Hang => {
                let first = SequenceOutput {
                    token_ids: vec![u32::from(b'h')],
                    ..output(&request, 0)
                };
                Box::pin(futures::stream::iter([first]).chain(futures::stream::pending()))
            }
            Script::Outputs(outputs) => {
                let id = request.request_id.clone();
                Box::pin(futures::stream::iter(outputs.into_iter().map(
                    move |mut output| {
                        output.request_id.clone_from(&id);
                        output
                    },
                )))
            }
            Script::Say(text, step) => Box::pin(self.say(&request, step, &|index| {
                text.replace("{i}", &index.to_string()).into_bytes()
            })),
            Script::Reverse => {
                let said: Vec<u8> = request
                    .prompt_token_ids
                    .iter()
                    .rev()
                    .map(|&id| id as u8)
                    .collect();
                let outputs = self.say(&request, 1, &|_| said.clone());
                Box::pin(outputs.then(|output| async {
                    tokio::task::yield_now().await;
                    output
                }))
            }
        };
        self.live.fetch_add(1, Ordering::SeqCst);
        let guard = Guard {
            id: request.request_id,
            live: Arc::clone(&self.live),
            log: Arc::clone(&self.log),
        };
        Ok(Box::pin(outputs.map(move |output| {
            let _ = &guard;
            output
        })))
    }

    fn abort(&self, request_id: &str, index: Option<u32>) {
        self.log
            .lock()
            .unwrap()
            .push(Event::Abort(request_id.to_owned(), index));
        let mut aborted = self.aborted.lock().unwrap();
        for index in index.map_or(0..16, |index| index..index + 1) {
            aborted.insert((request_id.to_owned(), index));
        }
    }

    async fn load(&self) -> Result<LoadReport, Error> {
        self.load.lock().unwrap().clone()
    }

    async fn drain(&self, _deadline: Duration) -> Result<u32, Error> {
        Ok(0)
    }
}

impl FakeEngine {
    /// All sequences in turn, step by step, as the engine interleaves them.
    fn say(
        &self,
        request: &GenerateRequest,
        step: usize,
        said: &dyn Fn(u32) -> Vec<u8>,
    ) -> impl Stream<Item = SequenceOutput> + Send + use<> {
        let stop = request.stop.clone().unwrap();
        let mut outputs: Vec<Vec<SequenceOutput>> = Vec::new();
        for index in 0..request.n.max(1) {
            let mut tokens: Vec<u32> = said(index).into_iter().map(u32::from).collect();
            let mut reason = FinishReason::Length;
            if tokens.len() < stop.max_tokens as usize && !stop.eos_token_ids.is_empty() {
                tokens.push(IM_END);
                reason = FinishReason::Stop;
            }
            tokens.truncate(stop.max_tokens as usize);
            let last = tokens.len().div_ceil(step) - 1;
            for (at, tokens) in tokens.chunks(step).enumerate() {
                let mut output = SequenceOutput {
                    token_ids: tokens.to_vec(),
                    ..output(request, index)
                };
                if let Some(top) = request.sampling.as_ref().unwrap().logprobs {
                    output.logprobs = tokens.iter().map(|&token| logprobs(token, top)).collect();
                }
                if at == 0 {
                    output.cached_tokens = Some(4);
                    if let Some(top) = request.prompt_logprobs.filter(|_| index == 0) {
                        output.prompt_logprobs = request
                            .prompt_token_ids
                            .iter()
                            .map(|&token| logprobs(token, top))
                            .collect();
                        output.prompt_logprobs[0] = TokenLogprobs::default();
                    }
                }
                output.finish = (at == last).then(|| finish(reason));
                if outputs.len() <= at {
                    outputs.push(Vec::new());
                }
                outputs[at].push(output);
            }
        }
        let aborted = Arc::clone(&self.aborted);
        futures::stream::iter(outputs.into_iter().flatten()).filter_map(move |output| {
            let key = (output.request_id.clone(), output.index);
            let skip = aborted.lock().unwrap().contains(&key);
            std::future::ready((!skip).then_some(output))
        })
    }
}

pub(crate) fn finish(reason: FinishReason) -> Finish {
    let timeline = Timeline {
        scheduled_us: Some(1000),
        first_token_us: Some(2000),
        last_token_us: Some(5000),
        entries: vec![
            TimelineEntry {
                kind: TimelineKind::Chunk.into(),
                at_us: 1500,
                step: Some(7),
                tokens: 2,
            },
            TimelineEntry {
                kind: TimelineKind::FirstToken.into(),
                at_us: 2000,
                ..TimelineEntry::default()
            },
        ],
        ..Timeline::default()
    };
    Finish {
        reason: reason.into(),
        timeline: Some(timeline),
        ..Finish::default()
    }
}

fn output(request: &GenerateRequest, index: u32) -> SequenceOutput {
    SequenceOutput {
        request_id: request.request_id.clone(),
        index,
        ..SequenceOutput::default()
    }
}

fn logprobs(token: u32, top: u32) -> TokenLogprobs {
    let top = (0..top)
        .map(|i| TopLogprob {
            token_id: (token + i) % 256,
            logprob: -0.5 - i as f32,
        })
        .collect();
    TokenLogprobs {
        token_id: token,
        logprob: -0.5,
        rank: 1,
        top,
    }
}

/// Tokens are bytes.
pub(crate) fn assets() -> TextAssets {
    TextAssets::from_files(byte_assets::files(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}\
         {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ))
}

/// An answer of an edge.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The events of a stream without ids and times, `[DONE]` as a string.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(
            self.headers["content-type"], "text/event-stream; charset=utf-8",
            "{}",
            self.text
        );
        let frames = self
            .text
            .strip_suffix("\n\n")
            .expect("a stream ends with a frame");
        frames
            .split("\n\n")
            .map(
                |frame| match frame.strip_prefix("data: ").expect("a data frame") {
                    "[DONE]" => json!("[DONE]"),
                    data => {
                        let mut event: Value = serde_json::from_str(data).unwrap();
                        for key in ["id", "created", "model", "object"] {
                            event.as_object_mut().unwrap().remove(key);
                        }
                        event
                    }
                },
            )
            .collect()
    }

    /// Checks the error object and returns it.
    #[track_caller]
    pub(crate) fn error(&self, status: u16, kind: &str, param: Option<&str>) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        let error = &self.json()["error"];
        assert_eq!(error["code"], status);
        assert_eq!(error["type"], kind, "{error}");
        assert_eq!(error["param"], json!(param), "{error}");
        error["message"].as_str().unwrap().to_owned()
    }
}

pub(crate) async fn edge(engine: &Arc<FakeEngine>) -> Router {
    edge_with(engine, EdgeConfig::default()).await
}

pub(crate) async fn edge_with(engine: &Arc<FakeEngine>, config: EdgeConfig) -> Router {
    let engine: Arc<dyn EngineClient> = Arc::clone(engine) as Arc<dyn EngineClient>;
    Edge::new(config, engine).await.expect("the edge starts").router()
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

pub(crate) async fn post(router: &Router, path: &str, body: &Value) -> Answer {
    post_text(router, path, body.to_string()).await
}

pub(crate) async fn post_text(router: &Router, path: &str, body: impl Into<Body>) -> Answer {
    send(router, request(Method::POST, path, body)).await
}

pub(crate) async fn get(router: &Router, path: &str) -> Answer {
    send(router, request(Method::GET, path, Body::empty())).await
}

pub(crate) fn request(method: Method, path: &str, body: impl Into<Body>) -> Request<Body> {
    let builder = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    builder.body(body.into()).unwrap()
}

pub(crate) fn chat(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    body
}

pub(crate) fn completion(extra: Value) -> Value {
    let mut body = json!({"prompt": "hi"});
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    body
}
