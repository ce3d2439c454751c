//! The figures at `/metrics`: every vLLM V1 name that applies, with its exact labels and buckets.
//!
//! What the engine counts (queues, KV usage, steps) comes from its load report at the moment of the scrape. What a
//! request experiences is observed here, as vLLM's front end does: time to first token and between tokens by this
//! process's clock, queue, prefill and decode time from the engine's time stamps.

mod load;

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvasir_api::FinishReason;
use kvasir_client::types::{LoadReport, ModelInfo, Timeline};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use load::LoadCollector;

/// Content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const TTFT_SECONDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const TOKEN_SECONDS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_SECONDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const N: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
const PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
const HTTP_SECONDS: [f64; 3] = [0.1, 0.5, 1.0];

type RequestLabels = [(&'static str, String); 3];
type DurationLabels = [(&'static str, String); 2];
type Label = [(&'static str, &'static str); 1];

/// All figures of an edge.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    load: Arc<Mutex<LoadReport>>,
    tokens: TokenCounters,
    request_success: Family<Label, Counter>,
    sizes: Sizes,
    times: Times,
    http_requests: Family<RequestLabels, Counter>,
    http_duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
}

/// Tokens in and out.
#[derive(Debug)]
struct TokenCounters {
    prompt: Counter,
    prompt_by_source: Family<Label, Counter>,
    cached: Counter,
    cached_by_source: Family<Label, Counter>,
    generation: Counter,
}

/// Histograms of numbers.
#[derive(Debug)]
struct Sizes {
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    max_num_generation_tokens: Histogram,
    params_max_tokens: Histogram,
    prefill_kv_computed_tokens: Histogram,
    params_n: Histogram,
    num_preemptions: Histogram,
}

/// Histograms of seconds.
#[derive(Debug)]
struct Times {
    first_token: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    e2e: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
}

/// What is known about a sequence when it ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished<'a> {
    pub(crate) reason: FinishReason,
    pub(crate) prompt_tokens: u64,
    pub(crate) generation_tokens: u64,
    /// Since the request reached the edge.
    pub(crate) e2e: Duration,
    /// From the first to the last token, by the edge's clock.
    pub(crate) decode: Duration,
    /// The engine's time stamps, if the engine ended the sequence.
    pub(crate) timeline: Option<&'a Timeline>,
}

impl Metrics {
    pub(crate) fn new(model_name: &str, info: &ModelInfo) -> Self {
        let mut root = Registry::default();
        let load = Arc::new(Mutex::new(LoadReport::default()));
        let (http_requests, http_duration) = register_http(&mut root);
        let model = (Cow::from("model_name"), Cow::from(model_name.to_owned()));
        let rejections = load::RejectionCollector(Arc::clone(&load));
        root.sub_registry_with_labels([model.clone()].into_iter())
            .register_collector(Box::new(rejections));
        root.register_collector(Box::new(load::CacheConfig::new(info)));
        let engine = (Cow::from("engine"), Cow::from("0"));
        let registry = root.sub_registry_with_labels([model, engine].into_iter());
        registry.register_collector(Box::new(LoadCollector(Arc::clone(&load))));
        let reasons = ["stop", "length", "abort", "error", "repetition"];
        Self {
            load,
            tokens: TokenCounters::register(registry),
            request_success: family(
                registry,
                "vllm:request_success",
                "Finished sequences",
                "finished_reason",
                &reasons,
            ),
            sizes: Sizes::register(registry, &one_two_five(info.max_model_len)),
            times: Times::register(registry),
            http_requests,
            http_duration,
            registry: root,
        }
    }

    /// A request was admitted.
    pub(crate) fn request_started(&self, n: u32, max_tokens: u32) {
        self.sizes.params_n.observe(f64::from(n));
        self.sizes.params_max_tokens.observe(f64::from(max_tokens));
    }

    /// The first token of a sequence arrived.
    pub(crate) fn first_token(&self, since_arrival: Duration, prompt_tokens: u64, cached_tokens: u64) {
        self.times.first_token.observe(since_arrival.as_secs_f64());
        let cached = cached_tokens.min(prompt_tokens);
        self.tokens.prompt.inc_by(prompt_tokens);
        let source = |source| {
            self.tokens
                .prompt_by_source
                .get_or_create(&[("source", source)])
                .clone()
        };
        source("local_compute").inc_by(prompt_tokens - cached);
        source("local_cache_hit").inc_by(cached);
        self.tokens.cached.inc_by(cached);
        self.tokens
            .cached_by_source
            .get_or_create(&[("source", "device")])
            .inc_by(cached);
    }

    /// More tokens of a sequence arrived.
    pub(crate) fn more_tokens(&self, since_last: Duration) {
        self.times.inter_token.observe(since_last.as_secs_f64());
    }

    /// Tokens were handed to a client.
    pub(crate) fn generated(&self, tokens: u64) {
        self.tokens.generation.inc_by(tokens);
    }

    /// A sequence ended.
    pub(crate) fn finished(&self, finished: &Finished<'_>) {
        let tokens = finished.generation_tokens as f64;
        self.request_success
            .get_or_create(&[("finished_reason", finished.reason.as_str())])
            .inc();
        self.sizes.prompt_tokens.observe(finished.prompt_tokens as f64);
        self.sizes.generation_tokens.observe(tokens);
        self.times.e2e.observe(finished.e2e.as_secs_f64());
        if finished.generation_tokens > 1 {
            self.times
                .per_output_token
                .observe(finished.decode.as_secs_f64() / (tokens - 1.0));
        }
        if let Some(timeline) = finished.timeline {
            self.stages(timeline);
        }
    }

    /// All sequences of a request ended.
    pub(crate) fn request_finished(&self, most_tokens: u64) {
        self.sizes.max_num_generation_tokens.observe(most_tokens as f64);
    }

    fn stages(&self, timeline: &Timeline) {
        self.sizes
            .num_preemptions
            .observe(f64::from(timeline.num_preemptions));
        self.sizes
            .prefill_kv_computed_tokens
            .observe(f64::from(timeline.computed_prompt_tokens));
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
        let Some(scheduled) = timeline.scheduled_us else {
            return;
        };
        self.times.queue.observe(seconds(0, scheduled));
        let Some(first) = timeline.first_token_us else {
            return;
        };
        self.times.prefill.observe(seconds(scheduled, first));
        let Some(last) = timeline.last_token_us else {
            return;
        };
        self.times.decode.observe(seconds(first, last));
        self.times.inference.observe(seconds(scheduled, last));
    }

    /// A request was answered; `handler` is a path of the route table, so there are few of them.
    pub(crate) fn http_request(&self, method: &str, handler: &str, status: u16, duration: Duration) {
        let class = format!("{}xx", status / 100);
        let labels = [
            ("method", method.to_owned()),
            ("status", class),
            ("handler", handler.to_owned()),
        ];
        self.http_requests.get_or_create(&labels).inc();
        let labels = [("method", method.to_owned()), ("handler", handler.to_owned())];
        self.http_duration
            .get_or_create(&labels)
            .observe(duration.as_secs_f64());
    }

    /// All figures as text; the engine's are those of `load`, or the last known ones.
    pub(crate) fn render(&self, load: Option<LoadReport>) -> Result<String, std::fmt::Error> {
        if let Some(load) = load {
            *self
                .load
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner) = load;
        }
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl TokenCounters {
    fn register(r: &mut Registry) -> Self {
        let sources = ["local_compute", "local_cache_hit", "external_kv_transfer"];
        let tiers = ["device", "host", "p2p", "disk", "external_unspecified"];
        let by_source = "vllm:prompt_tokens_by_source";
        let cached_by_source = "vllm:prompt_tokens_cached_by_source";
        Self {
            prompt: counter(r, "vllm:prompt_tokens", "Prompt tokens processed"),
            prompt_by_source: family(r, by_source, "Prompt tokens by source", "source", &sources),
            cached: counter(r, "vllm:prompt_tokens_cached", "Prompt tokens read from a cache"),
            cached_by_source: family(
                r,
                cached_by_source,
                "Prompt tokens read from a cache",
                "source",
                &tiers,
            ),
            generation: counter(r, "vllm:generation_tokens", "Tokens generated"),
        }
    }
}

impl Sizes {
    fn register(r: &mut Registry, sizes: &[f64]) -> Self {
        let most = "Most generated tokens among a request's sequences";
        let computed = "Prompt tokens computed rather than read from the cache";
        Self {
            prompt_tokens: histogram(r, "vllm:request_prompt_tokens", "Prompt tokens", sizes),
            generation_tokens: histogram(r, "vllm:request_generation_tokens", "Generated tokens", sizes),
            max_num_generation_tokens: histogram(r, "vllm:request_max_num_generation_tokens", most, sizes),
            params_max_tokens: histogram(r, "vllm:request_params_max_tokens", "Parameter max_tokens", sizes),
            prefill_kv_computed_tokens: histogram(
                r,
                "vllm:request_prefill_kv_computed_tokens",
                computed,
                sizes,
            ),
            params_n: histogram(r, "vllm:request_params_n", "Parameter n", &N),
            num_preemptions: histogram(
                r,
                "vllm:request_num_preemptions",
                "Preemptions of a sequence",
                &PREEMPTIONS,
            ),
        }
    }
}

impl Times {
    fn register(r: &mut Registry) -> Self {
        let per_token = "vllm:request_time_per_output_token_seconds";
        let first = "vllm:time_to_first_token_seconds";
        Self {
            first_token: histogram(r, first, "Time to first token", &TTFT_SECONDS),
            inter_token: histogram(
                r,
                "vllm:inter_token_latency_seconds",
                "Time between tokens",
                &TOKEN_SECONDS,
            ),
            per_output_token: histogram(r, per_token, "Mean time per token of a sequence", &TOKEN_SECONDS),
            e2e: histogram(
                r,
                "vllm:e2e_request_latency_seconds",
                "Whole time",
                &REQUEST_SECONDS,
            ),
            queue: histogram(
                r,
                "vllm:request_queue_time_seconds",
                "Time in the queue",
                &REQUEST_SECONDS,
            ),
            inference: histogram(
                r,
                "vllm:request_inference_time_seconds",
                "Time being run",
                &REQUEST_SECONDS,
            ),
            prefill: histogram(
                r,
                "vllm:request_prefill_time_seconds",
                "Time in prefill",
                &REQUEST_SECONDS,
            ),
            decode: histogram(
                r,
                "vllm:request_decode_time_seconds",
                "Time in decode",
                &REQUEST_SECONDS,
            ),
        }
    }
}

type HttpFamilies = (
    Family<RequestLabels, Counter>,
    Family<DurationLabels, Histogram, fn() -> Histogram>,
);

fn register_http(registry: &mut Registry) -> HttpFamilies {
    let requests = Family::default();
    registry.register(
        "http_requests",
        "Number of requests by method, status and handler",
        requests.clone(),
    );
    let new: fn() -> Histogram = || Histogram::new(HTTP_SECONDS);
    let duration = Family::new_with_constructor(new);
    registry.register(
        "http_request_duration_seconds",
        "Time from a request's headers to its answer's headers",
        duration.clone(),
    );
    (requests, duration)
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

fn family(
    registry: &mut Registry,
    name: &str,
    help: &str,
    key: &'static str,
    values: &[&'static str],
) -> Family<Label, Counter> {
    let family = Family::<Label, Counter>::default();
    for value in values {
        drop(family.get_or_create(&[(key, *value)]));
    }
    registry.register(name, help, family.clone());
    family
}

fn histogram(registry: &mut Registry, name: &str, help: &str, buckets: &[f64]) -> Histogram {
    let histogram = Histogram::new(buckets.iter().copied());
    registry.register(name, help, histogram.clone());
    histogram
}

/// 1, 2, 5, 10, 20, 50 and so on, up to `max` (vLLM's `build_1_2_5_buckets`).
fn one_two_five(max: u32) -> Vec<f64> {
    let max = u64::from(max);
    let decades = (0..10).map(|exponent| 10u64.pow(exponent));
    decades
        .flat_map(|decade| [decade, 2 * decade, 5 * decade])
        .filter(|&v| v <= max)
        .map(|v| v as f64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_buckets_end_at_the_context() {
        assert_eq!(one_two_five(100), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(one_two_five(0), [0.0; 0]);
    }

    #[test]
    fn names_keep_the_colon_and_carry_model_and_engine() {
        let info = ModelInfo {
            max_model_len: 100,
            ..ModelInfo::default()
        };
        let metrics = Metrics::new("tiny\"model", &info);
        metrics.first_token(Duration::from_millis(30), 7, 4);
        let load = LoadReport {
            num_running: 3,
            prefix_cache_hits: 9,
            ..LoadReport::default()
        };
        let text = metrics.render(Some(load)).unwrap();
        let labels = "model_name=\"tiny\\\"model\",engine=\"0\"";
        for line in [
            format!("vllm:num_requests_running{{{labels}}} 3"),
            format!("vllm:prefix_cache_hits_total{{{labels}}} 9"),
            format!("vllm:prompt_tokens_total{{{labels}}} 7"),
            format!("vllm:prompt_tokens_by_source_total{{{labels},source=\"local_cache_hit\"}} 4"),
            format!("vllm:time_to_first_token_seconds_bucket{{le=\"0.02\",{labels}}} 0"),
            format!("vllm:time_to_first_token_seconds_bucket{{le=\"0.04\",{labels}}} 1"),
            format!("vllm:request_success_total{{{labels},finished_reason=\"repetition\"}} 0"),
        ] {
            let sorted = |line: &str| {
                let mut parts: Vec<String> = line
                    .split(['{', ',', '}'])
                    .map(|part| part.trim().to_owned())
                    .collect();
                parts.sort();
                parts
            };
            assert!(
                text.lines().any(|other| sorted(other) == sorted(&line)),
                "{line} not in\n{text}"
            );
        }
    }
}
