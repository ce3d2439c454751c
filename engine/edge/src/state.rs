//! What all handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::types::ModelInfo;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::EdgeConfig;
use crate::gate::UNKNOWN_MODEL;
use crate::host::{Host, ModelNames, Visit};
use crate::read::BodyBudget;
use crate::routes::{ROUTES, Route};

/// Hex digits of the weights' digest in `system_fingerprint`.
const FINGERPRINT_DIGITS: usize = 8;

/// A served model that a request means.
#[derive(Clone, Debug)]
pub(crate) struct Meant {
    /// What the request calls it.
    pub(crate) name: String,
    /// What answers call it.
    pub(crate) shown: String,
}

/// What all handlers share.
pub(crate) struct State {
    pub(crate) config: EdgeConfig,
    pub(crate) host: Arc<dyn Host>,
    /// Seconds since 1970.
    pub(crate) started: u64,
    /// One token per inference request, held until its answer is out.
    pub(crate) in_flight: TaskTracker,
    pub(crate) bodies: BodyBudget,
    /// Cancelled when the time to drain is over.
    pub(crate) cut: CancellationToken,
    /// Set a while before `draining`: connections end with their next answers.
    leaving: AtomicBool,
    draining: AtomicBool,
}

impl State {
    pub(crate) fn new(config: EdgeConfig, host: Arc<dyn Host>) -> Self {
        Self {
            bodies: BodyBudget::new(config.max_bodies_bytes),
            config,
            host,
            started: unix_seconds(),
            in_flight: TaskTracker::new(),
            cut: CancellationToken::new(),
            leaving: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }
    }

    /// Whether no model has a name so far.
    pub(crate) fn is_nothing_known(&self) -> bool {
        self.host.models().iter().all(|names| names.is_empty())
    }

    /// The served model that a request means; no name is the first one that this client sees. Refuses names of other models, and of those
    /// that don't exist for this client.
    pub(crate) fn check_model(&self, visit: &dyn Visit, model: Option<&str>) -> Result<Meant, ApiError> {
        let models = self.host.models();
        let names = || {
            models
                .iter()
                .flat_map(|names| names.iter().map(move |name| (name, names)))
        };
        let mut visible = names().filter(|(name, _)| visit.sees_model(name));
        let meant = |(name, names): (&String, &ModelNames)| Meant {
            name: name.clone(),
            shown: names.first().cloned().unwrap_or_default(),
        };
        let no_model = |message: String| {
            ApiError::new(ErrorKind::NotFound, message)
                .with_param("model")
                .because(UNKNOWN_MODEL)
        };
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            return visible.next().map(meant).ok_or_else(|| {
                if let Some((served, _)) = names().next() {
                    visit.misses_model(served, true);
                }
                no_model("there is no model here".to_owned())
            });
        };
        if let Some(found) = visible.clone().find(|(name, _)| *name == model) {
            return Ok(meant(found));
        }
        let shown: String = model.chars().take(200).collect();
        visit.misses_model(&shown, names().any(|(name, _)| name == model));
        let visible: Vec<&str> = visible.map(|(name, _)| name.as_str()).collect();
        Err(no_model(format!(
            "the model `{shown}` does not exist; served: {}",
            visible.join(", ")
        )))
    }

    pub(crate) fn served_routes(&self) -> impl Iterator<Item = &'static Route> {
        ROUTES.iter().filter(|route| route.is_served(&self.config))
    }

    pub(crate) fn start_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

/// What answers name the model's state by.
pub(crate) fn system_fingerprint(info: &ModelInfo) -> String {
    let digest: String = info.weights_digest.chars().take(FINGERPRINT_DIGITS).collect();
    format!(
        "kvasir-{}-{digest:0<FINGERPRINT_DIGITS$}",
        env!("CARGO_PKG_VERSION")
    )
}

/// Seconds since 1970; 0 if the clock stands before.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
