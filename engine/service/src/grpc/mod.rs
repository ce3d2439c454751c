//! The engine over gRPC, with the standard health service beside it.
//!
//! Plain gRPC is only for loopback and Unix sockets; whatever may connect may read prompts. Beyond, peers prove by mutual TLS that they
//! are whom the engine serves. The operator has a port of its own ([`GrpcServer::serve_admin`]).

mod admin;
mod authority;
mod handshake;
pub(crate) mod listener;
mod service;
mod session;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use kvasir_client::{MAX_OUTPUT_BYTES, MAX_REQUEST_BYTES};
use kvasir_proto::engine::v1::engine_server::EngineServer;
use kvasir_tls::ServerTls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use self::listener::Bound;
use self::service::EngineService;
use crate::engine::Engine;
use crate::setup::ServiceError;
use crate::shared::{EngineState, Health, Shared};

/// A peer that doesn't answer this long is gone, and its requests end.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls at a time on one connection; a client needs one for its session and a few for the rest.
const MAX_STREAMS_PER_CONNECTION: u32 = 64;
/// Connections beside those that have a session: probes and tools.
const SPARE_CONNECTIONS: usize = 64;
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Where to listen.
#[derive(Clone, Debug)]
pub enum Listener {
    /// A loopback address. Port 0 takes a free one.
    Tcp(SocketAddr),
    /// Any address, with TLS that demands a certificate with an expected name of every client. Changed files are taken over for new connections.
    Tls {
        /// The address. Port 0 takes a free one.
        address: SocketAddr,
        /// The configuration.
        tls: Arc<ServerTls>,
    },
    /// A socket that is made with mode 0600 and removed at the end. A socket that nobody listens on any more is replaced.
    Unix(PathBuf),
}

impl Listener {
    /// Starts to listen; connections wait until [`GrpcServer::serve`].
    ///
    /// # Errors
    /// If the address is not on loopback and there is no mutual TLS, or it can't be listened on.
    pub async fn bind(&self) -> Result<GrpcServer, ServiceError> {
        Ok(GrpcServer {
            bound: listener::bind(self).await?,
        })
    }
}

/// A server that listens and doesn't answer yet.
#[derive(Debug)]
pub struct GrpcServer {
    bound: Bound,
}

impl GrpcServer {
    /// What clients connect to: `http://ADDRESS:PORT`, `https://ADDRESS:PORT` or `unix:/PATH`.
    pub fn target(&self) -> String {
        self.bound.target()
    }

    /// Serves until `stop` is cancelled; then sessions end after what is queued for them, and it returns when all connections are closed.
    /// Drain the engine first to let requests finish.
    ///
    /// # Errors
    /// If the server fails.
    pub async fn serve(self, engine: &Engine, stop: CancellationToken) -> Result<(), ServiceError> {
        let shared = Arc::clone(engine.shared());
        let max_connections = shared.limits.max_sessions + SPARE_CONNECTIONS;
        let (reporter, health) = tonic_health::server::health_reporter();
        report(&reporter, ServingStatus::Serving).await;
        let _health_task =
            AbortOnDropHandle::new(tokio::spawn(follow(Arc::clone(&shared), reporter, stop.clone())));
        let engine = EngineServer::new(EngineService::new(shared, stop.clone()))
            // The id grows by a serial number on the way.
            .max_decoding_message_size(MAX_REQUEST_BYTES + 1024)
            .max_encoding_message_size(MAX_OUTPUT_BYTES);
        let routes = Routes::new(health).add_service(engine);
        self.run(routes, max_connections, stop).await
    }

    /// Serves the operator until `stop` is cancelled: load, drain, model info and, at `GET /metrics`, what `metrics` gives. Nothing here shows
    /// or takes tokens.
    ///
    /// # Errors
    /// If the server fails.
    pub async fn serve_admin(
        self,
        engine: &Engine,
        metrics: Render,
        stop: CancellationToken,
    ) -> Result<(), ServiceError> {
        let service = EngineService::new(Arc::clone(engine.shared()), stop.clone());
        let routes = admin::routes(service, metrics);
        self.run(routes, SPARE_CONNECTIONS, stop).await
    }

    async fn run(
        self,
        routes: Routes,
        max_connections: usize,
        stop: CancellationToken,
    ) -> Result<(), ServiceError> {
        match self.bound {
            Bound::Tcp(tcp) => run(routes, listener::accept(tcp, max_connections), stop).await,
            Bound::Tls(tcp, tls) => {
                let files = handshake::follow_files(Arc::clone(&tls), stop.clone());
                let _files_task = AbortOnDropHandle::new(tokio::spawn(files));
                run(routes, handshake::accept(tcp, tls, max_connections), stop).await
            }
            Bound::Unix(unix, _cleanup) => run(routes, listener::accept(unix, max_connections), stop).await,
        }
    }
}

/// Writes the figures in Prometheus' text format.
pub type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// Listens and serves until `stop` is cancelled, see [`Listener::bind`] and [`GrpcServer::serve`].
///
/// # Errors
/// As these two.
pub async fn serve(engine: &Engine, listener: Listener, stop: CancellationToken) -> Result<(), ServiceError> {
    listener.bind().await?.serve(engine, stop).await
}

async fn run<I, IO>(routes: Routes, incoming: I, stop: CancellationToken) -> Result<(), ServiceError>
where
    I: Stream<Item = std::io::Result<IO>> + Send,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await
        .map_err(ServiceError::Serve)
}

/// Keeps the health service in step with the engine: serving means that it takes requests.
async fn follow(shared: Arc<Shared>, reporter: HealthReporter, stop: CancellationToken) {
    let (mut state, mut health) = (shared.state.subscribe(), shared.health.subscribe());
    loop {
        let broken = matches!(*health.borrow_and_update(), Health::Broken(_));
        let ready = *state.borrow_and_update() == EngineState::Ready && !broken && !stop.is_cancelled();
        report(
            &reporter,
            if ready {
                ServingStatus::Serving
            } else {
                ServingStatus::NotServing
            },
        )
        .await;
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            changed = health.changed() => if changed.is_err() { return },
            () = stop.cancelled(), if !stop.is_cancelled() => {}
        }
    }
}

async fn report(reporter: &HealthReporter, status: ServingStatus) {
    for name in ["", "kvasir.engine.v1.Engine"] {
        reporter.set_service_status(name, status).await;
    }
}
