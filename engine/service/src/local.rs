//! The client for an edge in the same process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use kvasir_client::types::{Error, ErrorCode, GenerateRequest, KvCachePosition, LoadReport, ModelInfo};
use kvasir_client::{
    EngineClient, KvCacheStream, LoadStream, OutputStream, TextAssetFiles, assets, invalid, output_buffer,
    refusal,
};
use tokio::sync::oneshot;

use crate::names::Names;
use crate::shared::Shared;
use crate::sink::Sink;

/// See [`Engine::client`](crate::Engine::client).
#[derive(Debug)]
pub(crate) struct LocalClient {
    shared: Arc<Shared>,
    names: Arc<Names>,
}

impl LocalClient {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let names = Arc::new(Names::new(shared.limits.max_live_requests));
        Self { shared, names }
    }
}

#[async_trait]
impl EngineClient for LocalClient {
    async fn model_info(&self) -> Result<ModelInfo, Error> {
        Ok(self.shared.model.clone())
    }

    async fn text_assets(&self, digest: &str) -> Result<TextAssetFiles, Error> {
        let mut assembler = assets::Assembler::default();
        let internal = |error: assets::AssetError| refusal(ErrorCode::Internal, error.to_string());
        for chunk in self
            .shared
            .assets_for(digest)
            .map_err(|message| invalid("digest", message))?
        {
            assembler.push(chunk).map_err(internal)?;
        }
        assembler.finish(digest).map_err(internal)
    }

    async fn generate(&self, request: GenerateRequest) -> Result<OutputStream, Error> {
        let (request, place) = self.shared.prepare(&self.names, request)?;
        let (key, id) = (place.key, place.request_id.clone());
        // From here on, dropping the stream ends the request, also while it waits for its admission.
        let on_drop = {
            let (shared, names, id) = (Arc::clone(&self.shared), Arc::clone(&self.names), id.clone());
            move || {
                if names.release(&id, key) {
                    shared.abort(key, None);
                }
            }
        };
        let (outputs, stream) = output_buffer(&id, request.n, self.shared.limits.output_buffer, on_drop);
        let (admission, admitted) = oneshot::channel();
        let sink = Sink::Local {
            outputs,
            admission: Some(admission),
        };
        self.shared.submit(request, place, sink)?;
        admitted
            .await
            .map_err(|_| refusal(ErrorCode::Internal, "the engine failed while it took the request"))??;
        Ok(Box::pin(stream))
    }

    fn abort(&self, request_id: &str, index: Option<u32>) {
        if let Some(key) = self.names.key(request_id) {
            self.shared.abort(key, index);
        }
    }

    async fn load(&self) -> Result<LoadReport, Error> {
        Ok(self.shared.load_report())
    }

    async fn dump(&self, last_stall: bool) -> Result<Bytes, Error> {
        self.shared.dump(last_stall).await
    }

    async fn watch_load(&self) -> Result<LoadStream, Error> {
        Ok(Box::pin(self.shared.watch_load()?.map(Ok)))
    }

    async fn watch_kv_cache(&self, resume_after: Option<KvCachePosition>) -> Result<KvCacheStream, Error> {
        Ok(Box::pin(self.shared.watch_kv_cache(resume_after)?.map(Ok)))
    }

    async fn drain(&self, deadline: Duration) -> Result<u32, Error> {
        Ok(self.shared.drain(deadline).await)
    }
}
