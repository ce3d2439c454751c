//! The port for probes and metrics, which clients don't reach: no credential is asked for, and nothing else is served there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};
use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::types::ModelInfo;
use kvasir_edge::host::{Host, Knock, ModelNames, Terms, Visit, Wanted};
use kvasir_edge::{Figures, Pipeline};

use crate::door::DoorHost;

/// Paths that are served.
const PATHS: [&str; 3] = ["/health", "/ready", "/metrics"];

/// What the port shows of the gateway.
pub(crate) struct Probes {
    pub(crate) door: Arc<DoorHost>,
    /// Whether the gateway has been told to stop.
    pub(crate) is_draining: Arc<AtomicBool>,
    /// Counts the requests of this port, which are no client's.
    pub(crate) figures: Figures,
}

#[async_trait]
impl Host for Probes {
    async fn enter(&self, knock: Knock<'_>) -> Result<Arc<dyn Visit>, ApiError> {
        if PATHS.contains(&knock.route.path) {
            return Ok(Arc::new(Probe));
        }
        Err(ApiError::new(
            ErrorKind::NotFound,
            format!("there is no route {} on this port", knock.route.path),
        ))
    }

    fn models(&self) -> Arc<[ModelNames]> {
        Arc::default()
    }

    fn model_info(&self, _name: &str) -> Option<Arc<ModelInfo>> {
        None
    }

    async fn health(&self) -> Result<(), ApiError> {
        self.door.health().await
    }

    async fn ready(&self) -> Result<(), ApiError> {
        if self.is_draining.load(Ordering::Acquire) {
            return Err(ApiError::new(
                ErrorKind::Unavailable,
                "the gateway is shutting down",
            ));
        }
        self.door.ready().await
    }

    async fn metrics(&self) -> Result<String, ApiError> {
        self.door.metrics().await
    }

    fn figures(&self) -> &Figures {
        &self.figures
    }
}

/// A probe or a scrape.
struct Probe;

#[async_trait]
impl Visit for Probe {
    fn sees_model(&self, _name: &str) -> bool {
        false
    }

    async fn pipeline(&self, _model: Option<&str>, _body_bytes: usize) -> Result<Pipeline, ApiError> {
        Err(ApiError::new(
            ErrorKind::NotFound,
            "no model is served on this port",
        ))
    }

    fn terms(&self, _wanted: Wanted<'_>) -> Result<Terms, ApiError> {
        Err(ApiError::new(
            ErrorKind::NotFound,
            "no model is served on this port",
        ))
    }

    fn answered(&self, _status: StatusCode, _headers: &mut HeaderMap) {}
}
