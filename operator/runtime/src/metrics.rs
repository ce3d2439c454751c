//! Figures of the operator and of its services, at `/metrics`.
//!
//! What the operator did is counted where it happens. What services are is read from the watched services at the moment of
//! the scrape, so that nothing about a deleted service stays.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::runtime::reflector::Store;
use kvasir_operator_api::InferenceService;
use kvasir_operator_core::child::Kind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::cache::Cache;

type Labels = Vec<(&'static str, String)>;

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Conflict,
    Fenced,
    Failed,
}

/// All figures.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    rounds: Family<Labels, Counter>,
    round_seconds: Histogram,
    requests: Family<Labels, Counter>,
    undone: Family<Labels, Counter>,
    watch_failures: Family<Labels, Counter>,
    leader: Gauge,
    running: Arc<Running>,
}

/// Rounds in progress, for the liveness probe.
#[derive(Debug, Default)]
struct Running {
    next: AtomicU64,
    since: Mutex<std::collections::BTreeMap<u64, Instant>>,
}

/// A round in progress.
pub(crate) struct Round<'a> {
    metrics: &'a Metrics,
    id: u64,
    begin: Instant,
}

impl Round<'_> {
    /// The round has ended.
    pub(crate) fn end(self, outcome: Outcome) {
        let result = match outcome {
            Outcome::Done => "done",
            Outcome::Conflict => "conflict",
            Outcome::Fenced => "fenced",
            Outcome::Failed => "failed",
        };
        let labels = vec![("result", result.to_owned())];
        self.metrics.rounds.get_or_create(&labels).inc();
        self.metrics
            .round_seconds
            .observe(self.begin.elapsed().as_secs_f64());
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut since = self.metrics.running.since.lock();
        since.as_deref_mut().map_or_else(
            |poisoned| poisoned.get_mut().remove(&self.id),
            |s| s.remove(&self.id),
        );
    }
}

impl Metrics {
    pub(crate) fn new(version: &str) -> Self {
        let mut registry = Registry::with_prefix("kvasir_operator");
        let rounds = Family::default();
        registry.register("reconciles", "Rounds, by how they ended", rounds.clone());
        // From a round that only computes to one that creates a service's objects on a slow API server.
        let buckets = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0];
        let round_seconds = Histogram::new(buckets);
        registry.register(
            "reconcile_seconds",
            "Time that rounds take",
            round_seconds.clone(),
        );
        let requests = Family::default();
        registry.register(
            "writes",
            "Requests that change something, by kind, verb and result",
            requests.clone(),
        );
        let undone = Family::default();
        registry.register(
            "edits_undone",
            "Objects that somebody changed and that were set back, by kind",
            undone.clone(),
        );
        let watch_failures = Family::default();
        registry.register(
            "watch_failures",
            "Watches that ended with an error",
            watch_failures.clone(),
        );
        let leader = Gauge::default();
        registry.register("leader", "1 if this replica holds the lease", leader.clone());
        let build: Family<Labels, Gauge> = Family::default();
        registry.register("build_info", "What runs; always 1", build.clone());
        build.get_or_create(&vec![("version", version.to_owned())]).set(1);
        Self {
            registry: Mutex::new(registry),
            rounds,
            round_seconds,
            requests,
            undone,
            watch_failures,
            leader,
            running: Arc::default(),
        }
    }

    /// Adds the figures that are read at the moment of a scrape.
    pub(crate) fn observe(&self, services: Store<InferenceService>, cache: Arc<Cache>) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register_collector(Box::new(Observed { services, cache }));
    }

    /// A round begins.
    pub(crate) fn round(&self) -> Round<'_> {
        let id = self.running.next.fetch_add(1, Ordering::Relaxed);
        let begin = Instant::now();
        let mut since = self.running.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.insert(id, begin);
        Round {
            metrics: self,
            id,
            begin,
        }
    }

    /// How long the oldest round has been running.
    pub(crate) fn oldest_round(&self) -> Duration {
        let since = self.running.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.values().min().map_or(Duration::ZERO, Instant::elapsed)
    }

    pub(crate) fn lead(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    pub(crate) fn wrote(&self, kind: Kind, exists: bool, done: bool) {
        self.count(&kind.to_string(), if exists { "apply" } else { "create" }, done);
    }

    pub(crate) fn undid(&self, kind: Kind) {
        let labels = vec![("kind", kind.to_string())];
        self.undone.get_or_create(&labels).inc();
    }

    pub(crate) fn deleted(&self, kind: Kind, done: bool) {
        self.count(&kind.to_string(), "delete", done);
    }

    pub(crate) fn wrote_status(&self, done: bool) {
        self.count("InferenceService", "status", done);
    }

    pub(crate) fn told(&self, done: bool) {
        self.count("Event", "create", done);
    }

    fn count(&self, kind: &str, verb: &str, done: bool) {
        let result = if done { "done" } else { "failed" };
        let labels = vec![
            ("kind", kind.to_owned()),
            ("verb", verb.to_owned()),
            ("result", result.to_owned()),
        ];
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn watch_failed(&self, kind: &str) {
        let labels = vec![("kind", kind.to_owned())];
        self.watch_failures.get_or_create(&labels).inc();
    }

    /// All figures as text.
    pub(crate) fn render(&self) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &registry) {
            tracing::warn!(%error, "the figures can't be rendered");
        }
        text
    }
}

/// What is read at the moment of a scrape.
struct Observed {
    services: Store<InferenceService>,
    cache: Arc<Cache>,
}

impl std::fmt::Debug for Observed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}

impl Collector for Observed {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (children, pods, nodes) = self.cache.size();
        let services = self.services.state();
        let held = [
            ("children", children),
            ("pods", pods),
            ("nodes", nodes),
            ("services", services.len()),
        ];
        let help = "Objects that the caches hold";
        let mut metric = encoder.encode_descriptor("cached", help, None, MetricType::Gauge)?;
        for (kind, count) in held {
            let value = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            value.encode(metric.encode_family(&[("kind", kind)])?)?;
        }
        let help = "A condition of a service with its status and reason; always 1";
        let name = "service_condition";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for service in &services {
            let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
            let conditions = service.status.iter().flat_map(|status| &status.conditions);
            for condition in conditions {
                let labels = [
                    ("namespace", namespace.as_str()),
                    ("service", name.as_str()),
                    ("condition", condition.type_.as_str()),
                    ("status", condition.status.as_str()),
                    ("reason", condition.reason.as_str()),
                ];
                ConstGauge::new(1_i64).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "Groups of a service, by state";
        let name = "service_groups";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for service in &services {
            let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
            let mut states = std::collections::BTreeMap::<String, i64>::new();
            for group in service.status.iter().flat_map(|status| &status.groups) {
                *states.entry(format!("{:?}", group.state)).or_default() += 1;
            }
            for (state, count) in states {
                let labels = [
                    ("namespace", namespace.as_str()),
                    ("service", name.as_str()),
                    ("state", state.as_str()),
                ];
                ConstGauge::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        restarts(&services, encoder)
    }
}

fn restarts(
    services: &[Arc<InferenceService>],
    mut encoder: DescriptorEncoder<'_>,
) -> Result<(), std::fmt::Error> {
    let help = "Restarts of all pods of a service's groups within the present windows";
    let name = "service_group_restarts";
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for service in services {
        let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
        let groups = service.status.iter().flat_map(|status| &status.groups);
        let restarts: i64 = groups.map(|group| i64::from(group.restarts)).sum();
        let labels = [("namespace", namespace.as_str()), ("service", name.as_str())];
        ConstGauge::new(restarts).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}
