//! The figures of one model's engines and queue.
//!
//! Those of the first model bear no name, as those of a gateway with one model always have; those of another model bear its first name as
//! `model_name`, the label that engines use.

use std::borrow::Cow;
use std::fmt;

use kvasir_gateway_core::routing::{Circuit, EngineFailure};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::metrics::{Labels, Level, PREFIX, certificate_ends, counter, counters, level};
use crate::pool::Pool;

/// The figures of one model.
pub(crate) struct PoolMetrics {
    registry: Registry,
    engine_failures: Family<Labels<1>, Counter>,
    retries: Counter,
    link_failures: Counter,
    mismatches: Counter,
    routed: Counter,
    overlap_blocks: Counter,
    certificate_end: Family<Labels<1>, Level>,
    levels: Levels,
}

/// What is read at each scrape.
struct Levels {
    waiting: Level,
    waiting_tokens: Level,
    longest_wait: Level,
    engines: Family<Labels<1>, Level>,
    at_engines: Level,
    index_blocks: Level,
}

impl PoolMetrics {
    /// Those of the first model, or of another one by its name.
    pub(crate) fn new(model_name: Option<&str>) -> Self {
        let labels = model_name.map(|name| (Cow::from("model_name"), Cow::from(name.to_owned())));
        let mut root = Registry::with_prefix_and_labels(PREFIX, labels.into_iter());
        let registry = &mut root;
        let failures = "Requests that an engine failed";
        let links = "Connections to engines that didn't come about";
        let mismatches = "Engines refused for other assets or keys than their revision's";
        let routed = "Requests that an engine began to answer";
        let overlap = "Blocks of their prompts that the chosen engines were thought to hold";
        Self {
            engine_failures: counters(registry, "engine_failures", failures),
            retries: counter(registry, "retries", "Requests that were sent to another engine"),
            link_failures: counter(registry, "engine_connection_failures", links),
            mismatches: counter(registry, "engine_mismatches", mismatches),
            routed: counter(registry, "routed_requests", routed),
            overlap_blocks: counter(registry, "routed_overlap_blocks", overlap),
            certificate_end: certificate_ends(registry),
            levels: Levels::register(registry),
            registry: root,
        }
    }

    pub(crate) fn engine_failed(&self, failure: EngineFailure) {
        let labels = [("reason", failure.code().to_owned())];
        self.engine_failures.get_or_create(&labels).inc();
    }

    pub(crate) fn retried(&self) {
        self.retries.inc();
    }

    pub(crate) fn link_failed(&self) {
        self.link_failures.inc();
    }

    pub(crate) fn mismatch(&self) {
        self.mismatches.inc();
    }

    pub(crate) fn routed(&self, overlap_blocks: u32) {
        self.routed.inc();
        self.overlap_blocks.inc_by(overlap_blocks.into());
    }

    /// The last second of the certificate that engines are shown.
    pub(crate) fn certificate_end(&self, not_after: i64) {
        let labels = [("certificate", "engines".to_owned())];
        self.certificate_end.get_or_create(&labels).set(not_after as f64);
    }

    /// All figures as text.
    pub(crate) fn render(&self, pool: &Pool) -> Result<String, fmt::Error> {
        self.levels.read(pool);
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Levels {
    fn register(registry: &mut Registry) -> Self {
        let engines: Family<Labels<1>, Level> = Family::default();
        registry.register("engines", "Engines by state", engines.clone());
        let waiting = "Requests that wait for an engine";
        let tokens = "Tokens of the requests that wait";
        let longest = "How long the first of those that wait has waited";
        let at_engines = "Requests of this gateway that run or wait at engines";
        Self {
            waiting: level(registry, "waiting_requests", waiting),
            waiting_tokens: level(registry, "waiting_tokens", tokens),
            longest_wait: level(registry, "longest_wait_seconds", longest),
            at_engines: level(registry, "requests_at_engines", at_engines),
            index_blocks: level(registry, "index_blocks", "Blocks in the prefix index"),
            engines,
        }
    }

    fn read(&self, pool: &Pool) {
        let signal = pool.waiting();
        self.waiting.set(signal.num_waiting as f64);
        self.waiting_tokens.set(signal.num_tokens as f64);
        self.longest_wait.set(signal.longest_wait.as_secs_f64());
        let mut counts = [("usable", 0), ("draining", 0), ("ejected", 0), ("probing", 0)];
        let (mut num_blocks, mut num_requests) = (0_u64, 0_u64);
        for engine in pool.engines() {
            num_blocks += u64::from(engine.num_indexed_blocks);
            num_requests += u64::from(engine.num_own_requests);
            let state = match engine.circuit {
                _ if engine.is_draining => 1,
                Circuit::Open { .. } => 2,
                Circuit::HalfOpen { .. } => 3,
                Circuit::Closed { .. } => 0,
            };
            counts[state].1 += 1;
        }
        for (state, count) in counts {
            self.engines
                .get_or_create(&[("state", state.to_owned())])
                .set(f64::from(count));
        }
        self.at_engines.set(num_requests as f64);
        self.index_blocks.set(num_blocks as f64);
    }
}
