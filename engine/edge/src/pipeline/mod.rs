//! From text to text: tokenize, generate, detokenize, stop strings.
//!
//! The HTTP handlers and the offline commands use the same pipeline, so they give the same answers. Blocking work
//! (templates, tokenizing) runs beside the async threads, at most one task per CPU.

mod prepare;
mod sequence;
mod source;
mod stream;
mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_api::{
    ApiError, Context, FinishReason, Limits, Sampling, SamplingDefaults, StopReason, Truncation,
};
use kvasir_client::types::{ModelInfo, TokenLogprobs};
use kvasir_client::{EngineClient, TextAssetFiles, assets};
use kvasir_text::{DetokenizerOptions, Text, TextAssets};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use prepare::Prepared;
pub use source::Source;
pub use stream::TextStream;
pub use wire::engine_error;

use crate::config::GenerationConfig;
use crate::error::EdgeError;
use crate::metrics::Figures;
use crate::seeds::Seeds;
use crate::spans::Spans;
use source::EngineSource;

/// Turns text requests into text, over any engine. Cheap to clone.
#[derive(Clone)]
pub struct Pipeline {
    inner: Arc<Inner>,
    source: Arc<dyn Source>,
    /// The server's time is over: what runs ends with an error.
    cut: CancellationToken,
}

struct Inner {
    text: Arc<Text>,
    info: ModelInfo,
    context: Context,
    figures: Figures,
    spans: Option<Spans>,
    /// Bytes of the longest token: no text of more than this times the context fits.
    max_token_bytes: usize,
    /// One permit per CPU for templates and tokenizing.
    text_permits: Semaphore,
    seeds: Seeds,
}

/// What a [`Pipeline`] is told at start.
#[derive(Clone, Debug, Default)]
pub struct PipelineOptions {
    /// The name that metrics carry; empty means the engine's name.
    pub model_name: String,
    /// Where sampling defaults come from.
    pub generation_config: GenerationConfig,
    /// The server's limits; those of the model are filled in.
    pub limits: Option<Limits>,
    /// Seeds of requests that bring none follow from this one; none means random ones.
    pub seed: Option<u64>,
    /// Figures to count into, which several pipelines may share; none means own ones.
    pub figures: Option<Figures>,
    /// Records a span for each request.
    pub spans: Option<Spans>,
}

/// A prompt before it is tokenized.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Text.
    Text {
        /// The text, not empty.
        text: String,
        /// Adds the tokenizer's special tokens.
        add_special_tokens: bool,
    },
    /// Token ids, within the vocabulary, not empty.
    Tokens(Vec<u32>),
    /// A conversation.
    Chat(kvasir_text::ChatRequest),
}

/// One prompt and how to continue it.
#[derive(Clone, Debug)]
pub struct TextRequest {
    /// Start of the engine's request id; the pipeline makes it unique (C30).
    pub request_id: String,
    /// The prompt.
    pub prompt: Prompt,
    /// How to continue it. Without `max_tokens` the rest of the context may be used.
    pub sampling: Sampling,
    /// Cuts the prompt before its length is checked.
    pub truncation: Option<Truncation>,
    /// Lower runs earlier.
    pub priority: i64,
    /// Separates prefix-cache entries; empty means none.
    pub cache_salt: String,
    /// The W3C trace context that it belongs to; empty means none.
    pub traceparent: String,
    /// When the request arrived, for the time to first token.
    pub arrival: Instant,
    /// Whether each sequence's timeline lists its entries.
    pub timeline: bool,
    /// Longest time the request may run; none means no limit.
    pub timeout: Option<Duration>,
}

impl TextRequest {
    /// A request with no more than a prompt and a way to continue it.
    pub fn new(prompt: Prompt, sampling: Sampling) -> Self {
        Self {
            request_id: "req".to_owned(),
            prompt,
            sampling,
            truncation: None,
            priority: 0,
            cache_salt: String::new(),
            traceparent: String::new(),
            arrival: Instant::now(),
            timeline: false,
            timeout: None,
        }
    }
}

/// What is new in one sequence of a request.
#[derive(Clone, Debug, Default)]
pub struct TextDelta {
    /// Which of the n.
    pub index: u32,
    /// New text; complete characters, nothing that may still become a stop string.
    pub text: String,
    /// New tokens; their text may follow later.
    pub token_ids: Vec<u32>,
    /// One per entry of `token_ids` if log probabilities were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// On the first delta of sequence 0, if asked for: one per prompt token, the first one empty.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// On the first delta of a sequence: prompt tokens read from the prefix cache.
    pub cached_tokens: Option<u32>,
    /// Set on the last delta of the sequence.
    pub finish: Option<Finish>,
    /// On the last delta of a sequence that the engine ended, if asked for.
    pub timeline: Option<kvasir_api::Timeline>,
}

/// How a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// The stop string or stop token that ended it.
    pub stop_reason: Option<StopReason>,
}

impl Pipeline {
    /// Asks the engine what it serves and loads the files for text.
    ///
    /// # Errors
    /// If the engine can't be asked, or its text assets can't be used.
    pub async fn connect(engine: Arc<dyn EngineClient>, options: PipelineOptions) -> Result<Self, EdgeError> {
        let info = engine.model_info().await.map_err(EdgeError::ModelInfo)?;
        let files = engine
            .text_assets(&info.text_assets_digest)
            .await
            .map_err(EdgeError::TextAssets)?;
        let received = assets::digest(&files);
        if received != info.text_assets_digest {
            return Err(EdgeError::AssetsDigest {
                announced: info.text_assets_digest,
                received,
            });
        }
        Self::load(info, files, options, Arc::new(EngineSource(engine))).await
    }

    /// Loads the files for text of a model whose requests `source` runs.
    ///
    /// # Errors
    /// If the files can't be used.
    pub async fn load(
        info: ModelInfo,
        files: TextAssetFiles,
        options: PipelineOptions,
        source: Arc<dyn Source>,
    ) -> Result<Self, EdgeError> {
        let assets = TextAssets::from_files(files);
        let text = tokio::task::spawn_blocking(move || Text::load(&assets))
            .await
            .map_err(EdgeError::LoadTask)?;
        let text = Arc::new(text.map_err(EdgeError::Text)?);
        Ok(Self {
            inner: Arc::new(Inner::new(info, text, options)),
            source,
            cut: CancellationToken::new(),
        })
    }

    /// The same pipeline with another source of tokens.
    #[must_use]
    pub fn with_source(&self, source: Arc<dyn Source>) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            source,
            cut: self.cut.clone(),
        }
    }

    /// Prepares and starts a request.
    ///
    /// # Errors
    /// If the prompt is refused here, or the request by the engine.
    pub async fn generate(&self, request: TextRequest) -> Result<TextStream, ApiError> {
        let prepared = self.prepare(request).await?;
        self.start(prepared).await
    }

    /// Tokenizes and checks a request; nothing reaches the engine yet.
    ///
    /// # Errors
    /// If the prompt can't be tokenized, is empty, or leaves no room for an answer.
    pub async fn prepare(&self, request: TextRequest) -> Result<Prepared, ApiError> {
        prepare::prepare(&self.inner, request).await
    }

    /// Hands a request to the engine. Dropping the stream aborts it.
    ///
    /// # Errors
    /// The engine's refusal.
    pub async fn start(&self, prepared: Prepared) -> Result<TextStream, ApiError> {
        let started = self.source.generate(prepared.request.clone());
        let outputs = self.in_time(prepared.deadline, started).await?;
        Ok(self.started(prepared, outputs))
    }

    /// Hands the requests of one call to the engine, all or none. Dropping a stream aborts its request.
    ///
    /// # Errors
    /// The engine's refusal.
    pub async fn start_all(&self, prepared: Vec<Prepared>) -> Result<Vec<TextStream>, ApiError> {
        let requests = prepared.iter().map(|prepared| prepared.request.clone());
        let deadline = prepared.iter().filter_map(|prepared| prepared.deadline).min();
        let started = self.source.generate_all(requests.collect());
        let outputs = self.in_time(deadline, started).await?;
        let started = prepared.into_iter().zip(outputs);
        Ok(started
            .map(|(prepared, outputs)| self.started(prepared, outputs))
            .collect())
    }

    /// A gateway's requests may wait long before an engine begins to answer them.
    async fn in_time<T>(
        &self,
        deadline: Option<tokio::time::Instant>,
        starting: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let Some(deadline) = deadline else {
            return starting.await;
        };
        let mut starting = std::pin::pin!(starting);
        if let Ok(started) = tokio::time::timeout_at(deadline, starting.as_mut()).await {
            return started;
        }
        // Before the request is dropped, which looks as if its client had left.
        let error = stream::out_of_time();
        self.source.given_up(&error);
        Err(error)
    }

    fn started(&self, prepared: Prepared, outputs: kvasir_client::OutputStream) -> TextStream {
        self.inner
            .figures
            .request_started(prepared.request.n, prepared.max_tokens());
        TextStream::new(self.clone(), prepared, outputs)
    }

    /// Token ids of a prompt, which may be more than the context has.
    ///
    /// # Errors
    /// If the template or the tokenizer refuses it, or it has more bytes than a context could hold, and more than 1 MiB.
    pub async fn tokenize(&self, prompt: Prompt) -> Result<Vec<u32>, ApiError> {
        prepare::check_size(&self.inner, &prompt, false)?;
        prepare::tokenize(&self.inner, prompt)
            .await
            .map(|tokenized| tokenized.ids)
    }

    /// Text of token ids, special tokens included. Ids that only the model's head has give no text.
    pub fn detokenize(&self, ids: &[u32]) -> String {
        let options = DetokenizerOptions {
            skip_special_tokens: false,
        };
        let mut detokenizer = self.inner.text.detokenizer(options, &[]);
        let mut text = String::new();
        for &id in ids {
            text.push_str(detokenizer.push(id));
        }
        text.push_str(&detokenizer.finish());
        text
    }

    /// The same pipeline, whose answers end with an error when `cut` is cancelled.
    pub(crate) fn until(self, cut: CancellationToken) -> Self {
        Self { cut, ..self }
    }

    /// Tokenizer, templates and detokenizers.
    pub fn text(&self) -> &Arc<Text> {
        &self.inner.text
    }

    /// What is served.
    pub fn model_info(&self) -> &ModelInfo {
        &self.inner.info
    }

    /// What requests are resolved against.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The figures that it counts into.
    pub fn figures(&self) -> &Figures {
        &self.inner.figures
    }
}

impl Inner {
    fn new(info: ModelInfo, text: Arc<Text>, options: PipelineOptions) -> Self {
        let name = if options.model_name.is_empty() {
            &info.model
        } else {
            &options.model_name
        };
        let figures = options.figures.unwrap_or_else(|| Figures::of_engine(name, &info));
        figures.name_model(name);
        let mut limits = options.limits.unwrap_or_else(|| Limits::new(0, 0, 0));
        limits.max_model_len = info.max_model_len;
        limits.vocab_size = info.vocab_size;
        limits.max_logprobs = info.max_logprobs;
        let defaults = match options.generation_config {
            GenerationConfig::Auto => wire::sampling_defaults(text.generation_defaults(), &info),
            GenerationConfig::Vllm => SamplingDefaults::default(),
        };
        let max_token_bytes = (0..info.vocab_size)
            .map(|id| text.token_bytes(id).map_or(0, <[u8]>::len))
            .max()
            .unwrap_or(0);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            text,
            info,
            context: Context { limits, defaults },
            figures,
            spans: options.spans,
            max_token_bytes,
            text_permits: Semaphore::new(cpus),
            seeds: Seeds::new(options.seed),
        }
    }
}
