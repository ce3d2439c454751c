//! Engines with a scripted executor, a gateway in front of them, and helpers to ask it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kvasir_client::types::ModelInfo;
use kvasir_edge::Shutdown;
use kvasir_engine_core::{KvGroup, Policies, SchedulerConfig};
use kvasir_gateway::{Gateway, new_key};
use kvasir_gateway_core::names::TenantName;
use kvasir_service::grpc::Listener;
use kvasir_service::{CacheParts, Diagnostics, Engine, EngineIdentity, EngineSetup, ServiceLimits};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::byte_assets;
use crate::executor::{Control, DEADLINE, FakeExecutor, VOCAB_SIZE};
pub(crate) use crate::http_client::{Client, RequestBuilder};

/// Tokens of a block.
pub(crate) const BLOCK_SIZE: u32 = 4;

/// What tells engines apart.
#[derive(Clone, Debug)]
pub(crate) struct EngineOptions {
    pub(crate) instance: &'static str,
    pub(crate) revision: &'static str,
    /// What it calls the model.
    pub(crate) model: &'static str,
    /// Another one means another model.
    pub(crate) weights: u8,
    pub(crate) max_num_seqs: u32,
    /// One of them is never used.
    pub(crate) num_blocks: u32,
    pub(crate) listen: SocketAddr,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            instance: "a",
            revision: "",
            model: "fake",
            weights: 1,
            max_num_seqs: 64,
            num_blocks: 4097,
            listen: "127.0.0.1:0".parse().unwrap(),
        }
    }
}

/// An engine behind gRPC.
pub(crate) struct TestEngine {
    pub(crate) control: Arc<Control>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl TestEngine {
    pub(crate) async fn start(options: EngineOptions) -> Self {
        let control = Arc::new(Control::default());
        let engine = Arc::new(Engine::start(setup(&control, &options)).unwrap());
        let server = Listener::Tcp(options.listen).bind().await.unwrap();
        let target = server.target();
        let address = target.strip_prefix("http://").unwrap().parse().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (engine, stop) = (Arc::clone(&engine), stop.clone());
            async move { server.serve(&engine, stop).await.unwrap() }
        });
        Self {
            control,
            engine,
            address,
            stop,
            task: Some(task),
        }
    }

    /// Ends all sessions with what runs there, as a process that dies does.
    pub(crate) async fn kill(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
        }
    }

    /// Lets it make a step every few milliseconds from now on, until the task is dropped.
    pub(crate) fn pace(&self) -> AbortOnDropHandle<()> {
        pace(&self.control)
    }
}

/// Steps every few milliseconds, until the task is dropped.
pub(crate) fn pace(control: &Arc<Control>) -> AbortOnDropHandle<()> {
    let control = Arc::clone(control);
    control.hold();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            control.allow(1);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }))
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        // Steps that are held would keep the engine's threads.
        self.control.open();
        self.stop.cancel();
    }
}

pub(crate) fn setup(control: &Arc<Control>, options: &EngineOptions) -> EngineSetup {
    EngineSetup {
        executor: Box::new(FakeExecutor::new(Arc::clone(control), BLOCK_SIZE)),
        scheduler: SchedulerConfig {
            max_num_batched_tokens: options.max_num_seqs.max(512),
            max_num_seqs: options.max_num_seqs,
            max_num_active_seqs: options.max_num_seqs,
            max_model_len: 2048,
            block_size: BLOCK_SIZE,
            num_blocks: options.num_blocks,
            groups: vec![KvGroup::Full],
            enable_prefix_caching: true,
            long_prefill_token_threshold: 0,
            max_num_queued_reqs: 4096,
            max_num_queued_tokens: 1 << 20,
        },
        policies: Policies::serve(),
        model: ModelInfo {
            model: options.model.to_owned(),
            vocab_size: VOCAB_SIZE,
            weights_digest: format!("{:02x}", options.weights).repeat(32),
            revision: options.revision.to_owned(),
            ..ModelInfo::default()
        },
        assets: assets(options.weights),
        cache: CacheParts {
            weights_digest: vec![options.weights; 32],
            weights_version: 0,
            kv_dtype: "f32".to_owned(),
        },
        identity: EngineIdentity {
            instance_id: options.instance.to_owned(),
            ..EngineIdentity::default()
        },
        kv_events: None,
        limits: ServiceLimits {
            output_buffer: 1 << 17,
            ..ServiceLimits::default()
        },
        diagnostics: Diagnostics::default(),
    }
}

/// Tokens are bytes. Each model greets in another way, so that templates can be told apart.
fn assets(model: u8) -> kvasir_client::TextAssetFiles {
    let greeting = "!".repeat(model.into());
    byte_assets::files(&format!(
        "{{% for m in messages %}}{greeting}{{{{ m.content }}}}{{% endfor %}}"
    ))
}

/// What the gateway's file says beside where engines and keys are.
#[derive(Clone, Debug)]
pub(crate) struct GatewayOptions {
    /// Each one's rules, as YAML in one line.
    pub(crate) tenants: Vec<(&'static str, String)>,
    /// More of the file.
    pub(crate) more: String,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            tenants: vec![
                ("a", "models: \"*\"".to_owned()),
                ("b", "models: \"*\"".to_owned()),
            ],
            more: String::new(),
        }
    }
}

/// A running gateway with a key for each tenant.
pub(crate) struct TestGateway {
    pub(crate) folder: TempDir,
    pub(crate) url: String,
    pub(crate) operations: String,
    pub(crate) keys: BTreeMap<&'static str, String>,
    pub(crate) client: Client,
    options: GatewayOptions,
    engines: Vec<SocketAddr>,
    stop: CancellationToken,
    task: Option<JoinHandle<Shutdown>>,
}

impl TestGateway {
    pub(crate) async fn start(engines: &[SocketAddr], options: GatewayOptions) -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("salt"), [7; 32]).unwrap();
        let (mut keys, mut records) = (BTreeMap::new(), Vec::new());
        for (tenant, _) in &options.tenants {
            let key = new_key(TenantName::new(tenant).unwrap(), None);
            keys.insert(*tenant, key.text().to_owned());
            records.push(key.key_file());
        }
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("keys.yaml"), records.join("\n")).unwrap();
        let mut gateway = Self {
            url: String::new(),
            operations: String::new(),
            keys,
            client: Client::new(),
            options,
            engines: engines.to_vec(),
            stop: CancellationToken::new(),
            task: None,
            folder,
        };
        gateway.write_config(&gateway.options.more.clone());
        let running = Gateway::start(&gateway.file()).await.unwrap();
        gateway.url = running.url();
        gateway.operations = format!("http://{}", running.operations_address());
        let stop = gateway.stop.clone();
        gateway.task = Some(tokio::spawn(async move { running.serve(stop).await.unwrap() }));
        gateway
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("gateway.yaml")
    }

    /// Writes the file anew, with something else at its end.
    pub(crate) fn write_config(&self, more: &str) {
        let folder = self.folder.path().display();
        let tenants = self.options.tenants.iter();
        let tenants: Vec<String> = tenants
            .map(|(name, rules)| format!("  - {{name: {name}, {rules}}}"))
            .collect();
        let engines = self.engines.iter();
        let engines: Vec<String> = engines
            .map(|engine| format!("{{address: \"{engine}\"}}"))
            .collect();
        // Where to connect differs between the two, as it must.
        let text = format!(
            "listen: 127.0.0.1:0\noperationsListen: 127.0.0.2:0\nauditFile: {folder}/audit\n\
             auth: {{apiKeys: {{files: [{folder}/keys.yaml]}}}}\ncacheSalt: {{secretFile: {folder}/salt}}\n\
             engines: {{static: [{}]}}\ntenants:\n{}\n{more}\n",
            engines.join(", "),
            tenants.join("\n"),
        );
        let new = self.folder.path().join("gateway.yaml.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    /// Waits until so many engines can be used.
    pub(crate) async fn with_engines(self, count: usize) -> Self {
        let line = format!("kvasir_gateway_engines{{state=\"usable\"}} {count}.0");
        eventually(&format!("{count} usable engines"), async || {
            self.metrics().await.lines().any(|other| other == line)
        })
        .await;
        self
    }

    pub(crate) async fn metrics(&self) -> String {
        let answer = self
            .client
            .get(format!("{}/metrics", self.operations))
            .send()
            .await;
        answer.unwrap().text().await.unwrap()
    }

    /// The value of a metric, 0 if it isn't there.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let text = self.metrics().await;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    pub(crate) fn request(&self, tenant: &str, path: &str, body: &Value) -> RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.url)).json(body);
        request.bearer_auth(&self.keys[tenant])
    }

    /// Asks for a completion and reads the whole answer.
    pub(crate) async fn complete(&self, tenant: &str, body: Value) -> Answer {
        Answer::of(self.request(tenant, "/v1/completions", &body)).await
    }

    /// Begins a streamed completion.
    pub(crate) async fn stream(&self, tenant: &str, mut body: Value) -> Events {
        body["stream"] = json!(true);
        let response = self
            .request(tenant, "/v1/completions", &body)
            .send()
            .await
            .unwrap();
        let status = response.status();
        if status != 200 {
            let text = response.text().await.unwrap();
            panic!("{status}: {text}");
        }
        Events {
            bytes: Box::pin(response.bytes()),
            text: String::new(),
        }
    }

    /// Lines of the audit log so far.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("audit")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The line about a request.
    pub(crate) async fn audited(&self, request_id: &str) -> Value {
        let mut found = None;
        eventually("the line of the audit log", async || {
            found = self
                .audit()
                .into_iter()
                .find(|line| line["request_id"] == request_id);
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// Whether its probe says that requests may be sent to it.
    pub(crate) async fn is_ready(&self) -> bool {
        let url = format!("{}/ready", self.operations);
        Answer::of(self.client.get(url)).await.status == 200
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits for the end after `stop`.
    pub(crate) async fn ended(&mut self) -> Shutdown {
        let task = self.task.take().unwrap();
        tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap()
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// A completion of so many tokens, which no end of sequence cuts.
pub(crate) fn body(prompt: &str, max_tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0})
}

/// An answer that was read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) async fn of(request: RequestBuilder) -> Self {
        let response = tokio::time::timeout(DEADLINE, request.send())
            .await
            .unwrap()
            .unwrap();
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: response.text().await.unwrap(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn cached_tokens(&self) -> u64 {
        let usage = &self.json()["usage"];
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    }
}

/// The events of a streamed answer.
pub(crate) struct Events {
    bytes: std::pin::Pin<Box<dyn futures::Stream<Item = bytes::Bytes> + Send>>,
    text: String,
}

impl Events {
    /// Waits for the first event.
    pub(crate) async fn begun(mut self) -> Self {
        while !self.text.contains("\n\n") {
            let more = tokio::time::timeout(DEADLINE, self.bytes.next()).await.unwrap();
            self.text
                .push_str(&String::from_utf8_lossy(&more.expect("the stream ended")));
        }
        self
    }

    /// Reads to the end: all data, in order.
    pub(crate) async fn rest(mut self) -> Vec<String> {
        while let Some(more) = tokio::time::timeout(DEADLINE, self.bytes.next()).await.unwrap() {
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
        let frames = self.text.split("\n\n");
        frames
            .filter_map(|frame| frame.strip_prefix("data: ").map(str::to_owned))
            .collect()
    }
}

/// Polls with a generous deadline.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(DEADLINE, waiting).await.is_ok(),
        "waited for {what}"
    );
}
