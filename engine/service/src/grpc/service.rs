//! The calls of `kvasir.engine.v1.Engine`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kvasir_proto::engine::v1::engine_server::Engine;
use kvasir_proto::engine::v1::{
    DrainRequest, DrainResponse, DumpChunk, Error, GetDumpRequest, GetLoadRequest, GetModelInfoRequest,
    GetTextAssetsRequest, KvCacheUpdate, LoadReport, ModelInfo, SessionRequest, StepOutputs, TextAssetsChunk,
    WatchKvCacheRequest, WatchLoadRequest,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::session;
use crate::shared::Shared;

/// Bytes of one chunk on the wire, below the 4 MiB that gRPC peers accept by default.
const DUMP_CHUNK_BYTES: usize = 1 << 20;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct EngineService {
    shared: Arc<Shared>,
    sessions: Arc<Semaphore>,
    stop: CancellationToken,
}

impl EngineService {
    pub(super) fn new(shared: Arc<Shared>, stop: CancellationToken) -> Self {
        let sessions = Arc::new(Semaphore::new(shared.limits.max_sessions));
        Self {
            shared,
            sessions,
            stop,
        }
    }

    /// Sends what a stream gives, until the server ends.
    fn until_stopped<T: Send + 'static>(
        &self,
        news: impl Stream<Item = T> + Send + 'static,
    ) -> Response<Answers<T>> {
        let stopped = self.stop.clone().cancelled_owned();
        Response::new(Box::pin(news.map(Ok).take_until(stopped)))
    }
}

fn too_many(error: &Error) -> Status {
    Status::resource_exhausted(&*error.message)
}

#[tonic::async_trait]
impl Engine for EngineService {
    type SessionStream = Answers<StepOutputs>;
    type GetTextAssetsStream = Answers<TextAssetsChunk>;
    type GetDumpStream = Answers<DumpChunk>;
    type WatchLoadStream = Answers<LoadReport>;
    type WatchKvCacheStream = Answers<KvCacheUpdate>;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let place = Arc::clone(&self.sessions).try_acquire_owned().map_err(|_| {
            let limit = self.shared.limits.max_sessions;
            Status::resource_exhausted(format!("{limit} sessions are open, which is the limit"))
        })?;
        let outputs = session::open(
            Arc::clone(&self.shared),
            request.into_inner(),
            self.stop.clone(),
            place,
        );
        Ok(Response::new(Box::pin(outputs)))
    }

    async fn get_model_info(&self, _: Request<GetModelInfoRequest>) -> Result<Response<ModelInfo>, Status> {
        Ok(Response::new(self.shared.model.clone()))
    }

    async fn get_text_assets(
        &self,
        request: Request<GetTextAssetsRequest>,
    ) -> Result<Response<Self::GetTextAssetsStream>, Status> {
        let chunks = self
            .shared
            .assets_for(&request.into_inner().digest)
            .map_err(Status::failed_precondition)?;
        // The chunks share their bytes with the engine's.
        let chunks: Vec<_> = chunks.iter().cloned().map(Ok).collect();
        Ok(Response::new(Box::pin(futures::stream::iter(chunks))))
    }

    async fn get_load(&self, _: Request<GetLoadRequest>) -> Result<Response<LoadReport>, Status> {
        Ok(Response::new(self.shared.load_report()))
    }

    async fn get_dump(
        &self,
        request: Request<GetDumpRequest>,
    ) -> Result<Response<Self::GetDumpStream>, Status> {
        let dump = self.shared.dump(request.into_inner().last_stall).await;
        let mut rest = dump.map_err(|error| Status::not_found(error.message))?;
        let chunks = std::iter::from_fn(move || {
            let data = rest.split_to(rest.len().min(DUMP_CHUNK_BYTES));
            (!data.is_empty()).then_some(Ok(DumpChunk { data }))
        });
        Ok(Response::new(Box::pin(futures::stream::iter(chunks))))
    }

    async fn watch_load(
        &self,
        _: Request<WatchLoadRequest>,
    ) -> Result<Response<Self::WatchLoadStream>, Status> {
        let reports = self.shared.watch_load().map_err(|error| too_many(&error))?;
        Ok(self.until_stopped(reports))
    }

    async fn watch_kv_cache(
        &self,
        request: Request<WatchKvCacheRequest>,
    ) -> Result<Response<Self::WatchKvCacheStream>, Status> {
        let updates = self.shared.watch_kv_cache(request.into_inner().resume_after);
        Ok(self.until_stopped(updates.map_err(|error| too_many(&error))?))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        let deadline = Duration::from_millis(request.into_inner().deadline_ms);
        let remaining = tokio::select! {
            remaining = self.shared.drain(deadline) => remaining,
            () = self.stop.cancelled() => *self.shared.live.borrow(),
        };
        Ok(Response::new(DrainResponse { remaining }))
    }
}
