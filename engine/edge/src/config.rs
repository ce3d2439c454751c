//! What an edge is told at start.

use std::time::Duration;

use kvasir_api::Limits;

use crate::keys::{ApiKey, Keys};
use crate::spans::Spans;

/// Configuration of an [`crate::Edge`].
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the switches are independent")]
pub struct EdgeConfig {
    /// Names that requests may put into `model`; the first one is shown in answers. Empty means the engine's name.
    pub served_model_names: Vec<String>,
    /// Keys that open the inference and operations routes. Empty means that these need no key.
    pub api_keys: Vec<ApiKey>,
    /// Keys that open the admin routes, and nothing else. Without one, admin routes are absent as soon as there is an API key.
    pub admin_api_keys: Vec<ApiKey>,
    /// Refuses fields that nobody knows instead of naming them in a warning header.
    pub strict: bool,
    /// Longest request body, in bytes.
    pub max_body_bytes: usize,
    /// Most bytes of all request bodies that are read or whose answers haven't begun, beyond a little that each one may have.
    pub max_bodies_bytes: usize,
    /// Most stop strings of one request.
    pub max_stop_strings: usize,
    /// Most prompts of one completion request.
    pub max_prompts: usize,
    /// Most sequences of one request: prompts x n.
    pub max_sequences_per_request: usize,
    /// Most bytes of log probabilities that one answer may need.
    pub max_logprob_bytes: u64,
    /// Shows `prompt_tokens_details` in usage.
    pub enable_prompt_tokens_details: bool,
    /// Sends `X-Request-Id` with every answer.
    pub enable_request_id_headers: bool,
    /// Streams carry usage on every chunk and at the end, whether asked or not.
    pub enable_force_include_usage: bool,
    /// Time between comment lines on a silent stream; none means no such lines.
    pub sse_keep_alive: Option<Duration>,
    /// Where sampling defaults come from.
    pub generation_config: GenerationConfig,
    /// Seeds of requests that bring none follow from this one; none means random ones.
    pub seed: Option<u64>,
    /// Honours `chat_template` in requests.
    pub trust_request_chat_template: bool,
    /// Longest time from a connection's start, or its last answer, to complete request headers.
    pub header_read_timeout: Duration,
    /// Longest time to receive a request body.
    pub body_read_timeout: Duration,
    /// Longest time in which a client may read nothing of an answer that waits for it.
    pub write_timeout: Duration,
    /// Longest time one request may generate; none means no limit.
    pub request_timeout: Option<Duration>,
    /// How long streams may go on after the server was told to stop.
    pub shutdown_timeout: Duration,
    /// Serves the admin route `/debug/dump`, which shows prompts of everybody.
    pub enable_debug_dump: bool,
    /// `/health` fails once no step completed for this long although there is work, if the engine has no watchdog that knows better.
    pub max_stall: Duration,
    /// Most connections at a time; more wait in the listener's queue.
    pub max_connections: usize,
    /// Records a span for each request.
    pub spans: Option<Spans>,
    /// The resolved configuration of the whole process, served at the operations route `/server_info`.
    pub resolved_config: serde_json::Value,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            served_model_names: Vec::new(),
            api_keys: Vec::new(),
            admin_api_keys: Vec::new(),
            strict: false,
            // A context of a million tokens is about 4 MB of text; token ids need twice that.
            max_body_bytes: 16 << 20,
            max_bodies_bytes: 256 << 20,
            max_stop_strings: 4,
            max_prompts: 1024,
            max_sequences_per_request: 1024,
            max_logprob_bytes: 256 << 20,
            enable_prompt_tokens_details: false,
            enable_request_id_headers: false,
            enable_force_include_usage: false,
            sse_keep_alive: None,
            generation_config: GenerationConfig::Auto,
            seed: None,
            trust_request_chat_template: false,
            // Longer than the idle time of common client pools, so that the client closes first.
            header_read_timeout: Duration::from_secs(75),
            body_read_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_mins(1),
            request_timeout: None,
            shutdown_timeout: Duration::from_secs(30),
            enable_debug_dump: false,
            max_stall: Duration::from_mins(1),
            max_connections: 4096,
            spans: None,
            resolved_config: serde_json::Value::Null,
        }
    }
}

impl EdgeConfig {
    /// Who is let in.
    pub(crate) fn keys(&self) -> Keys {
        Keys {
            clients: self.api_keys.clone(),
            admins: self.admin_api_keys.clone(),
        }
    }

    /// The limits of requests as far as the server sets them; those of the model are filled in by a pipeline.
    pub fn limits(&self) -> Limits {
        let mut limits = Limits::new(0, 0, 0);
        limits.max_prompts = self.max_prompts;
        limits.max_sequences = self.max_sequences_per_request;
        limits.max_stop_strings = self.max_stop_strings;
        limits.max_logprob_bytes = self.max_logprob_bytes;
        limits.trust_request_chat_template = self.trust_request_chat_template;
        limits
    }
}

/// Where sampling defaults come from (vLLM's `--generation-config`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GenerationConfig {
    /// The model's `generation_config.json`, else OpenAI's defaults.
    #[default]
    Auto,
    /// OpenAI's defaults, whatever the model says.
    Vllm,
}
