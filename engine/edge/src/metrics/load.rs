//! Figures that the engine counts: read from the last load report whenever somebody scrapes.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kvasir_client::DURATION_BOUNDS_US;
use kvasir_client::types::{Durations, LoadReport, ModelInfo, StepTimes};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::time::{ClockId, clock_gettime};

/// Upper bounds of `vllm:iteration_tokens_total`; the engine counts into these.
const ITERATION_TOKENS: [f64; 13] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];

/// Figures with the labels of model and engine.
#[derive(Debug)]
pub(super) struct LoadCollector(pub(super) Arc<Mutex<LoadReport>>);

impl Collector for LoadCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let load = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let waiting = f64::from(load.num_waiting);
        let mut gauge = |name, help, value| Self::gauge(&mut encoder, name, help, value);
        gauge(
            "vllm:num_requests_running",
            "Requests that run",
            f64::from(load.num_running),
        )?;
        gauge("vllm:num_requests_waiting", "Requests that wait", waiting)?;
        gauge(
            "vllm:kv_cache_usage_perc",
            "Share of KV blocks in use, 1 is all",
            load.kv_cache_usage,
        )?;
        encode_labelled(
            &mut encoder,
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait, by reason",
            "reason",
            // Nothing here defers requests: all of them wait for capacity.
            &[("capacity", waiting), ("deferred", 0.0)],
        )?;
        encode_labelled(
            &mut encoder,
            "vllm:engine_sleep_state",
            "1 for the state the engine is in",
            "sleep_state",
            &[("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)],
        )?;
        let mut counter = |name, help, value| Self::counter(&mut encoder, name, help, value);
        counter(
            "vllm:prefix_cache_queries",
            "Tokens looked up in the prefix cache",
            load.prefix_cache_queries,
        )?;
        counter(
            "vllm:prefix_cache_hits",
            "Tokens found in the prefix cache",
            load.prefix_cache_hits,
        )?;
        counter("vllm:num_preemptions", "Preemptions", load.num_preemptions)?;
        encode_iteration_tokens(&mut encoder, &load)?;
        encode_own(&mut encoder, &load)
    }
}

/// What vLLM has no name for.
fn encode_own(encoder: &mut DescriptorEncoder<'_>, load: &LoadReport) -> fmt::Result {
    let seconds = |us: u64| us as f64 / 1e6;
    for (name, help, value) in [
        (
            "kvasir_kv_blocks_free",
            "KV blocks that no request holds, cached ones among them",
            f64::from(load.num_free_blocks),
        ),
        (
            "kvasir_queued_tokens",
            "Prompt tokens of the requests that wait",
            load.num_queued_tokens as f64,
        ),
        (
            "kvasir_engine_stalled_seconds",
            "Time since the last completed step while there is work, 0 when idle",
            seconds(load.stalled_us),
        ),
        (
            "kvasir_engine_stall_deadline_seconds",
            "Time without progress that counts as a stall now, 0 when idle",
            seconds(load.watchdog.as_ref().map_or(0, |watchdog| watchdog.deadline_us)),
        ),
        (
            "kvasir_engine_cpus",
            "CPUs that the engine's process may use",
            f64::from(load.num_cpus),
        ),
    ] {
        LoadCollector::gauge(encoder, name, help, value)?;
    }
    let watchdog = load.watchdog.clone().unwrap_or_default();
    let help = "Times that a step made no progress for too long";
    LoadCollector::counter(encoder, "kvasir_engine_stalls", help, watchdog.num_stalls)?;
    let help = "Sequences that the watchdog failed";
    LoadCollector::counter(
        encoder,
        "kvasir_engine_stalled_sequences",
        help,
        watchdog.num_failed,
    )?;
    let help = "Steps that completed";
    LoadCollector::counter(encoder, "kvasir_steps", help, load.num_steps)?;
    let help = "CPU time that the engine's process has used";
    let metric = encoder.encode_descriptor("kvasir_engine_cpu_seconds", help, None, MetricType::Counter)?;
    ConstCounter::new(seconds(load.process_cpu_us)).encode(metric)?;
    encode_step_times(encoder, load.step_times.as_ref().unwrap_or(&StepTimes::default()))
}

fn encode_step_times(encoder: &mut DescriptorEncoder<'_>, times: &StepTimes) -> fmt::Result {
    let StepTimes {
        schedule,
        launch,
        execute,
        wait,
        complete,
        deliver,
    } = times;
    for (name, help, durations) in [
        (
            "kvasir_step_schedule_seconds",
            "Time in which the scheduler planned a step",
            schedule,
        ),
        (
            "kvasir_step_launch_seconds",
            "Time in which the executor took a step's plan",
            launch,
        ),
        (
            "kvasir_step_execute_seconds",
            "Time in which the executor worked on a step, launch and sampling included",
            execute,
        ),
        (
            "kvasir_step_wait_seconds",
            "Time in which the scheduler's thread waited for a step's result",
            wait,
        ),
        (
            "kvasir_step_complete_seconds",
            "Time in which the scheduler took a step's result",
            complete,
        ),
        (
            "kvasir_step_deliver_seconds",
            "Time in which a step's outputs were routed to clients",
            deliver,
        ),
    ] {
        encode_durations(
            encoder,
            name,
            help,
            durations.as_ref().unwrap_or(&Durations::default()),
        )?;
    }
    Ok(())
}

fn encode_durations(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    durations: &Durations,
) -> fmt::Result {
    let bounds = DURATION_BOUNDS_US.map(|us| us as f64 / 1e6);
    let (buckets, count) = buckets(&bounds, &durations.bucket);
    encoder
        .encode_descriptor(name, help, None, MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(durations.sum_ns as f64 / 1e9, count, &buckets, None)
}

impl LoadCollector {
    fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

fn encode_labelled(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    key: &'static str,
    values: &[(&'static str, f64)],
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (label, value) in values {
        ConstGauge::new(*value).encode(metric.encode_family(&[(key, *label)])?)?;
    }
    Ok(())
}

fn encode_iteration_tokens(encoder: &mut DescriptorEncoder<'_>, load: &LoadReport) -> fmt::Result {
    let mut metric: MetricEncoder<'_> = encoder.encode_descriptor(
        "vllm:iteration_tokens_total",
        "Tokens per step",
        None,
        MetricType::Histogram,
    )?;
    let (buckets, count) = buckets(&ITERATION_TOKENS, &load.iteration_tokens_bucket);
    metric.encode_histogram::<NoLabelSet>(load.iteration_tokens_sum as f64, count, &buckets, None)
}

/// A report's cumulative counts as the encoder wants them, which adds up by itself: the count of each bound, and of all. The entry behind
/// the bounds counts all; the encoder makes the bucket without bound of it.
fn buckets(bounds: &[f64], cumulative: &[u64]) -> (Vec<(f64, u64)>, u64) {
    let mut below = 0;
    let mut share = |cumulative: u64| {
        let share = cumulative.saturating_sub(below);
        below = below.max(cumulative);
        share
    };
    let cumulative = |i: usize| cumulative.get(i).copied().unwrap_or_default();
    let buckets = bounds.iter().enumerate();
    let buckets: Vec<_> = buckets.map(|(i, &upper)| (upper, share(cumulative(i)))).collect();
    let last = bounds.len();
    (buckets, cumulative(last).max(cumulative(last.saturating_sub(1))))
}

/// Refusals at admission, which vLLM labels with the model only.
#[derive(Debug)]
pub(super) struct RejectionCollector(pub(super) Arc<Mutex<LoadReport>>);

impl Collector for RejectionCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let load = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut metric = encoder.encode_descriptor(
            "vllm:admission_rejections",
            "Requests refused because a queue was full",
            None,
            MetricType::Counter,
        )?;
        for (reason, value) in [
            ("max_num_queued_reqs", load.rejected_max_num_queued_reqs),
            ("max_num_queued_tokens", load.rejected_max_num_queued_tokens),
        ] {
            ConstCounter::new(value).encode(metric.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}

/// Constants of the KV cache, as labels.
#[derive(Debug)]
pub(super) struct CacheConfig {
    labels: Vec<(String, String)>,
}

impl CacheConfig {
    pub(super) fn new(info: &ModelInfo) -> Self {
        let details = info.details.get("kv_cache_dtype").cloned();
        let is_cached = info
            .details
            .get("enable_prefix_caching")
            .is_none_or(|value| value == "true");
        // As Python writes it.
        let enable_prefix_caching = if is_cached { "True" } else { "False" };
        let labels = [
            ("block_size", info.block_size.to_string()),
            ("cache_dtype", details.unwrap_or_else(|| "auto".to_owned())),
            ("enable_prefix_caching", enable_prefix_caching.to_owned()),
            ("engine", "0".to_owned()),
            ("num_gpu_blocks", info.num_blocks.to_string()),
        ];
        Self {
            labels: labels.map(|(key, value)| (key.to_owned(), value)).to_vec(),
        }
    }
}

impl Collector for CacheConfig {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Configuration of the KV cache";
        let mut metric =
            encoder.encode_descriptor("vllm:cache_config_info", help, None, MetricType::Gauge)?;
        ConstGauge::new(1i64).encode(metric.encode_family(&self.labels)?)
    }
}

/// This process, under the name that Prometheus' own clients use. With an engine inside it is the engine's process too.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        let help = "CPU time that this process has used";
        let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(seconds).encode(metric)
    }
}
