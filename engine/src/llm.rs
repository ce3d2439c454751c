//! A model in this process, without a server: the library behind `kvasir chat` and `kvasir generate`.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use kvasir_api::{ApiError, ChatRequest, Common, CompletionRequest};
use kvasir_client::types::TokenLogprobs;
use kvasir_config::{ConfigError, Count, EngineConfig, Layer, ModelConfig, Source, Spec, closest};
use kvasir_edge::pipeline::{Finish, TextDelta};
use kvasir_edge::{GenerationConfig, Pipeline, PipelineOptions, Prompt, TextRequest, TextStream};
use kvasir_service::Engine;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::answerer::{
    Answer, AnswerChoice, AnswerError, AnswerRequest, Answerer, Piece, PieceStream, Route, TokenUsage,
};
use crate::load::{LoadError, Place, start_engine};
use crate::progress::{Bars, Silent, Watcher};

/// Prompts of one [`Llm::generate`] call that are in work at the same time, for each sequence that fits into a step: enough
/// to keep the engine's queue from running dry.
const PROMPTS_PER_SEQUENCE: usize = 2;

/// What to load, and how. Every option of `kvasir generate` can be set by its flag's name.
#[derive(Clone, Debug, Default)]
pub struct LlmOptions {
    layer: Layer,
    shows_progress: bool,
}

impl LlmOptions {
    /// The default model with default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the model: a GGUF file, a folder with safetensors, or a Hugging Face repository.
    #[must_use]
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.layer.set("model", Source::Flag, vec![name.into()]);
        self
    }

    /// Sets an option by its flag's name, for example `("max-model-len", "4k")`. The value is checked when the model is loaded.
    ///
    /// # Errors
    /// If there is no such option.
    pub fn set(mut self, key: &str, value: impl Into<String>) -> Result<Self, ConfigError> {
        let specs: Vec<Spec> = [ModelConfig::specs(), EngineConfig::specs()].concat();
        let Some(spec) = specs
            .iter()
            .find(|spec| spec.key == key || spec.aliases.contains(&key))
        else {
            let suggestion = closest(key, specs.iter().map(|spec| spec.key)).map(ToOwned::to_owned);
            return Err(ConfigError::UnknownOption {
                key: key.to_owned(),
                suggestion,
            });
        };
        self.layer.set(spec.key, Source::Flag, vec![value.into()]);
        Ok(self)
    }

    /// Shows progress bars on standard error, if that is a terminal.
    #[must_use]
    pub fn show_progress(mut self, shows_progress: bool) -> Self {
        self.shows_progress = shows_progress;
        self
    }

    pub(crate) fn from_layer(layer: Layer) -> Self {
        Self {
            layer,
            shows_progress: true,
        }
    }
}

/// How tokens are chosen; what is unset is the model's default.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GenerationParams {
    /// Most tokens of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// 0 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// (0, 1]; 1 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// [0, 1]; 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// The same seed gives the same answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Sequences per prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// Texts that end an answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Any other field of the HTTP routes.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A message of a conversation.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// What the model is told first.
    pub fn system(content: impl Into<String>) -> Self {
        Self {
            role: "system".to_owned(),
            content: content.into(),
        }
    }

    /// What a person says.
    pub fn user(content: impl Into<String>) -> Self {
        Self {
            role: "user".to_owned(),
            content: content.into(),
        }
    }

    /// What the model said.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self {
            role: "assistant".to_owned(),
            content: content.into(),
        }
    }
}

/// A loaded model.
///
/// ```no_run
/// use kvasir::{GenerationParams, Llm, LlmOptions, Message};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let llm = Llm::load(LlmOptions::new().set("max-model-len", "2k")?).await?;
/// let params = GenerationParams { max_tokens: Some(32), temperature: Some(0.0), ..GenerationParams::default() };
/// for answer in llm.generate(["The capital of France is", "One, two,"], &params).await {
///     println!("{}", answer?.choices[0].text);
/// }
/// let answer = llm.chat(&[Message::user("Why is the sky blue?")], &params).await?;
/// println!("{} ({} tokens)", answer.choices[0].text, answer.usage.completion_tokens);
/// llm.shut_down().await;
/// # Ok(())
/// # }
/// ```
pub struct Llm {
    engine: Engine,
    pipeline: Pipeline,
    /// Names of fields that were warned about: one warning each, not one per row.
    unknown_fields: Mutex<BTreeSet<String>>,
}

impl Llm {
    /// Fetches the model if it isn't local, loads it, and starts its engine.
    ///
    /// # Errors
    /// If an option can't be used, or the model can't be had or run.
    pub async fn load(options: LlmOptions) -> Result<Self, LoadError> {
        let mut model = ModelConfig::resolve(&options.layer)?;
        let mut config = EngineConfig::resolve(&options.layer)?;
        config.settle();
        config.validate()?;
        // The caller decides how much it asks at once; nobody else could be kept waiting.
        config.max_num_queued_reqs.value = u32::MAX;
        config.max_num_queued_tokens.value = Count(u64::MAX);
        let (generation_config, seed) = (generation_config(&model), model.seed.value);
        let watcher: Box<dyn Watcher> = if options.shows_progress {
            Box::new(Bars::default())
        } else {
            Box::new(Silent)
        };
        let engine = tokio::task::spawn_blocking(move || {
            start_engine(&mut model, &mut config, &mut Place::default(), &*watcher)
        })
        .await
        .map_err(LoadError::Interrupted)??;
        let pipeline_options = PipelineOptions {
            generation_config,
            seed,
            ..PipelineOptions::default()
        };
        let pipeline = Pipeline::connect(engine.client(), pipeline_options).await?;
        Ok(Self {
            engine,
            pipeline,
            unknown_fields: Mutex::default(),
        })
    }

    /// The model's name.
    pub fn model_name(&self) -> &str {
        &self.pipeline.model_info().model
    }

    /// Continues prompts, batched; one result per prompt, in their order.
    pub async fn generate(
        &self,
        prompts: impl IntoIterator<Item = impl Into<String>>,
        params: &GenerationParams,
    ) -> Vec<Result<Answer, AnswerError>> {
        let requests: Vec<_> = prompts
            .into_iter()
            .map(|prompt| request(Route::Completion, "prompt", json!(prompt.into()), params))
            .collect();
        let at_once = PROMPTS_PER_SEQUENCE * self.pipeline.model_info().max_num_seqs.max(1) as usize;
        futures::stream::iter(requests)
            .map(|request| async move { self.answer(request?).await })
            .buffered(at_once)
            .collect()
            .await
    }

    /// Answers a conversation.
    ///
    /// # Errors
    /// If the request is refused or the engine fails.
    pub async fn chat(&self, messages: &[Message], params: &GenerationParams) -> Result<Answer, AnswerError> {
        self.answer(request(Route::Chat, "messages", json!(messages), params)?)
            .await
    }

    /// Answers a conversation piece by piece. Dropping the stream stops the work.
    ///
    /// # Errors
    /// If the request is refused; later errors come through the stream.
    pub async fn chat_stream(
        &self,
        messages: &[Message],
        params: &GenerationParams,
    ) -> Result<PieceStream, AnswerError> {
        self.stream(request(Route::Chat, "messages", json!(messages), params)?)
            .await
    }

    /// Resolves with the message if the scheduler thread panics; pending for ever otherwise.
    pub(crate) fn crashed(&self) -> impl Future<Output = String> + Send + 'static {
        self.engine.failed()
    }

    /// Ends the engine and waits for its thread.
    pub async fn shut_down(self) {
        self.engine.shutdown().await;
    }

    /// Checks a request and hands its prompts to the engine, one stream each.
    async fn start(&self, request: AnswerRequest) -> Result<Started, AnswerError> {
        let body = serde_json::to_vec(&request.body)
            .map_err(|error| AnswerError::invalid("body", error.to_string()))?;
        let context = self.pipeline.context();
        let (prompts, common, echo, unknown) = match request.route {
            Route::Chat => {
                let parsed = ChatRequest::parse(&body, context).map_err(refusal)?;
                let (common, echo) = (parsed.request.common.clone(), parsed.request.echo);
                (
                    vec![Prompt::Chat(kvasir_edge::conversation(parsed.request))],
                    common,
                    echo,
                    parsed.unknown,
                )
            }
            Route::Completion => {
                let parsed = CompletionRequest::parse(&body, context).map_err(refusal)?;
                let CompletionRequest {
                    common,
                    prompts,
                    echo,
                    add_special_tokens,
                } = parsed.request;
                let prompt = |prompt| match prompt {
                    kvasir_api::Prompt::Tokens(ids) => Prompt::Tokens(ids),
                    kvasir_api::Prompt::Text(text) => Prompt::Text {
                        text,
                        add_special_tokens,
                    },
                };
                (
                    prompts.into_iter().map(prompt).collect(),
                    common,
                    echo,
                    parsed.unknown,
                )
            }
        };
        refuse_server_fields(&common, echo)?;
        self.warn_unknown(unknown);
        let mut streams = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let request = TextRequest {
                truncation: common.truncation,
                priority: common.priority,
                cache_salt: common.cache_salt.clone(),
                ..TextRequest::new(prompt, common.sampling.clone())
            };
            streams.push(self.pipeline.generate(request).await.map_err(refusal)?);
        }
        Ok(Started {
            streams,
            has_logprobs: common.sampling.logprobs.is_some(),
        })
    }

    fn warn_unknown(&self, names: Vec<String>) {
        let mut warned = self.unknown_fields.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            // Rows may name anything; a few hundred different warnings are enough.
            if warned.len() < 256 && warned.insert(name.clone()) {
                tracing::warn!(field = name, "a field that nobody knows is ignored");
            }
        }
    }

    async fn collect(&self, mut stream: TextStream, has_logprobs: bool) -> Result<Answer, AnswerError> {
        let mut sequences = vec![Collected::default(); stream.num_sequences()];
        while let Some(delta) = stream.next().await {
            let delta = delta.map_err(refusal)?;
            if let Some(sequence) = sequences.get_mut(delta.index as usize) {
                sequence.add(delta);
            }
        }
        let usage = TokenUsage {
            prompt_tokens: stream.prompt_token_ids().len() as u64,
            completion_tokens: sequences.iter().map(|sequence| sequence.num_tokens).sum(),
        };
        let choices = sequences.into_iter().map(|sequence| AnswerChoice {
            finish_reason: finish_reason(sequence.finish.as_ref()),
            logprobs: has_logprobs.then(|| {
                sequence
                    .logprobs
                    .iter()
                    .map(|entry| self.logprob(entry))
                    .collect()
            }),
            text: sequence.text,
        });
        Ok(Answer {
            choices: choices.collect(),
            usage,
        })
    }

    fn logprob(&self, entry: &TokenLogprobs) -> Value {
        let token = |id| self.pipeline.text().token_str(id).unwrap_or_default();
        let top = entry.top.iter().map(
            |top| json!({ "token": token(top.token_id), "token_id": top.token_id, "logprob": top.logprob }),
        );
        json!({
            "token": token(entry.token_id),
            "token_id": entry.token_id,
            "logprob": entry.logprob,
            "top_logprobs": top.collect::<Vec<_>>(),
        })
    }
}

#[async_trait]
impl Answerer for Llm {
    async fn answer(&self, request: AnswerRequest) -> Result<Answer, AnswerError> {
        let Started {
            streams,
            has_logprobs,
        } = self.start(request).await?;
        let answers = streams
            .into_iter()
            .map(|stream| self.collect(stream, has_logprobs));
        let answers = futures::future::try_join_all(answers).await?;
        let mut all = Answer {
            choices: Vec::new(),
            usage: TokenUsage::default(),
        };
        for answer in answers {
            all.choices.extend(answer.choices);
            all.usage.prompt_tokens += answer.usage.prompt_tokens;
            all.usage.completion_tokens += answer.usage.completion_tokens;
        }
        Ok(all)
    }

    async fn stream(&self, request: AnswerRequest) -> Result<PieceStream, AnswerError> {
        let Started { mut streams, .. } = self.start(request).await?;
        let stream = streams
            .pop()
            .filter(|stream| streams.is_empty() && stream.num_sequences() == 1);
        let Some(stream) = stream else {
            return Err(AnswerError::invalid("n", "a streamed answer has one sequence"));
        };
        let prompt_tokens = stream.prompt_token_ids().len() as u64;
        let mut completion_tokens = 0;
        let pieces = stream.map_err(refusal).map_ok(move |delta: TextDelta| {
            completion_tokens += delta.token_ids.len() as u64;
            let is_last = delta.finish.is_some();
            Piece {
                text: delta.text,
                finish_reason: is_last.then(|| finish_reason(delta.finish.as_ref())),
                usage: is_last.then_some(TokenUsage {
                    prompt_tokens,
                    completion_tokens,
                }),
            }
        });
        Ok(Box::pin(pieces))
    }
}

struct Started {
    streams: Vec<TextStream>,
    has_logprobs: bool,
}

#[derive(Clone, Default)]
struct Collected {
    text: String,
    num_tokens: u64,
    logprobs: Vec<TokenLogprobs>,
    finish: Option<Finish>,
}

impl Collected {
    fn add(&mut self, delta: TextDelta) {
        self.text.push_str(&delta.text);
        self.num_tokens += delta.token_ids.len() as u64;
        self.logprobs.extend(delta.logprobs);
        self.finish = delta.finish.or(self.finish.take());
    }
}

/// Where sampling defaults come from. A file has replaced the model's own by then.
pub(crate) fn generation_config(model: &ModelConfig) -> GenerationConfig {
    match model.generation_config.value.as_str() {
        "vllm" => GenerationConfig::Vllm,
        _ => GenerationConfig::Auto,
    }
}

fn request(
    route: Route,
    name: &str,
    value: Value,
    params: &GenerationParams,
) -> Result<AnswerRequest, AnswerError> {
    let params =
        serde_json::to_value(params).map_err(|error| AnswerError::invalid("params", error.to_string()))?;
    let Value::Object(mut body) = params else {
        return Err(AnswerError::invalid("params", "parameters must be an object"));
    };
    body.insert(name.to_owned(), value);
    Ok(AnswerRequest { route, body })
}

/// Fields that shape a server's answer and have no place in ours.
fn refuse_server_fields(common: &Common, echo: bool) -> Result<(), AnswerError> {
    let fields = [
        ("stream", common.stream.is_some()),
        ("echo", echo),
        ("prompt_logprobs", common.sampling.prompt_logprobs.is_some()),
        ("return_token_ids", common.return_token_ids),
        ("return_tokens_as_token_ids", common.return_tokens_as_token_ids),
        ("return_prompt_text", common.return_prompt_text),
        ("return_timeline", common.return_timeline),
    ];
    match fields.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((name, _)) => Err(AnswerError::invalid(
            name,
            format!("{name} can only be honoured by a server"),
        )),
    }
}

fn finish_reason(finish: Option<&Finish>) -> String {
    finish.map_or("error", |finish| finish.reason.as_str()).to_owned()
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
fn refusal(error: ApiError) -> AnswerError {
    AnswerError {
        message: error.message().to_owned(),
        status: error.status(),
        param: error.param().map(ToOwned::to_owned),
    }
}
