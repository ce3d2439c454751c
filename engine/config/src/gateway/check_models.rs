//! What must hold for each model: the file's first one, whose fields are the file's own, and those under `models`.

use std::collections::{BTreeMap, BTreeSet};

use super::check::Checker;
use super::engines::{EnginesConfig, RevisionConfig, RoutingConfig};
use super::fault::quoted;
use super::file::GatewayConfig;

/// Models beside the first one. Each has connections, queues and figures of its own.
pub const MAX_MODELS: usize = 64;

/// Names of one model.
const MAX_NAMES: usize = 1000;

impl<'a> Checker<'a> {
    /// All models: their names, engines, revisions and routing.
    pub(super) fn models(&mut self, config: &'a GatewayConfig) {
        let num_models = config.models.len();
        self.require(num_models <= MAX_MODELS, "models", || {
            format!(
                "{num_models} are more than {MAX_MODELS} beside the first one; each has queues and figures of its own, so run \
                 several gateways"
            )
        });
        self.model("", &config.engines, &config.revisions, &config.routing);
        let mut names = Names::default();
        let is_first_named = config.models.is_empty() || !config.served_model_names.is_empty();
        self.require(is_first_named, "servedModelNames", || {
            "is needed beside models: the first model must be told from the others before its engines say what it is".to_owned()
        });
        if !config.models.is_empty() {
            names.check(self, "servedModelNames", &config.served_model_names);
        }
        for (place, model) in config.models.iter().enumerate() {
            let prefix = format!("models[{place}].");
            let path = format!("{prefix}servedModelNames");
            let num_names = model.served_model_names.len();
            self.require((1..=MAX_NAMES).contains(&num_names), &path, || {
                format!("found {num_names} names, expected 1 to {MAX_NAMES}")
            });
            names.check(self, &path, &model.served_model_names);
            self.model(&prefix, &model.engines, &model.revisions, &model.routing);
        }
    }

    /// `prefix` is the path of the mapping that has these fields, with a dot at its end unless it's empty.
    fn model(
        &mut self,
        prefix: &str,
        engines: &EnginesConfig,
        revisions: &[RevisionConfig],
        routing: &RoutingConfig,
    ) {
        self.engines(&format!("{prefix}engines"), engines);
        self.revisions(&format!("{prefix}revisions"), revisions);
        let is_header = |name: &str| {
            (1..=64).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
        };
        self.require(
            routing.session_header.as_deref().is_none_or(is_header),
            &format!("{prefix}routing.sessionHeader"),
            || "must be 1 to 64 letters, digits and -".to_owned(),
        );
    }

    fn engines(&mut self, path: &str, engines: &EnginesConfig) {
        let ways = [
            !engines.fixed.is_empty(),
            engines.dns.is_some(),
            engines.endpoint_slices.is_some(),
        ];
        let num_ways = ways.into_iter().filter(|way| *way).count();
        self.require(num_ways == 1, path, || {
            "give exactly one of static, dns and endpointSlices".to_owned()
        });
        let mut seen = BTreeSet::new();
        for (place, engine) in engines.fixed.iter().enumerate() {
            let is_new = seen.insert(engine.address);
            self.require(is_new, &format!("{path}.static[{place}].address"), || {
                format!("{} is taken", engine.address)
            });
        }
        if let Some(dns) = &engines.dns {
            self.present(&format!("{path}.dns.name"), &dns.name);
        }
        let mut fixed = engines.fixed.iter();
        let is_local = num_ways == 1
            && !engines.fixed.is_empty()
            && fixed.all(|engine| engine.address.ip().is_loopback());
        self.require(engines.tls.is_some() || is_local, &format!("{path}.tls"), || {
            "is needed unless all engines are static and on loopback addresses".to_owned()
        });
        if let Some(tls) = &engines.tls {
            self.require(!tls.names.is_empty(), &format!("{path}.tls.names"), || {
                "at least one is needed, or any holder of a certificate could pose as an engine".to_owned()
            });
        }
    }

    fn revisions(&mut self, path: &str, revisions: &[RevisionConfig]) {
        let mut seen = BTreeSet::new();
        for (place, revision) in revisions.iter().enumerate() {
            let path = format!("{path}[{place}].name");
            self.present(&path, &revision.name);
            self.require(seen.insert(&revision.name), &path, || {
                format!("{} is taken", quoted(&revision.name))
            });
        }
        let has_weight = revisions.is_empty() || revisions.iter().any(|revision| revision.weight > 0);
        self.require(has_weight, path, || {
            "at least one needs a weight above 0".to_owned()
        });
    }
}

/// The names of all models so far, and where they stand.
#[derive(Default)]
struct Names<'a>(BTreeMap<&'a str, String>);

impl<'a> Names<'a> {
    fn check(&mut self, checker: &mut Checker<'_>, path: &str, names: &'a [String]) {
        for (place, name) in names.iter().enumerate() {
            let path = format!("{path}[{place}]");
            checker.present(&path, name);
            let taken = self.0.get(name.as_str());
            checker.require(taken.is_none(), &path, || {
                let other = taken.map(String::as_str).unwrap_or_default();
                format!("{} is taken by {other}", quoted(name))
            });
            self.0.entry(name).or_insert(path);
        }
    }
}
