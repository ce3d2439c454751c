//! The figures at `/metrics`: every vLLM V1 name that applies, with its exact labels and buckets.
//!
//! What the engine counts (queues, KV usage, steps) comes from its load report at the moment of the scrape. What a
//! request experiences is observed here, as vLLM's front end does: time to first token and between tokens by this
//! process's clock, queue, prefill and decode time from the engine's time stamps.

mod cpu_wait;
mod engine;
mod exposition;
mod figures;
mod limits;
mod load;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use kvasir_api::FinishReason;
use kvasir_client::types::{LoadReport, ModelInfo, Timeline};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use figures::{
    DurationLabels, HttpFamilies, Label, RequestLabels, Sizes, Times, TokenCounters, family, one_two_five,
    register_http,
};

pub use engine::EngineMetrics;
pub use exposition::one_exposition;

/// Content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The figures of an edge; several pipelines may count into the same ones. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Figures(Arc<Metrics>);

impl Figures {
    /// Those of an edge in front of one engine.
    pub(crate) fn of_engine(model_name: &str, info: &ModelInfo) -> Self {
        Self(Arc::new(Metrics::new(model_name, info)))
    }

    /// Those of a gateway: what its requests experience, and nothing that a single engine would count. `max_model_len` bounds the buckets.
    ///
    /// Figures of the model are there once [`name_model`](Self::name_model) has said which one it is.
    pub fn of_requests(max_model_len: u32) -> Self {
        Self(Arc::new(Metrics::of_requests(max_model_len)))
    }

    /// The name of the model whose requests are counted. The first one stays: a series must not change its name.
    pub fn name_model(&self, model_name: &str) {
        self.0
            .model
            .get_or_init(|| OfModel::named(model_name, self.0.max_model_len));
    }

    /// All figures as text; the engine's are those of `load`, or the last known ones.
    ///
    /// # Errors
    /// Only if they can't be formatted.
    pub fn render(&self, load: Option<LoadReport>) -> Result<String, std::fmt::Error> {
        self.0.render(load)
    }

    /// All figures of a gateway as text, with those of its other models, whose requests are counted apart.
    ///
    /// # Errors
    /// Only if they can't be formatted.
    pub fn render_with<'a>(
        &'a self,
        others: impl Iterator<Item = &'a Figures>,
    ) -> Result<String, std::fmt::Error> {
        let mut texts = vec![self.0.render(None)?];
        let named = |of: &'a Figures| of.0.model.get();
        let mut names: BTreeSet<&str> = named(self).map(|model| model.name.as_str()).into_iter().collect();
        for model in others.filter_map(named) {
            // A series can't be there twice; a model whose name has become another one's isn't shown.
            if names.insert(&model.name) {
                let mut text = String::new();
                prometheus_text::encode(&mut text, &model.registry)?;
                texts.push(text);
            }
        }
        Ok(one_exposition(&texts))
    }
}

impl std::ops::Deref for Figures {
    type Target = Metrics;

    fn deref(&self) -> &Metrics {
        &self.0
    }
}

/// What [`Figures`] counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    load: Arc<Mutex<LoadReport>>,
    /// Known once the model's name is.
    model: OnceLock<OfModel>,
    max_model_len: u32,
    http_requests: Family<RequestLabels, Counter>,
    http_duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
}

/// The figures of requests for a model.
#[derive(Debug)]
struct OfModel {
    name: String,
    /// Empty where an engine's registry has them.
    registry: Registry,
    counted: Counted,
}

impl OfModel {
    fn named(model_name: &str, max_model_len: u32) -> Self {
        let mut registry = Registry::default();
        let label = (Cow::from("model_name"), Cow::from(model_name.to_owned()));
        let labelled = registry.sub_registry_with_labels([label].into_iter());
        let counted = Counted::register(labelled, max_model_len);
        let name = model_name.to_owned();
        Self {
            name,
            registry,
            counted,
        }
    }
}

/// The figures of requests and their tokens.
#[derive(Debug)]
struct Counted {
    tokens: TokenCounters,
    request_success: Family<Label, Counter>,
    sizes: Sizes,
    times: Times,
}

impl Counted {
    fn register(registry: &mut Registry, max_model_len: u32) -> Self {
        let reasons = ["stop", "length", "abort", "error", "repetition"];
        Self {
            tokens: TokenCounters::register(registry),
            request_success: family(
                registry,
                "vllm:request_success",
                "Finished sequences",
                "finished_reason",
                &reasons,
            ),
            sizes: Sizes::register(registry, &one_two_five(max_model_len)),
            times: Times::register(registry),
        }
    }

    fn first_token(&self, since_arrival: Duration, prompt_tokens: u64, cached_tokens: u64) {
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

    fn finished(&self, finished: &Finished<'_>) {
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
        let registry = engine::register(&mut root, &load, model_name, info);
        let counted = Counted::register(registry, info.max_model_len);
        let model = OfModel {
            name: model_name.to_owned(),
            registry: Registry::default(),
            counted,
        };
        Self {
            registry: root,
            load,
            model: OnceLock::from(model),
            max_model_len: info.max_model_len,
            http_requests,
            http_duration,
        }
    }

    fn of_requests(max_model_len: u32) -> Self {
        let mut root = Registry::default();
        let (http_requests, http_duration): HttpFamilies = register_http(&mut root);
        root.register_collector(Box::new(load::ProcessCollector));
        root.register_collector(Box::new(cpu_wait::CpuWait));
        Self {
            registry: root,
            load: Arc::default(),
            model: OnceLock::new(),
            max_model_len,
            http_requests,
            http_duration,
        }
    }

    /// Where requests are counted. None runs before a pipeline has named the model.
    fn counted(&self) -> Option<&Counted> {
        self.model.get().map(|model| &model.counted)
    }

    /// A request was admitted.
    pub(crate) fn request_started(&self, n: u32, max_tokens: u32) {
        if let Some(counted) = self.counted() {
            counted.sizes.params_n.observe(f64::from(n));
            counted.sizes.params_max_tokens.observe(f64::from(max_tokens));
        }
    }

    /// The first token of a sequence arrived.
    pub(crate) fn first_token(&self, since_arrival: Duration, prompt_tokens: u64, cached_tokens: u64) {
        if let Some(counted) = self.counted() {
            counted.first_token(since_arrival, prompt_tokens, cached_tokens);
        }
    }

    /// More tokens of a sequence arrived.
    pub(crate) fn more_tokens(&self, since_last: Duration) {
        if let Some(counted) = self.counted() {
            counted.times.inter_token.observe(since_last.as_secs_f64());
        }
    }

    /// Tokens were handed to a client.
    pub(crate) fn generated(&self, tokens: u64) {
        if let Some(counted) = self.counted() {
            counted.tokens.generation.inc_by(tokens);
        }
    }

    /// A sequence ended.
    pub(crate) fn finished(&self, finished: &Finished<'_>) {
        if let Some(counted) = self.counted() {
            counted.finished(finished);
        }
    }

    /// All sequences of a request ended.
    pub(crate) fn request_finished(&self, most_tokens: u64) {
        if let Some(counted) = self.counted() {
            counted
                .sizes
                .max_num_generation_tokens
                .observe(most_tokens as f64);
        }
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
        if let Some(model) = self.model.get() {
            prometheus_text::encode(&mut text, &model.registry)?;
        }
        Ok(text)
    }
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
    fn a_gateways_figures_bear_the_name_that_the_model_was_first_given() {
        let figures = Figures::of_requests(100);
        assert!(!figures.render(None).unwrap().contains("vllm:"));
        figures.name_model("tiny");
        figures.name_model("other");
        figures.first_token(Duration::from_millis(30), 7, 4);
        let text = figures.render(None).unwrap();
        let line = "vllm:prompt_tokens_total{model_name=\"tiny\"} 7";
        assert!(text.lines().any(|other| other == line), "{line} not in\n{text}");
    }

    #[test]
    fn models_of_a_gateway_are_told_apart_by_their_names() {
        let (first, other, same) = (
            Figures::of_requests(100),
            Figures::of_requests(100),
            Figures::of_requests(100),
        );
        first.name_model("small");
        other.name_model("large");
        same.name_model("small");
        first.first_token(Duration::from_millis(30), 7, 4);
        other.first_token(Duration::from_millis(30), 9, 4);
        let text = first.render_with([&other, &same].into_iter()).unwrap();
        for line in [
            "vllm:prompt_tokens_total{model_name=\"small\"} 7",
            "vllm:prompt_tokens_total{model_name=\"large\"} 9",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} not in\n{text}");
        }
        let described = |line: &&str| line.starts_with("# HELP ");
        let mut names: Vec<&str> = text.lines().filter(described).collect();
        let number = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), number, "a family is described twice");
        let mut series: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| Some(line.rsplit_once(' ')?.0))
            .collect();
        let number = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), number, "a series is there twice");
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
            format!("vllm:num_requests_running{{{labels}}} 3.0"),
            format!("vllm:prefix_cache_hits_total{{{labels}}} 9"),
            format!("vllm:prompt_tokens_total{{{labels}}} 7"),
            format!("vllm:prompt_tokens_by_source_total{{{labels},source=\"local_cache_hit\"}} 4"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"0.02\"}} 0"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"0.04\"}} 1"),
            format!("vllm:request_success_total{{{labels},finished_reason=\"repetition\"}} 0"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} not in\n{text}");
        }
        assert!(
            !text.contains("e+308"),
            "the encoder adds the bucket without bound itself"
        );
    }
}
