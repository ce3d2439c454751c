//! `/healthz`, `/readyz` and `/metrics`, without TLS: for the kubelet and Prometheus, who see nothing secret here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::fence::uptime;
use crate::metrics::Metrics;

/// The lease's keeper tries every few seconds; when it hasn't for this long, the process hangs.
const KEEPER_SILENT: Duration = Duration::from_mins(1);
/// A round has a time limit of two minutes; one that is older hangs.
const ROUND_HANGS: Duration = Duration::from_mins(4);
/// Most connections at a time.
const CONNECTIONS: usize = 64;
/// Longest life of a connection.
const CONNECTION: Duration = Duration::from_mins(2);

/// How the process does.
#[derive(Debug, Default)]
pub(crate) struct Health {
    tick: AtomicU64,
    phase: AtomicU64,
}

/// What the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Another replica works.
    Waiting = 1,
    /// The lease is ours, the caches aren't full yet.
    Filling = 2,
    /// Services are looked after.
    Working = 3,
    /// It ends.
    Stopping = 4,
}

impl Health {
    /// The lease's keeper is alive.
    pub(crate) fn tick(&self) {
        self.tick.store(uptime().as_secs(), Ordering::Relaxed);
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u64, Ordering::Relaxed);
    }

    /// What the process does.
    pub(crate) fn phase(&self) -> &'static str {
        match self.phase.load(Ordering::Relaxed) {
            0 => "starting",
            1 => "waiting",
            2 => "filling",
            3 => "working",
            _ => "stopping",
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self.phase(), "waiting" | "working")
    }

    fn silent_for(&self) -> Duration {
        uptime().saturating_sub(Duration::from_secs(self.tick.load(Ordering::Relaxed)))
    }
}

struct Shared {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    idle: Duration,
}

/// Serves until `stop`. `idle` is the longest time without a round that is healthy while there are services.
pub(crate) async fn serve(
    address: SocketAddr,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    idle: Duration,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving health and metrics");
    let shared = Arc::new(Shared {
        health,
        metrics,
        idle,
    });
    let routes = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(figures))
        .with_state(shared);
    tokio::spawn(accept(listener, routes, stop));
    Ok(())
}

async fn accept(listener: TcpListener, routes: Router, stop: CancellationToken) {
    let slots = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors, mostly: it passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            continue;
        };
        let routes = routes.clone();
        tokio::spawn(async move {
            let service = TowerToHyperService::new(routes);
            let builder = Builder::new(TokioExecutor::new());
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            if let Ok(Err(error)) = tokio::time::timeout(CONNECTION, connection).await {
                tracing::debug!(error = %error, "a connection to the health port ended");
            }
            drop(slot);
        });
    }
}

async fn healthz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let silent = shared.health.silent_for();
    let oldest = shared.metrics.oldest_round();
    if silent > KEEPER_SILENT {
        let text = format!("the lease's keeper has been silent for {} s\n", silent.as_secs());
        return (StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    if oldest > ROUND_HANGS {
        let text = format!("a round has been running for {} s\n", oldest.as_secs());
        return (StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    let idle = shared.metrics.idle();
    if idle > shared.idle {
        let text = format!(
            "no round has begun for {} s, although services are looked at again after {} s at the latest\n",
            idle.as_secs(),
            shared.idle.as_secs() / 2
        );
        return (StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    (StatusCode::OK, "ok\n".to_owned())
}

async fn readyz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let status = if shared.health.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, format!("{}\n", shared.health.phase()))
}

async fn figures(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], shared.metrics.render())
}
