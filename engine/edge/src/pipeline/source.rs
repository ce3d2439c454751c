//! Where tokens come from.

use std::sync::Arc;

use async_trait::async_trait;
use kvasir_api::ApiError;
use kvasir_client::types::GenerateRequest;
use kvasir_client::{EngineClient, OutputStream};

use super::engine_error;

/// Runs the requests of a [`Pipeline`](super::Pipeline): an engine, or something that chooses one for each request.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Starts a request. Dropping the stream ends it.
    ///
    /// # Errors
    /// What the client is told.
    async fn generate(&self, request: GenerateRequest) -> Result<OutputStream, ApiError>;

    /// Starts the requests of one call, in their order: all or none.
    ///
    /// # Errors
    /// What the client is told.
    async fn generate_all(&self, requests: Vec<GenerateRequest>) -> Result<Vec<OutputStream>, ApiError> {
        let mut all = Vec::with_capacity(requests.len());
        for request in requests {
            all.push(self.generate(request).await?);
        }
        Ok(all)
    }

    /// Ends one sequence of a request, or all of them: it has what was asked for. Unknown ids are ignored.
    fn abort(&self, request_id: &str, index: Option<u32>);

    /// A request is given up; its stream is dropped next. For the log.
    fn given_up(&self, error: &ApiError) {
        let _ = error;
    }
}

/// One engine.
pub(super) struct EngineSource(pub(super) Arc<dyn EngineClient>);

#[async_trait]
impl Source for EngineSource {
    async fn generate(&self, request: GenerateRequest) -> Result<OutputStream, ApiError> {
        self.0
            .generate(request)
            .await
            .map_err(|error| engine_error(&error))
    }

    fn abort(&self, request_id: &str, index: Option<u32>) {
        self.0.abort(request_id, index);
    }
}
