//! Figures of the operator and of its services, at `/metrics`.
//!
//! What the operator did is counted where it happens. What services are is read from the watched services at the moment of
//! the scrape, so that nothing about a deleted service stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use kvasir_operator_api::InferenceService;
use kvasir_operator_core::accepted;
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
    failures: Family<Labels, Counter>,
    round_seconds: Histogram,
    requests: Family<Labels, Counter>,
    undone: Family<Labels, Counter>,
    watch_failures: Family<Labels, Counter>,
    leader: Gauge,
    running: Arc<Running>,
    services: OnceLock<Store<InferenceService>>,
}

/// Rounds in progress and to come, for the liveness probe and the queue's length.
#[derive(Debug, Default)]
struct Running {
    next: AtomicU64,
    since: Mutex<BTreeMap<u64, Instant>>,
    /// Services with news that no round has begun to look at.
    due: Mutex<BTreeSet<String>>,
    /// When the last round began.
    last: Mutex<Option<Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a service is called in the queue.
fn queued(service: &ObjectRef<InferenceService>) -> String {
    format!(
        "{}/{}",
        service.namespace.as_deref().unwrap_or_default(),
        service.name
    )
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
        lock(&self.metrics.running.since).remove(&self.id);
    }
}

impl Metrics {
    pub(crate) fn new(version: &str) -> Self {
        let mut registry = Registry::with_prefix("kvasir_operator");
        let rounds = Family::default();
        registry.register("reconciles", "Rounds, by how they ended", rounds.clone());
        let failures = Family::default();
        registry.register(
            "reconcile_failures",
            "Rounds that didn't come to their end, by what couldn't be done",
            failures.clone(),
        );
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
            failures,
            round_seconds,
            requests,
            undone,
            watch_failures,
            leader,
            running: Arc::default(),
            services: OnceLock::new(),
        }
    }

    /// Adds the figures that are read at the moment of a scrape.
    pub(crate) fn observe(&self, services: Store<InferenceService>, cache: Arc<Cache>) {
        // Watched once in a process's life.
        self.services.set(services.clone()).ok();
        lock(&self.running.last).get_or_insert_with(Instant::now);
        let running = Arc::clone(&self.running);
        lock(&self.registry).register_collector(Box::new(Observed {
            services,
            cache,
            running,
        }));
    }

    /// There is news of a service.
    pub(crate) fn due(&self, service: &ObjectRef<InferenceService>) {
        lock(&self.running.due).insert(queued(service));
    }

    /// There was news of a service, which is gone.
    pub(crate) fn gone(&self, service: &ObjectRef<InferenceService>) {
        lock(&self.running.due).remove(&queued(service));
    }

    /// A round begins.
    pub(crate) fn round(&self, service: &ObjectRef<InferenceService>) -> Round<'_> {
        let id = self.running.next.fetch_add(1, Ordering::Relaxed);
        let begin = Instant::now();
        lock(&self.running.since).insert(id, begin);
        lock(&self.running.due).remove(&queued(service));
        *lock(&self.running.last) = Some(begin);
        Round {
            metrics: self,
            id,
            begin,
        }
    }

    /// How long the oldest round has been running.
    pub(crate) fn oldest_round(&self) -> Duration {
        let since = lock(&self.running.since);
        since.values().min().map_or(Duration::ZERO, Instant::elapsed)
    }

    /// How long no round has begun, where there are services to look at.
    pub(crate) fn idle(&self) -> Duration {
        let services = self.services.get().map(Store::state).unwrap_or_default();
        let some_live = services.iter().any(|s| s.metadata.deletion_timestamp.is_none());
        let last = lock(&self.running.last).filter(|_| some_live);
        last.map_or(Duration::ZERO, |last| last.elapsed())
    }

    /// A round didn't come to its end, because that couldn't be done.
    pub(crate) fn failed(&self, reason: &str) {
        let labels = vec![("reason", reason.to_owned())];
        self.failures.get_or_create(&labels).inc();
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
        let registry = lock(&self.registry);
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
    running: Arc<Running>,
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
        let help = "Services with news that wait for a round";
        let mut metric = encoder.encode_descriptor("queue_length", help, None, MetricType::Gauge)?;
        let waiting = lock(&self.running.due).len();
        let value = ConstGauge::new(i64::try_from(waiting).unwrap_or(i64::MAX));
        value.encode(metric.encode_family::<[(&str, &str); 0]>(&[])?)?;
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
            let mut states = BTreeMap::<String, i64>::new();
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
        information(&services, &mut encoder)?;
        restarts(&services, encoder)
    }
}

/// Whose a service is and what it serves, to put beside other figures: what a report adds up by tenant.
fn information(
    services: &[Arc<InferenceService>],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), std::fmt::Error> {
    let help = "A service with the tenant who owns it and the model that it serves; always 1";
    let mut metric = encoder.encode_descriptor("service_info", help, None, MetricType::Gauge)?;
    for service in services {
        let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
        let accepted = accepted::spec(service);
        let spec = accepted.as_deref().unwrap_or(&service.spec);
        let labels = [
            ("namespace", namespace.as_str()),
            ("service", name.as_str()),
            ("tenant", spec.tenant.as_deref().unwrap_or(&namespace)),
            ("model_name", spec.model.name.as_deref().unwrap_or(&name)),
        ];
        ConstGauge::new(1_i64).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> ObjectRef<InferenceService> {
        ObjectRef::new(name).within("team")
    }

    #[test]
    fn a_service_waits_once_until_its_round_begins_or_it_is_gone() {
        let metrics = Metrics::new("0");
        let (services, _) = kube::runtime::reflector::store();
        metrics.observe(services, Arc::default());
        let waits = |count: usize| {
            let line = format!("kvasir_operator_queue_length {count}\n");
            assert!(metrics.render().contains(&line), "{}", metrics.render());
        };
        waits(0);
        for name in ["a", "b", "a"] {
            metrics.due(&service(name));
        }
        waits(2);
        metrics.round(&service("a")).end(Outcome::Done);
        waits(1);
        metrics.gone(&service("b"));
        waits(0);
        assert_eq!(metrics.oldest_round(), Duration::ZERO);
    }

    #[test]
    fn a_service_is_told_with_its_tenant_and_its_model() {
        let metrics = Metrics::new("0");
        let (services, mut writer) = kube::runtime::reflector::store();
        metrics.observe(services, Arc::default());
        for (name, more) in [
            ("a", serde_json::json!({})),
            ("b", serde_json::json!({ "tenant": "research" })),
        ] {
            let mut object = serde_json::json!({
                "apiVersion": "kvasir.dev/v1alpha1",
                "kind": "InferenceService",
                "metadata": { "name": name, "namespace": "team" },
                "spec": { "model": { "source": { "pvc": { "claimName": "models" } } } },
            });
            let spec = object["spec"].as_object_mut().unwrap();
            spec.extend(more.as_object().unwrap().clone());
            let service: InferenceService = serde_json::from_value(object).unwrap();
            writer.apply_watcher_event(&kube::runtime::watcher::Event::Apply(service));
        }
        let text = metrics.render();
        for (name, tenant) in [("a", "team"), ("b", "research")] {
            let labels =
                format!("namespace=\"team\",service=\"{name}\",tenant=\"{tenant}\",model_name=\"{name}\"");
            let line = format!("kvasir_operator_service_info{{{labels}}} 1\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[test]
    fn no_round_is_missed_where_there_is_no_service() {
        let metrics = Metrics::new("0");
        assert_eq!(metrics.idle(), Duration::ZERO);
        let (services, mut writer) = kube::runtime::reflector::store();
        metrics.observe(services, Arc::default());
        assert_eq!(metrics.idle(), Duration::ZERO);
        let service: InferenceService = serde_json::from_value(serde_json::json!({
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": { "name": "a", "namespace": "team" },
            "spec": { "model": { "source": { "pvc": { "claimName": "models" } } } },
        }))
        .unwrap();
        writer.apply_watcher_event(&kube::runtime::watcher::Event::Apply(service));
        assert!(metrics.idle() > Duration::ZERO);
    }
}
