//! What all handlers share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use kvasir_api::{ApiError, ErrorKind};
use tokio_util::task::TaskTracker;

use crate::config::EdgeConfig;
use crate::pipeline::Pipeline;
use crate::routes::{ROUTES, Route};

/// Hex digits of the weights' digest in `system_fingerprint`.
const FINGERPRINT_DIGITS: usize = 8;

/// What all handlers share.
pub(crate) struct State {
    pub(crate) config: EdgeConfig,
    pub(crate) pipeline: Pipeline,
    /// Names that requests may use, the one that answers show first.
    pub(crate) model_names: Vec<String>,
    /// Seconds since 1970.
    pub(crate) started: u64,
    pub(crate) system_fingerprint: String,
    /// One token per inference request, held until its answer is out.
    pub(crate) in_flight: TaskTracker,
    draining: AtomicBool,
}

impl State {
    pub(crate) fn new(config: EdgeConfig, pipeline: Pipeline) -> Self {
        let info = pipeline.model_info();
        let mut model_names = config.served_model_names.clone();
        if model_names.is_empty() {
            model_names.push(info.model.clone());
        }
        let digest: String = info.weights_digest.chars().take(FINGERPRINT_DIGITS).collect();
        let system_fingerprint = format!(
            "kvasir-{}-{digest:0<FINGERPRINT_DIGITS$}",
            env!("CARGO_PKG_VERSION")
        );
        Self {
            config,
            pipeline,
            model_names,
            started: unix_seconds(),
            system_fingerprint,
            in_flight: TaskTracker::new(),
            draining: AtomicBool::new(false),
        }
    }

    /// The name that answers show.
    pub(crate) fn model_name(&self) -> &str {
        self.model_names.first().map_or("", String::as_str)
    }

    /// Refuses names of other models; no name is the default model.
    pub(crate) fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            return Ok(());
        };
        if self.model_names.iter().any(|name| name == model) {
            return Ok(());
        }
        let names = self.model_names.join(", ");
        let shown: String = model.chars().take(200).collect();
        let message = format!("the model `{shown}` does not exist; served: {names}");
        Err(ApiError::new(ErrorKind::NotFound, message).with_param("model"))
    }

    pub(crate) fn served_routes(&self) -> impl Iterator<Item = &'static Route> {
        ROUTES.iter().filter(|route| (route.is_served)(&self.config))
    }

    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

/// Seconds since 1970; 0 if the clock stands before.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
