//! An engine over a fake executor, and a client of it of each kind.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test file uses its part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

pub mod executor;
pub mod hostile;
pub mod raw;

use std::sync::Arc;

use futures::StreamExt;
use kvasir_client::types::{
    Error, ErrorCode, Finish, FinishReason, GenerateRequest, LoadReport, ModelInfo, SamplingParams,
    SequenceOutput, StopConditions,
};
use kvasir_client::{EngineClient, GrpcClient, GrpcClientOptions, OutputStream, TextAssetFiles};
use kvasir_engine_core::{KvGroup, Policies, SchedulerConfig};
use kvasir_service::grpc::Listener;
use kvasir_service::{CacheParts, Diagnostics, Engine, EngineIdentity, EngineSetup, ServiceLimits};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use executor::{Control, DEADLINE, FakeExecutor, VOCAB_SIZE, expected};

/// How the client reaches the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Local,
    Tcp,
    Unix,
}

#[derive(Clone)]
pub struct Options {
    pub scheduler: SchedulerConfig,
    pub limits: ServiceLimits,
    pub max_in_flight: u32,
    pub diagnostics: Diagnostics,
    pub assets: TextAssetFiles,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler: SchedulerConfig {
                max_num_batched_tokens: 256,
                max_num_seqs: 64,
                max_num_active_seqs: 64,
                max_model_len: 100_000,
                block_size: 4,
                num_blocks: 4097,
                groups: vec![KvGroup::Full],
                enable_prefix_caching: true,
                long_prefill_token_threshold: 0,
                max_num_queued_reqs: 4096,
                max_num_queued_tokens: 1 << 20,
            },
            limits: ServiceLimits {
                output_buffer: 1 << 17,
                ..ServiceLimits::default()
            },
            max_in_flight: 1,
            diagnostics: Diagnostics::default(),
            assets: TextAssetFiles::from([("tokenizer.json".to_owned(), b"{}".to_vec())]),
        }
    }
}

pub struct Fixture {
    pub control: Arc<Control>,
    pub engine: Arc<Engine>,
    pub client: Arc<dyn EngineClient>,
    pub server: Option<Server>,
    pub options: Options,
}

/// A running gRPC server.
pub struct Server {
    pub target: String,
    pub stop: CancellationToken,
    pub task: JoinHandle<()>,
    _folder: Option<TempDir>,
}

impl Fixture {
    pub async fn new(kind: Kind) -> Self {
        Self::with(kind, Options::default()).await
    }

    pub async fn with(kind: Kind, options: Options) -> Self {
        let control = Arc::new(Control::default());
        let engine = Arc::new(Engine::start(setup(&control, &options)).unwrap());
        let server = serve(kind, &engine).await;
        let client: Arc<dyn EngineClient> = match &server {
            None => engine.client(),
            Some(server) => Arc::new(connect(&server.target, &options).await),
        };
        Self {
            control,
            engine,
            client,
            server,
            options,
        }
    }

    pub async fn load(&self) -> LoadReport {
        self.client.load().await.unwrap()
    }

    /// Starts a request that must be admitted.
    pub async fn start(&self, request: GenerateRequest) -> OutputStream {
        self.client.generate(request).await.unwrap()
    }

    /// Sends a request in process while a step is held: when this returns the engine has it, and will take it after that step.
    pub async fn send(&self, request: GenerateRequest) -> JoinHandle<Result<OutputStream, Error>> {
        let client = self.engine.client();
        let mut call = Box::pin(async move { client.generate(request).await });
        assert!(futures::poll!(&mut call).is_pending(), "no step was held");
        tokio::spawn(call)
    }

    /// Awaits `future` while steps are held, allowing one after the other: the engine answers between steps.
    pub async fn step_until<T>(&self, future: impl Future<Output = T>) -> T {
        let steps = async {
            loop {
                self.control.allow(1);
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        let both = async {
            tokio::select! {
                value = future => value,
                () = steps => unreachable!(),
            }
        };
        tokio::time::timeout(DEADLINE, both).await.unwrap()
    }

    /// Returns when everything this client sent before has been read by the engine's side, also while a step is held: the answer to a request that
    /// is refused at once comes after it.
    pub async fn sync(&self) {
        let refused = self
            .client
            .generate(GenerateRequest {
                prompt_token_ids: vec![],
                ..request("sync", &[1], 1)
            })
            .await;
        assert_eq!(code(refused), ErrorCode::InvalidRequest);
    }

    /// Polls the load report until it fulfils a condition.
    pub async fn load_until(&self, what: &str, holds: impl Fn(&LoadReport) -> bool) -> LoadReport {
        let client = self.engine.client();
        let poll = async {
            loop {
                let load = client.load().await.unwrap();
                if holds(&load) {
                    return load;
                }
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(DEADLINE, poll)
            .await
            .unwrap_or_else(|_| panic!("never saw: {what}"))
    }

    /// All blocks are free, nothing runs or waits, and the executor has forgotten every sequence.
    pub async fn assert_idle(&self) {
        let usable = self.options.scheduler.num_blocks - 1;
        let load = self
            .load_until("an idle engine with all blocks free", |load| {
                load.num_running + load.num_waiting == 0 && load.num_free_blocks == usable
            })
            .await;
        assert_eq!(load.kv_cache_usage, 0.0);
        assert_eq!(load.num_queued_tokens, 0);
        assert_eq!(self.control.known(), 0);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A held step would keep the engine's thread.
        self.control.open();
        if let Some(server) = &self.server {
            server.stop.cancel();
        }
    }
}

pub fn setup(control: &Arc<Control>, options: &Options) -> EngineSetup {
    EngineSetup {
        executor: Box::new(FakeExecutor::new(
            Arc::clone(control),
            options.scheduler.block_size,
        )),
        scheduler: options.scheduler.clone(),
        policies: Policies {
            max_in_flight: options.max_in_flight,
            ..Policies::serve()
        },
        model: ModelInfo {
            model: "fake".to_owned(),
            vocab_size: VOCAB_SIZE,
            ..ModelInfo::default()
        },
        assets: options.assets.clone(),
        cache: CacheParts {
            weights_digest: vec![1; 32],
            weights_version: 0,
            kv_dtype: "f32".to_owned(),
        },
        identity: EngineIdentity {
            instance_id: "test".to_owned(),
            ..EngineIdentity::default()
        },
        kv_events: None,
        limits: options.limits,
        diagnostics: options.diagnostics.clone(),
    }
}

pub async fn serve(kind: Kind, engine: &Arc<Engine>) -> Option<Server> {
    let folder = (kind == Kind::Unix).then(|| TempDir::new().unwrap());
    let listener = match (kind, &folder) {
        (Kind::Local, _) => return None,
        (_, Some(folder)) => Listener::Unix(folder.path().join("engine.sock")),
        (_, None) => Listener::Tcp("127.0.0.1:0".parse().unwrap()),
    };
    let server = listener.bind().await.unwrap();
    let (target, stop, engine) = (server.target(), CancellationToken::new(), Arc::clone(engine));
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { server.serve(&engine, stop).await.unwrap() }
    });
    Some(Server {
        target,
        stop,
        task,
        _folder: folder,
    })
}

pub async fn connect(target: &str, options: &Options) -> GrpcClient {
    let client_options = GrpcClientOptions {
        output_buffer: options.limits.output_buffer,
        ..GrpcClientOptions::default()
    };
    GrpcClient::connect_with(target, client_options).await.unwrap()
}

/// A plain request: no stop ids, defaults elsewhere.
pub fn request(id: &str, prompt: &[u32], max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        request_id: id.to_owned(),
        prompt_token_ids: prompt.to_vec(),
        n: 1,
        sampling: Some(SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            seed: 7,
            ..SamplingParams::default()
        }),
        stop: Some(StopConditions {
            max_tokens,
            ..StopConditions::default()
        }),
        ..GenerateRequest::default()
    }
}

pub fn prompt(len: usize, salt: u32) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 37 + salt * 101 + 1) % VOCAB_SIZE)
        .collect()
}

pub async fn collect(stream: OutputStream) -> Vec<SequenceOutput> {
    tokio::time::timeout(DEADLINE, stream.collect())
        .await
        .expect("the stream never ended")
}

pub async fn next(stream: &mut OutputStream) -> SequenceOutput {
    tokio::time::timeout(DEADLINE, stream.next())
        .await
        .expect("no output came")
        .expect("the stream ended")
}

pub fn tokens_of(outputs: &[SequenceOutput], index: u32) -> Vec<u32> {
    outputs
        .iter()
        .filter(|output| output.index == index)
        .flat_map(|output| output.token_ids.clone())
        .collect()
}

/// The one finish of a sequence; nothing follows it.
pub fn finish_of(outputs: &[SequenceOutput], index: u32) -> Finish {
    let of_index: Vec<_> = outputs.iter().filter(|output| output.index == index).collect();
    let (last, before) = of_index.split_last().expect("the sequence sent nothing");
    assert!(
        before.iter().all(|output| output.finish.is_none()),
        "something follows a finish"
    );
    last.finish.clone().expect("the sequence never finished")
}

pub fn reason_of(outputs: &[SequenceOutput], index: u32) -> FinishReason {
    finish_of(outputs, index).reason()
}

pub fn error_of(outputs: &[SequenceOutput], index: u32) -> Error {
    let finish = finish_of(outputs, index);
    assert_eq!(finish.reason(), FinishReason::Error);
    finish.error.expect("an error finish has an error")
}

/// The code of a refusal.
pub fn code(refused: Result<OutputStream, Error>) -> ErrorCode {
    match refused {
        Ok(_) => panic!("the request was admitted"),
        Err(error) => error.code(),
    }
}
