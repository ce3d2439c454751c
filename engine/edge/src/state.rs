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
use crate::host::{Host, Visit};
use crate::read::BodyBudget;
use crate::routes::{ROUTES, Route};

/// Hex digits of the weights' digest in `system_fingerprint`.
const FINGERPRINT_DIGITS: usize = 8;

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

    /// The name that answers show.
    pub(crate) fn model_name(&self) -> String {
        self.host.model_names().first().cloned().unwrap_or_default()
    }

    /// The served name that a request means; no name is the default model. Refuses names of other models, and of those that don't exist for
    /// this client.
    pub(crate) fn check_model(&self, visit: &dyn Visit, model: Option<&str>) -> Result<String, ApiError> {
        let names = self.host.model_names();
        let mut visible = names.iter().filter(|name| visit.sees_model(name));
        let no_model = |message: String| {
            ApiError::new(ErrorKind::NotFound, message)
                .with_param("model")
                .because(UNKNOWN_MODEL)
        };
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            let first = visible.next().cloned();
            return first.ok_or_else(|| {
                if let Some(served) = names.first() {
                    visit.misses_model(served, true);
                }
                no_model("there is no model here".to_owned())
            });
        };
        if let Some(name) = visible.clone().find(|name| *name == model) {
            return Ok(name.clone());
        }
        let shown: String = model.chars().take(200).collect();
        visit.misses_model(&shown, names.iter().any(|name| name == model));
        let visible: Vec<&str> = visible.map(String::as_str).collect();
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
