//! One engine behind an edge, and the keys to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::types::{ErrorCode, LoadReport, ModelInfo};
use kvasir_client::{EngineClient, Recurring};

use super::{Host, Knock, ModelNames, Terms, Visit, Wanted};
use crate::config::EdgeConfig;
use crate::error::EdgeError;
use crate::gate::PROBE_TIMEOUT;
use crate::keys::Keys;
use crate::metrics::Figures;
use crate::pipeline::{Pipeline, PipelineOptions};

/// A dump of a large pool takes seconds; an engine whose process stands still never gives one.
const DUMP_TIMEOUT: Duration = Duration::from_secs(30);

/// One engine, and the keys to it.
pub(crate) struct OneEngine {
    engine: Arc<dyn EngineClient>,
    pipeline: Pipeline,
    info: Arc<ModelInfo>,
    models: Arc<[ModelNames]>,
    keys: Keys,
    max_stall: Duration,
    trouble: Mutex<Recurring>,
}

impl OneEngine {
    pub(crate) async fn connect(
        engine: Arc<dyn EngineClient>,
        config: &EdgeConfig,
        options: PipelineOptions,
    ) -> Result<Self, EdgeError> {
        let pipeline = Pipeline::connect(Arc::clone(&engine), options).await?;
        let info = Arc::new(pipeline.model_info().clone());
        let mut model_names = config.served_model_names.clone();
        if model_names.is_empty() {
            model_names.push(info.model.clone());
        }
        Ok(Self {
            engine,
            pipeline,
            info,
            models: Arc::new([model_names.into()]),
            keys: config.keys(),
            max_stall: config.max_stall,
            trouble: Mutex::default(),
        })
    }

    fn trouble(&self) -> MutexGuard<'_, Recurring> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Probes are public: where the engine is and what the connection said is for the log, not for the answer.
    async fn load_report(&self) -> Result<LoadReport, ApiError> {
        let unreachable = |reason: String| {
            if self.trouble().is_news(&reason, Instant::now()) {
                tracing::warn!(reason, "probes don't reach the engine");
            }
            ApiError::new(
                ErrorKind::Unavailable,
                "the engine can't be reached; this server's log says why",
            )
        };
        match tokio::time::timeout(PROBE_TIMEOUT, self.engine.load()).await {
            Ok(Ok(load)) => {
                self.trouble().is_over();
                Ok(load)
            }
            Ok(Err(error)) => Err(unreachable(error.message)),
            Err(_) => Err(unreachable(format!("no answer within {PROBE_TIMEOUT:?}"))),
        }
    }
}

#[async_trait]
impl Host for OneEngine {
    async fn enter(&self, knock: Knock<'_>) -> Result<Arc<dyn Visit>, ApiError> {
        self.keys.authorize(knock.route.scope, knock.headers)?;
        Ok(Arc::new(Guest {
            pipeline: self.pipeline.clone(),
        }))
    }

    fn models(&self) -> Arc<[ModelNames]> {
        Arc::clone(&self.models)
    }

    fn model_info(&self, _name: &str) -> Option<Arc<ModelInfo>> {
        Some(Arc::clone(&self.info))
    }

    /// The engine makes steps while there is work. A full queue is healthy (C18, C19), and so is an engine whose watchdog has failed stuck
    /// requests, until that turns out not to help.
    async fn health(&self) -> Result<(), ApiError> {
        let load = self.load_report().await?;
        if let Some(watchdog) = load.watchdog {
            return match watchdog.unhealthy {
                Some(reason) => Err(ApiError::new(ErrorKind::Unavailable, reason)),
                None => Ok(()),
            };
        }
        let bound = self.max_stall.as_micros();
        if u128::from(load.stalled_us) > bound {
            let message = format!(
                "the engine has work and completed no step for {} ms; the limit is {} ms",
                load.stalled_us / 1000,
                bound / 1000
            );
            return Err(ApiError::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    async fn ready(&self) -> Result<(), ApiError> {
        if self.load_report().await?.draining {
            return Err(ApiError::new(
                ErrorKind::Unavailable,
                "the server is shutting down",
            ));
        }
        Ok(())
    }

    /// Without an answer of the engine its figures are the last known ones.
    async fn metrics(&self) -> Result<String, ApiError> {
        let load = self.load_report().await.ok();
        let unwritten = |_| ApiError::new(ErrorKind::Internal, "the metrics could not be written");
        self.figures().render(load).map_err(unwritten)
    }

    fn figures(&self) -> &Figures {
        self.pipeline.figures()
    }

    async fn dump(&self, last_stall: bool) -> Result<Bytes, ApiError> {
        let Ok(dump) = tokio::time::timeout(DUMP_TIMEOUT, self.engine.dump(last_stall)).await else {
            let message = format!("the engine gave no dump within {DUMP_TIMEOUT:?}");
            return Err(ApiError::new(ErrorKind::Unavailable, message));
        };
        dump.map_err(|error| match error.code() {
            ErrorCode::InvalidRequest => ApiError::new(ErrorKind::NotFound, error.message),
            _ => ApiError::new(ErrorKind::Unavailable, error.message),
        })
    }
}

/// Whoever had a key, if one was needed.
struct Guest {
    pipeline: Pipeline,
}

#[async_trait]
impl Visit for Guest {
    fn sees_model(&self, _name: &str) -> bool {
        true
    }

    async fn pipeline(&self, _model: Option<&str>, _body_bytes: usize) -> Result<Pipeline, ApiError> {
        Ok(self.pipeline.clone())
    }

    fn terms(&self, wanted: Wanted<'_>) -> Result<Terms, ApiError> {
        Ok(Terms {
            max_tokens: None,
            priority: wanted.priority.unwrap_or(0),
        })
    }

    fn answered(&self, _status: StatusCode, _headers: &mut HeaderMap) {}
}
