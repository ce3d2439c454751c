//! The engine behind gRPC.
//!
//! One session per connection carries all requests. When it breaks, its requests end with an error of code UNAVAILABLE, and the
//! session is opened again; nothing is sent twice, because only the edge knows whether tokens already reached a user.

mod connector;
mod routes;
mod session;
mod target;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryFutureExt};
use kvasir_proto::engine::v1::engine_client::EngineClient as Stub;
use prost::Message;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;

use self::session::{Link, Session};
use self::target::Target;
use crate::assets::{self, TextAssetFiles};
use crate::error::{from_status, invalid, refusal};
use crate::types::{
    DrainRequest, Error, ErrorCode, GenerateRequest, GetDumpRequest, GetLoadRequest, GetModelInfoRequest,
    GetTextAssetsRequest, KvCachePosition, LoadReport, ModelInfo, WatchKvCacheRequest, WatchLoadRequest,
};
use crate::{
    EngineClient, KvCacheStream, LoadStream, MAX_OUTPUT_BYTES, MAX_REQUEST_BYTES, MAX_REQUEST_ID_BYTES,
    MAX_SEQUENCES_PER_REQUEST, OutputStream, output_buffer,
};

pub use self::connector::{Dial, Dialled};
pub use self::target::TargetError;

/// How long a call that the engine answers from memory may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a transfer of text assets may take.
const ASSETS_TIMEOUT: Duration = Duration::from_mins(2);

/// Largest dump that is taken; recordings of a hundred thousand inputs have some 100 MB.
const MAX_DUMP_BYTES: usize = 1 << 30;

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct GrpcClientOptions {
    /// Outputs that a request's buffer holds; a reader that falls further behind loses its request.
    pub output_buffer: usize,
    /// Live requests of this client; more are refused.
    pub max_live_requests: usize,
}

impl Default for GrpcClientOptions {
    fn default() -> Self {
        Self {
            output_buffer: 4096,
            max_live_requests: 4096,
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The target can't be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The engine doesn't answer.
    #[error("the engine at {target} can't be reached: {reason}")]
    Unreachable {
        /// Where.
        target: String,
        /// What the last attempt said.
        reason: String,
    },
}

/// A client of an engine process. Dropping it and all of its streams ends the session.
#[derive(Debug)]
pub struct GrpcClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    stub: Stub<Channel>,
    session: Arc<Session>,
    options: GrpcClientOptions,
    _task: AbortOnDropHandle<()>,
}

impl GrpcClient {
    /// Connects to `http://127.0.0.1:PORT`, another loopback address, or `unix:/PATH`, with default limits.
    ///
    /// # Errors
    /// If the target is refused or nothing answers there.
    pub async fn connect(target: &str) -> Result<Self, ConnectError> {
        Self::connect_with(target, GrpcClientOptions::default()).await
    }

    /// Connects with other limits.
    ///
    /// # Errors
    /// As `connect`.
    pub async fn connect_with(target: &str, options: GrpcClientOptions) -> Result<Self, ConnectError> {
        Self::over(target, connector::channel(&Target::parse(target)?), options).await
    }

    /// Connects through whatever `dial` opens, which answers for the security of the connection. `name` is for messages.
    ///
    /// # Errors
    /// If nothing answers there.
    pub async fn connect_through(
        name: &str,
        dial: Arc<dyn Dial>,
        options: GrpcClientOptions,
    ) -> Result<Self, ConnectError> {
        Self::over(name, connector::dialled(dial), options).await
    }

    async fn over(target: &str, channel: Channel, options: GrpcClientOptions) -> Result<Self, ConnectError> {
        let stub = Stub::new(channel)
            .max_decoding_message_size(MAX_OUTPUT_BYTES)
            .max_encoding_message_size(MAX_REQUEST_BYTES + 1024);
        let session = Arc::new(Session::new(target));
        let task = tokio::spawn({
            let (session, stub) = (Arc::clone(&session), stub.clone());
            async move { session.run(stub).await }
        });
        let client = Self {
            inner: Arc::new(Inner {
                stub,
                session,
                options,
                _task: AbortOnDropHandle::new(task),
            }),
        };
        let mut link = client.inner.session.link();
        let first = tokio::time::timeout(CALL_TIMEOUT, link.wait_for(|link| *link != Link::Connecting)).await;
        let reason = match first {
            Ok(Ok(state)) => match &*state {
                Link::Open => None,
                Link::Lost(reason) => Some(reason.clone()),
                Link::Connecting => Some("still connecting".to_owned()),
            },
            Ok(Err(_)) => Some("the session's task ended".to_owned()),
            Err(_) => Some(format!("no answer within {} s", CALL_TIMEOUT.as_secs())),
        };
        match reason {
            None => Ok(client),
            Some(reason) => Err(ConnectError::Unreachable {
                target: target.to_owned(),
                reason,
            }),
        }
    }

    /// Whether a session is open now.
    pub fn is_connected(&self) -> bool {
        *self.inner.session.link().borrow() == Link::Open
    }

    /// Resolves when a session is open.
    pub async fn connected(&self) {
        // It fails only when the sender is gone, and `self` holds it.
        drop(
            self.inner
                .session
                .link()
                .wait_for(|link| *link == Link::Open)
                .await,
        );
    }

    /// Resolves when no session is open.
    pub async fn disconnected(&self) {
        drop(
            self.inner
                .session
                .link()
                .wait_for(|link| matches!(link, Link::Lost(_)))
                .await,
        );
    }
}

impl Inner {
    /// Makes a call with a deadline.
    async fn call<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = Result<T, tonic::Status>> + Send,
    ) -> Result<T, Error> {
        match tokio::time::timeout(deadline, call).await {
            Ok(answer) => answer.map_err(|status| from_status(&status)),
            Err(_) => Err(refusal(
                ErrorCode::Unavailable,
                format!("the engine didn't answer within {} s", deadline.as_secs()),
            )),
        }
    }

    fn drop_request(&self, serial: u64, request_id: &str) {
        if self
            .session
            .with_routes(|routes| routes.remove(serial, request_id))
        {
            self.session.abort(routes::wire_id(request_id, serial), None);
        }
    }
}

#[async_trait]
impl EngineClient for GrpcClient {
    async fn model_info(&self) -> Result<ModelInfo, Error> {
        let mut stub = self.inner.stub.clone();
        let answer = self
            .inner
            .call(CALL_TIMEOUT, async {
                stub.get_model_info(GetModelInfoRequest {}).await
            })
            .await?;
        Ok(answer.into_inner())
    }

    async fn text_assets(&self, digest: &str) -> Result<TextAssetFiles, Error> {
        let mut stub = self.inner.stub.clone();
        let request = GetTextAssetsRequest {
            digest: digest.to_owned(),
        };
        let broken = |error: assets::AssetError| tonic::Status::data_loss(error.to_string());
        let transfer = async {
            let mut chunks = stub.get_text_assets(request).await?.into_inner();
            let mut assembler = assets::Assembler::default();
            while let Some(chunk) = chunks.message().await? {
                assembler.push(&chunk).map_err(broken)?;
            }
            assembler.finish(digest).map_err(broken)
        };
        self.inner.call(ASSETS_TIMEOUT, transfer).await
    }

    async fn generate(&self, mut request: GenerateRequest) -> Result<OutputStream, Error> {
        check(&request)?;
        let (inner, id) = (&self.inner, request.request_id.clone());
        let serial = inner
            .session
            .with_routes(|routes| routes.reserve(&id, inner.options.max_live_requests))?;
        request.request_id = routes::wire_id(&id, serial);
        let n = request.n.max(1);
        // From here on, dropping the stream ends the request, also while it waits for its admission.
        let on_drop = {
            let (inner, id) = (Arc::clone(inner), id.clone());
            move || inner.drop_request(serial, &id)
        };
        let (outputs, stream) = output_buffer(&id, n, inner.options.output_buffer, on_drop);
        let (admission, admitted) = oneshot::channel();
        inner
            .session
            .with_routes(|routes| routes.insert(serial, &id, outputs, admission));
        inner.session.send(request).await?;
        admitted.await.map_err(|_| inner.session.unavailable())??;
        Ok(Box::pin(stream))
    }

    fn abort(&self, request_id: &str, index: Option<u32>) {
        if let Some(wire_id) = self
            .inner
            .session
            .with_routes(|routes| routes.abort(request_id, index))
        {
            self.inner.session.abort(wire_id, index);
        }
    }

    async fn load(&self) -> Result<LoadReport, Error> {
        // An engine that answers this and has no session with us serves none of our requests.
        self.inner.session.check()?;
        let mut stub = self.inner.stub.clone();
        let answer = self
            .inner
            .call(CALL_TIMEOUT, async { stub.get_load(GetLoadRequest {}).await })
            .await?;
        Ok(answer.into_inner())
    }

    async fn dump(&self, last_stall: bool) -> Result<Bytes, Error> {
        let mut stub = self.inner.stub.clone();
        let transfer = async {
            let mut chunks = stub.get_dump(GetDumpRequest { last_stall }).await?.into_inner();
            let mut dump = BytesMut::new();
            while let Some(chunk) = chunks.message().await? {
                if dump.len() + chunk.data.len() > MAX_DUMP_BYTES {
                    let message = format!("the engine's dump has more than {MAX_DUMP_BYTES} bytes");
                    return Err(tonic::Status::resource_exhausted(message));
                }
                dump.extend_from_slice(&chunk.data);
            }
            Ok(dump.freeze())
        };
        self.inner.call(ASSETS_TIMEOUT, transfer).await
    }

    async fn watch_load(&self) -> Result<LoadStream, Error> {
        self.inner.session.check()?;
        let mut stub = self.inner.stub.clone();
        let opened = self
            .inner
            .call(CALL_TIMEOUT, async { stub.watch_load(WatchLoadRequest {}).await })
            .await?;
        let reports = opened.into_inner();
        Ok(Box::pin(
            reports.map(|item| item.map_err(|status| from_status(&status))),
        ))
    }

    async fn watch_kv_cache(&self, resume_after: Option<KvCachePosition>) -> Result<KvCacheStream, Error> {
        // What another model's cache holds is of no use, and the session knows which model it is.
        self.inner.session.check()?;
        let mut stub = self.inner.stub.clone();
        let request = WatchKvCacheRequest { resume_after };
        let opened = self
            .inner
            .call(CALL_TIMEOUT, async { stub.watch_kv_cache(request).await })
            .await?;
        let updates = opened.into_inner();
        Ok(Box::pin(
            updates.map(|item| item.map_err(|status| from_status(&status))),
        ))
    }

    async fn drain(&self, deadline: Duration) -> Result<u32, Error> {
        let mut stub = self.inner.stub.clone();
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let patience = deadline.saturating_add(CALL_TIMEOUT);
        let call = async { stub.drain(DrainRequest { deadline_ms }).await }
            .map_ok(|answer| answer.into_inner().remaining);
        self.inner.call(patience, call).await
    }
}

/// What would hurt the other requests of the session, or this process; the engine checks the rest.
fn check(request: &GenerateRequest) -> Result<(), Error> {
    if request.request_id.is_empty() || request.request_id.len() > MAX_REQUEST_ID_BYTES {
        return Err(invalid(
            "request_id",
            format!("a request id has 1 to {MAX_REQUEST_ID_BYTES} bytes"),
        ));
    }
    if request.n > MAX_SEQUENCES_PER_REQUEST {
        return Err(invalid(
            "n",
            format!("n is {}, the limit is {MAX_SEQUENCES_PER_REQUEST}", request.n),
        ));
    }
    let bytes = request.encoded_len();
    if bytes > MAX_REQUEST_BYTES {
        let message = format!("the request has {bytes} bytes, the limit is {MAX_REQUEST_BYTES}");
        return Err(invalid("prompt_token_ids", message));
    }
    Ok(())
}
