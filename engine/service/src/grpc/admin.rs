//! The operator's port: load, drain, model info and metrics, and nothing that shows or takes tokens.

use axum::routing::get;
use futures::stream::Pending;
use kvasir_proto::engine::v1::engine_server::{Engine, EngineServer};
use kvasir_proto::engine::v1::{
    DrainRequest, DrainResponse, DumpChunk, GetDumpRequest, GetLoadRequest, GetModelInfoRequest,
    GetTextAssetsRequest, KvCacheUpdate, LoadReport, ModelInfo, SessionRequest, StepOutputs, TextAssetsChunk,
    WatchKvCacheRequest, WatchLoadRequest,
};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::Render;
use super::service::EngineService;
use crate::pages::METRICS_TYPE;

/// The port's calls and its page.
pub(super) fn routes(service: EngineService, metrics: Render) -> Routes {
    let page = move || async move { ([(http::header::CONTENT_TYPE, METRICS_TYPE)], metrics()) };
    let routes = Routes::new(EngineServer::new(Admin(service)));
    routes.into_axum_router().route("/metrics", get(page)).into()
}

/// The part of an engine that the operator may use.
#[derive(Debug)]
struct Admin(EngineService);

type Never<T> = Pending<Result<T, Status>>;

fn not_here<T>() -> Result<T, Status> {
    Err(Status::permission_denied(
        "the admin port serves load, drain, model info and metrics; everything else is for gateways, at the engine's gRPC port",
    ))
}

#[tonic::async_trait]
impl Engine for Admin {
    type SessionStream = Never<StepOutputs>;
    type GetTextAssetsStream = Never<TextAssetsChunk>;
    type GetDumpStream = Never<DumpChunk>;
    type WatchLoadStream = <EngineService as Engine>::WatchLoadStream;
    type WatchKvCacheStream = Never<KvCacheUpdate>;

    async fn session(
        &self,
        _: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        not_here()
    }

    async fn get_model_info(
        &self,
        request: Request<GetModelInfoRequest>,
    ) -> Result<Response<ModelInfo>, Status> {
        self.0.get_model_info(request).await
    }

    async fn get_text_assets(
        &self,
        _: Request<GetTextAssetsRequest>,
    ) -> Result<Response<Self::GetTextAssetsStream>, Status> {
        not_here()
    }

    async fn get_load(&self, request: Request<GetLoadRequest>) -> Result<Response<LoadReport>, Status> {
        self.0.get_load(request).await
    }

    async fn get_dump(&self, _: Request<GetDumpRequest>) -> Result<Response<Self::GetDumpStream>, Status> {
        not_here()
    }

    async fn watch_load(
        &self,
        request: Request<WatchLoadRequest>,
    ) -> Result<Response<Self::WatchLoadStream>, Status> {
        self.0.watch_load(request).await
    }

    async fn watch_kv_cache(
        &self,
        _: Request<WatchKvCacheRequest>,
    ) -> Result<Response<Self::WatchKvCacheStream>, Status> {
        not_here()
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        self.0.drain(request).await
    }
}
