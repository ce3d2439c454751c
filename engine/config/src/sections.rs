//! The options themselves. Names and defaults are vLLM's wherever the option is.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;

use crate::address::{ListenAddress, LocalAddress};
use crate::bytes::{ByteCount, Count};
use crate::choice::{
    Dtype, Fraction, KvCacheDtype, LoadFormat, LogLevel, SchedulerCompat, SchedulingPolicy, Seconds,
};
use crate::error::ConfigError;
use crate::kv_events::KvEvents;
use crate::options::section;
use crate::secret::Secret;

/// gRPC's customary port, on loopback.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 50051);

/// Steps of small machines take longer than any shorter time.
const MIN_STALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// Shorter ones would send more comments than tokens.
const MIN_SSE_KEEP_ALIVE: std::time::Duration = std::time::Duration::from_secs(1);

section! {
    /// Which model, and how its text is made.
    ModelConfig, "Model" {
        "model" => model: Option<String> = None, "MODEL",
            "A GGUF file, a folder with safetensors, a Hugging Face repository as org/name[@revision][:quant or :file.gguf], or the address of \
             a GGUF file as https://host/file.gguf#sha256=HEX [default: SmolLM2-135M-Instruct]";
        "served-model-name" => served_model_name: Vec<String> = Vec::new(), "NAME",
            "Name that clients ask for; repeatable, the first one is in answers [default: the model's name]";
        "model-cache" => model_cache: Option<PathBuf> = None, "DIR",
            "Folder that fetched models are kept in [default: KVASIR_CACHE, else the user's cache folder]";
        "dtype" => dtype: Dtype = Dtype::Auto, "DTYPE",
            "Type that weights are computed in; auto is the file's own";
        "load-format" => load_format: LoadFormat = LoadFormat::Auto, "FORMAT",
            "Form that the weights' files must have; of a repository with both it chooses";
        "quantization" => quantization: Option<String> = None, "NAME",
            "Quantization that the weights must have, for example Q4_K_M; of a repository with several GGUF files it chooses";
        "model-sha256" => model_sha256: Option<String> = None, "HEX",
            "SHA-256 that the model must have, as `kvasir models digest` prints it: of the file, or of the list of a folder's files with theirs";
        "max-model-len" => max_model_len: Option<NonZeroU32> = None, "TOKENS",
            "Longest prompt plus output, for example 4096 or 8k [default: the model's]";
        "seed" => seed: Option<u64> = None, "SEED",
            "Seed for requests that bring none [default: a random one each]";
        "threads" => threads: Option<NonZeroU32> = None, "COUNT",
            "Threads that compute [default: the CPU quota of the cgroup]";
        "chat-template" => chat_template: Option<PathBuf> = None, "FILE",
            "Jinja file that replaces the model's chat template";
        "trust-request-chat-template" => trust_request_chat_template: bool = false, "",
            "Let requests bring their own chat template";
        "generation-config" => generation_config: String = "auto".to_owned(), "SOURCE",
            "Sampling defaults: auto (the model's generation_config.json), vllm (neutral), or a file or its folder";
        "max-logprobs" => max_logprobs: u32 = 20, "COUNT",
            "Most log probabilities per token that a request may ask for";
    }
}

section! {
    /// The scheduler and the KV cache.
    EngineConfig, "Scheduler and KV cache" {
        "max-num-batched-tokens" => max_num_batched_tokens: NonZeroU32 = nonzero(2048), "TOKENS",
            "Token budget of a step: decodes first, then chunks of prompts";
        "max-num-seqs" => max_num_seqs: NonZeroU32 = nonzero(128), "COUNT",
            "Most sequences in a step";
        "max-num-active-seqs" => max_num_active_seqs: Option<NonZeroU32> = None, "COUNT",
            "Most sequences that hold KV blocks [default: max-num-seqs]";
        "long-prefill-token-threshold" => long_prefill_token_threshold: u32 = 0, "TOKENS",
            "Largest chunk of one prompt in a step; 0 is no limit";
        "scheduling-policy" => scheduling_policy: SchedulingPolicy = SchedulingPolicy::Fcfs, "POLICY",
            "Order of waiting requests: first come, first served, or by their priority field";
        "scheduler-compat" => scheduler_compat: SchedulerCompat = SchedulerCompat::Kvasir, "RULES",
            "kvasir, or vllm: a request that doesn't fit yet holds up all behind it, as in vLLM";
        "max-num-queued-reqs" => max_num_queued_reqs: u32 = 1024, "COUNT",
            "Waiting requests; more get 503";
        "max-num-queued-tokens" => max_num_queued_tokens: Count = Count(16 << 20), "TOKENS",
            "Prompt tokens of all waiting requests; more get 503";
        "block-size" => block_size: NonZeroU32 = nonzero(16), "TOKENS",
            "Tokens in a KV block";
        "kv-cache-memory-bytes" => kv_cache_memory_bytes: Option<ByteCount> = None, "SIZE",
            "Memory for keys and values, for example 2GiB [default: from the cgroup's memory limit]";
        "gpu-memory-utilization" ["memory-utilization"] => memory_utilization: Option<Fraction> = None, "FRACTION",
            "Part of the memory limit that weights, keys and values may take together, for example 0.8, instead of kv-cache-memory-bytes";
        "num-gpu-blocks-override" ["num-blocks"] => num_blocks: Option<NonZeroU32> = None, "COUNT",
            "KV blocks, instead of kv-cache-memory-bytes";
        "kv-cache-dtype" => kv_cache_dtype: KvCacheDtype = KvCacheDtype::Auto, "DTYPE",
            "Type that keys and values are stored in";
        "enable-prefix-caching" => enable_prefix_caching: bool = true, "",
            "Share the KV blocks of equal prompt beginnings";
        "async-scheduling" => async_scheduling: bool = false, "",
            "Plan a step while the one before runs";
        "stall-timeout" => stall_timeout: Seconds = seconds(300), "SECONDS",
            "Longest time without progress before the requests of a step fail; the limit is lower where steps usually take less, and four \
             times what they take where that is more, up to 300 s";
        "record-inputs" => record_inputs: u32 = 0, "COUNT",
            "Last inputs of the scheduler to keep for `kvasir replay`; 0 keeps none";
        "dump-dir" => dump_dir: Option<PathBuf> = None, "DIR",
            "Folder for dumps of the engine's state, on stalls and on SIGUSR1; they hold token ids of prompts";
        "kv-events-config" => kv_events_config: KvEvents = KvEvents(None), "JSON",
            "Publish KV events over ZeroMQ in vLLM's format, tokens of all prompts included: JSON with enable_kv_cache_events, \
             publisher (zmq or null), endpoint (on loopback unless given), bind (listen on it or connect to it), replay_endpoint, \
             buffer_steps, hwm, max_queue_size, topic and int_block_hashes, for example \
             {\"enable_kv_cache_events\": true, \"replay_endpoint\": \"tcp://127.0.0.1:5558\"}";
        "instance-id" => instance_id: Option<String> = None, "ID",
            "Name of this process for readers of its cache and load news, for example its pod's uid [default: a random one]";
        "revision-name" => revision_name: Option<String> = None, "NAME",
            "Name of the revision that gateways divide requests by [default: none]";
    }
}

section! {
    /// The HTTP server.
    HttpConfig, "Server" {
        "host" => host: String = "127.0.0.1".to_owned(), "HOST",
            "Address to listen on; others than loopback need a key";
        "port" => port: u16 = 8000, "PORT",
            "Port to listen on; 0 takes a free one";
        "uds" => uds: Option<PathBuf> = None, "PATH",
            "Unix socket to listen on, instead of host and port";
        "api-key" => api_key: Vec<Secret> = Vec::new(), "KEY",
            "Key that clients must send as `Authorization: Bearer KEY`; repeatable";
        "api-key-file" => api_key_file: Option<PathBuf> = None, "FILE",
            "File with one key per line";
        "admin-api-key" => admin_api_key: Vec<Secret> = Vec::new(), "KEY",
            "Key for the admin routes, which API keys don't open; it opens nothing else; repeatable";
        "admin-api-key-file" => admin_api_key_file: Option<PathBuf> = None, "FILE",
            "File with one admin key per line";
        "allow-unauthenticated" => allow_unauthenticated: bool = false, "",
            "Serve the network without a key; whoever reaches the port can use the model";
        "engine" => engine: Option<LocalAddress> = None, "URL",
            "Be the edge of a running engine (http://127.0.0.1:PORT or unix:PATH) and load no model";
        "strict" => strict: bool = false, "",
            "Refuse request fields that nobody knows, instead of naming them in a warning header";
        "enable-prompt-tokens-details" => enable_prompt_tokens_details: bool = false, "",
            "Report cached prompt tokens in usage";
        "enable-force-include-usage" => enable_force_include_usage: bool = false, "",
            "End each stream with its usage, whether asked for or not";
        "enable-request-id-headers" => enable_request_id_headers: bool = false, "",
            "Echo X-Request-Id";
        "enable-debug-dump" => enable_debug_dump: bool = false, "",
            "Serve GET /debug/dump, the engine's state with the token ids of everybody's prompts, to admin keys; without \
             any keys to everybody on this machine";
        "otlp-traces-endpoint" => otlp_traces_endpoint: Option<String> = None, "URL",
            "OpenTelemetry collector that takes OTLP over gRPC, for example http://127.0.0.1:4317: a span for each request goes there, in the \
             client's trace if it sends traceparent [default: none]";
        "request-timeout" => request_timeout: Option<Seconds> = None, "SECONDS",
            "Longest time from reading a request to the end of its answer, waiting included; then it ends with 504 [default: no limit]";
        "sse-keep-alive-interval" => sse_keep_alive_interval: Seconds = seconds(15), "SECONDS",
            "Comment line after this much silence in a stream, at least 1; 0 is never";
    }
}

section! {
    /// The gRPC server of an engine.
    GrpcConfig, "Server" {
        "listen" => listen: ListenAddress = ListenAddress::Tcp(DEFAULT_LISTEN), "ADDRESS",
            "Address to serve gRPC on: 127.0.0.1:PORT or unix:PATH; others need --tls-cert and what belongs to it";
    }
}

section! {
    /// The process: how it ends, and what it says about itself.
    ProcessConfig, "Process" {
        "shutdown-timeout" => shutdown_timeout: Seconds = seconds(30), "SECONDS",
            "How long running requests may go on after SIGTERM, SIGINT or the end of the terminal (SIGHUP)";
        "log-level" => log_level: LogLevel = LogLevel::Info, "LEVEL",
            "Least severe message";
        "json" ["json-logs"] => json: bool = false, "",
            "One JSON object per log line";
    }
}

impl EngineConfig {
    /// Lets a default follow the value that somebody chose for its partner: a small budget lowers the number of sequences, and many
    /// sequences raise the budget.
    pub fn settle(&mut self) {
        let (budget, seqs) = (self.max_num_batched_tokens.value, self.max_num_seqs.value);
        if budget >= seqs {
            return;
        }
        match (
            self.max_num_batched_tokens.source.is_explicit(),
            self.max_num_seqs.source.is_explicit(),
        ) {
            (true, false) => self.max_num_seqs.derive(budget, "max-num-batched-tokens"),
            (false, true) => self.max_num_batched_tokens.derive(seqs, "max-num-seqs"),
            _ => {}
        }
    }

    /// Checks the rules that bind several options.
    ///
    /// # Errors
    /// The rule that is broken, with the values and the way out.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let budget = self.max_num_batched_tokens.value;
        let seqs = self.max_num_seqs.value;
        if budget < seqs {
            return Err(ConfigError::Conflict(format!(
                "max-num-batched-tokens ({budget}) must be at least max-num-seqs ({seqs}), so that every sequence can \
                 decode in each step: raise the first or lower the second"
            )));
        }
        if let Some(active) = self.max_num_active_seqs.value.filter(|active| *active > seqs) {
            return Err(ConfigError::Conflict(format!(
                "max-num-active-seqs ({active}) must be at most max-num-seqs ({seqs})"
            )));
        }
        let queue = [
            ("max-num-queued-reqs", u64::from(self.max_num_queued_reqs.value)),
            ("max-num-queued-tokens", self.max_num_queued_tokens.value.0),
        ];
        if let Some((key, _)) = queue.into_iter().find(|(_, limit)| *limit == 0) {
            return Err(ConfigError::Conflict(format!(
                "{key} is 0; it must be at least 1, because every request waits for the next step"
            )));
        }
        let stall = self.stall_timeout.value.0;
        if stall < MIN_STALL_TIMEOUT {
            return Err(ConfigError::Conflict(format!(
                "stall-timeout ({} s) must be at least {} s, or every step would count as a stall",
                stall.as_secs_f64(),
                MIN_STALL_TIMEOUT.as_secs()
            )));
        }
        let sizes = [
            ("num-gpu-blocks-override", self.num_blocks.source.is_explicit()),
            (
                "kv-cache-memory-bytes",
                self.kv_cache_memory_bytes.source.is_explicit(),
            ),
            (
                "gpu-memory-utilization",
                self.memory_utilization.source.is_explicit(),
            ),
        ];
        let given: Vec<&str> = sizes
            .iter()
            .filter(|(_, is_given)| *is_given)
            .map(|(key, _)| *key)
            .collect();
        match given.as_slice() {
            [one, other, ..] => Err(ConfigError::Conflict(format!(
                "{one} and {other} both set the size of the KV cache: give one"
            ))),
            _ => Ok(()),
        }
    }
}

impl HttpConfig {
    /// Checks what depends on values alone; who may reach which port is for [`HttpConfig::bind`] and [`HttpConfig::check_admin`].
    ///
    /// # Errors
    /// The value that can't work, with its limit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self
            .request_timeout
            .value
            .is_some_and(|timeout| timeout.0.is_zero())
        {
            return Err(ConfigError::Conflict(
                "request-timeout is 0, in which nothing can be answered: give a time, or leave it out for no limit".to_owned(),
            ));
        }
        let keep_alive = self.sse_keep_alive_interval.value.0;
        if keep_alive.is_zero() || keep_alive >= MIN_SSE_KEEP_ALIVE {
            return Ok(());
        }
        Err(ConfigError::Conflict(format!(
            "sse-keep-alive-interval ({} s) must be at least {} s, or 0 for no comments",
            keep_alive.as_secs_f64(),
            MIN_SSE_KEEP_ALIVE.as_secs()
        )))
    }
}

const fn nonzero(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(number) => number,
        None => NonZeroU32::MIN,
    }
}

const fn seconds(number: u64) -> Seconds {
    Seconds(std::time::Duration::from_secs(number))
}
