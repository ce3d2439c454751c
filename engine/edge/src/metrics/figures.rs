//! The figures and how they are registered: names, help, labels and buckets of vLLM 0.32.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

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

pub(super) type RequestLabels = [(&'static str, String); 3];
pub(super) type DurationLabels = [(&'static str, String); 2];
pub(super) type Label = [(&'static str, &'static str); 1];

/// Tokens in and out.
#[derive(Debug)]
pub(super) struct TokenCounters {
    pub(super) prompt: Counter,
    pub(super) prompt_by_source: Family<Label, Counter>,
    pub(super) cached: Counter,
    pub(super) cached_by_source: Family<Label, Counter>,
    pub(super) generation: Counter,
}

/// Histograms of numbers.
#[derive(Debug)]
pub(super) struct Sizes {
    pub(super) prompt_tokens: Histogram,
    pub(super) generation_tokens: Histogram,
    pub(super) max_num_generation_tokens: Histogram,
    pub(super) params_max_tokens: Histogram,
    pub(super) prefill_kv_computed_tokens: Histogram,
    pub(super) params_n: Histogram,
    pub(super) num_preemptions: Histogram,
}

/// Histograms of seconds.
#[derive(Debug)]
pub(super) struct Times {
    pub(super) first_token: Histogram,
    pub(super) inter_token: Histogram,
    pub(super) per_output_token: Histogram,
    pub(super) e2e: Histogram,
    pub(super) queue: Histogram,
    pub(super) inference: Histogram,
    pub(super) prefill: Histogram,
    pub(super) decode: Histogram,
}

impl TokenCounters {
    pub(super) fn register(r: &mut Registry) -> Self {
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
    pub(super) fn register(r: &mut Registry, sizes: &[f64]) -> Self {
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
    pub(super) fn register(r: &mut Registry) -> Self {
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

pub(super) type HttpFamilies = (
    Family<RequestLabels, Counter>,
    Family<DurationLabels, Histogram, fn() -> Histogram>,
);

pub(super) fn register_http(registry: &mut Registry) -> HttpFamilies {
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

pub(super) fn family(
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
pub(super) fn one_two_five(max: u32) -> Vec<f64> {
    let max = u64::from(max);
    let decades = (0..10).map(|exponent| 10u64.pow(exponent));
    decades
        .flat_map(|decade| [decade, 2 * decade, 5 * decade])
        .filter(|&v| v <= max)
        .map(|v| v as f64)
        .collect()
}
