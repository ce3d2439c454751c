//! The gateway's own figures. Tenants are labels, so their number is bounded: those beyond it share one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use kvasir_gateway_core::limits::{Cost, Mode};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::door::Audit;
use crate::store::Accounts;

/// Most tenants with a label of their own.
const MAX_TENANT_LABELS: usize = 200;

/// The label of all others, and of requests of nobody: no tenant can have these names, because of the underscore.
const OTHER_TENANTS: &str = "_other";
const NOBODY: &str = "_none";

/// What all names of figures begin with.
pub(crate) const PREFIX: &str = "kvasir_gateway";

pub(crate) type Labels<const N: usize> = [(&'static str, String); N];
pub(crate) type Level = Gauge<f64, AtomicU64>;

/// All figures of a gateway that aren't one model's, which are in [`PoolMetrics`](crate::pool_metrics::PoolMetrics).
pub(crate) struct GatewayMetrics {
    registry: Registry,
    labelled: Mutex<BTreeSet<String>>,
    requests: Family<Labels<3>, Counter>,
    tokens: Family<Labels<2>, Counter>,
    reloads: Family<Labels<1>, Counter>,
    reload_ok: Level,
    restart_needed: Family<Labels<1>, Level>,
    /// Settings that it was said of, at any time.
    restart_said: Mutex<BTreeSet<&'static str>>,
    levels: Levels,
}

/// What is read at each scrape.
struct Levels {
    store_decides: Level,
    store_failures: Level,
    audit_dropped: Level,
    certificate_end: Family<Labels<1>, Level>,
}

impl GatewayMetrics {
    pub(crate) fn new() -> Self {
        let mut root = Registry::with_prefix(PREFIX);
        let registry = &mut root;
        let reload_ok = level(
            registry,
            "config_last_reload_successful",
            "1 if the newest configuration is in effect",
        );
        reload_ok.set(1.0);
        let reloads = "Changed configurations, by what became of them";
        let restart_needed = Family::<Labels<1>, Level>::default();
        registry.register(
            "config_restart_needed",
            "1 for a setting of the configuration file that takes effect at the next start",
            restart_needed.clone(),
        );
        Self {
            restart_needed,
            restart_said: Mutex::default(),
            labelled: Mutex::default(),
            requests: counters(registry, "requests", "Requests by tenant, decision and reason"),
            tokens: counters(registry, "tokens", "Tokens that were settled, by tenant and kind"),
            reloads: counters(registry, "config_reloads", reloads),
            reload_ok,
            levels: Levels::register(registry),
            registry: root,
        }
    }

    pub(crate) fn request_ended(&self, tenant: Option<&str>, decision: &'static str, reason: &'static str) {
        let labels = [
            ("tenant", self.label(tenant)),
            ("decision", decision.to_owned()),
            ("reason", reason.to_owned()),
        ];
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn tokens(&self, tenant: Option<&str>, cost: Cost, cached: u64) {
        let kinds = [
            ("input", cost.input_tokens),
            ("output", cost.output_tokens),
            ("cached", cached),
        ];
        for (kind, amount) in kinds.into_iter().filter(|(_, amount)| *amount > 0) {
            let labels = [("tenant", self.label(tenant)), ("kind", kind.to_owned())];
            self.tokens.get_or_create(&labels).inc_by(amount);
        }
    }

    pub(crate) fn reloaded(&self, is_ok: bool, is_all_ok: bool) {
        let result = if is_ok { "applied" } else { "refused" };
        self.reloads.get_or_create(&[("result", result.to_owned())]).inc();
        self.reload_ok.set(f64::from(u8::from(is_all_ok)));
    }

    /// Settings that differ from those in effect until the next start.
    pub(crate) fn waiting_for_restart(&self, settings: &[&'static str]) {
        let mut said = self.restart_said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend(settings);
        for setting in said.iter() {
            let labels = [("setting", (*setting).to_owned())];
            let is_waiting = settings.contains(setting);
            self.restart_needed
                .get_or_create(&labels)
                .set(f64::from(u8::from(is_waiting)));
        }
    }

    /// The last second of the certificate that clients are shown.
    pub(crate) fn certificate_end(&self, not_after: i64) {
        let labels = [("certificate", "server".to_owned())];
        self.levels
            .certificate_end
            .get_or_create(&labels)
            .set(not_after as f64);
    }

    /// All figures as text.
    pub(crate) fn render(&self, accounts: &Accounts, audit: &Audit) -> Result<String, fmt::Error> {
        self.levels.read(accounts);
        self.levels.audit_dropped.set(audit.num_dropped() as f64);
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn label(&self, tenant: Option<&str>) -> String {
        let Some(tenant) = tenant else {
            return NOBODY.to_owned();
        };
        let mut labelled = self.labelled.lock().unwrap_or_else(PoisonError::into_inner);
        if labelled.contains(tenant) {
            return tenant.to_owned();
        }
        if labelled.len() >= MAX_TENANT_LABELS {
            return OTHER_TENANTS.to_owned();
        }
        labelled.insert(tenant.to_owned());
        tenant.to_owned()
    }
}

impl Levels {
    fn register(registry: &mut Registry) -> Self {
        Self {
            store_decides: level(
                registry,
                "limits_shared",
                "1 while limits are shared through a store, 0 while this gateway enforces its share",
            ),
            audit_dropped: level(
                registry,
                "audit_dropped_lines",
                "Lines of the audit log that were never written",
            ),
            store_failures: level(
                registry,
                "limit_store_failures",
                "Calls of the limit store that failed",
            ),
            certificate_end: certificate_ends(registry),
        }
    }

    fn read(&self, accounts: &Accounts) {
        let accounts = accounts.figures();
        let is_shared = accounts.has_store && accounts.mode == Mode::Store;
        self.store_decides.set(f64::from(u8::from(is_shared)));
        self.store_failures.set(accounts.num_failures as f64);
    }
}

/// Of certificates that are reloaded.
pub(crate) fn certificate_ends(registry: &mut Registry) -> Family<Labels<1>, Level> {
    let ends: Family<Labels<1>, Level> = Family::default();
    registry.register(
        "certificate_not_after_seconds",
        "Last second in which a certificate is valid, since 1970",
        ends.clone(),
    );
    ends
}

pub(crate) fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

pub(crate) fn counters<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
) -> Family<Labels<N>, Counter> {
    let family = Family::default();
    registry.register(name, help, family.clone());
    family
}

pub(crate) fn level(registry: &mut Registry, name: &str, help: &str) -> Level {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_beyond_the_bound_share_a_label() {
        let metrics = GatewayMetrics::new();
        for number in 0..MAX_TENANT_LABELS + 50 {
            metrics.request_ended(Some(&format!("t{number}")), "allowed", "ok");
        }
        metrics.request_ended(None, "denied", "no_credential");
        assert_eq!(metrics.label(Some("t0")), "t0");
        assert_eq!(metrics.label(Some("t249")), OTHER_TENANTS);
        let mut text = String::new();
        prometheus_text::encode(&mut text, &metrics.registry).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("kvasir_gateway_requests_total{"));
        assert_eq!(lines.count(), MAX_TENANT_LABELS + 2);
        assert!(text.contains("tenant=\"_other\",decision=\"allowed\",reason=\"ok\"} 50"));
    }
}
