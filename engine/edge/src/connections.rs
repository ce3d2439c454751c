//! The connections of a server: accepted up to a limit, with time and size limits against slow and greedy clients.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use kvasir_client::Recurring;
use rustix::process::{Resource, getrlimit};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::config::EdgeConfig;
use crate::framing;
use crate::idle::{Activity, Held, Open};
use crate::listener::{Accepted, Listener};
use crate::patience::{PatientBody, PatientWrites};

/// Most bytes of request headers (HTTP/1 buffer and HTTP/2 header list).
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Most request headers.
const MAX_HEADERS: usize = 100;
/// Most requests at a time on one HTTP/2 connection.
const MAX_HTTP2_STREAMS: u32 = 256;
/// Interval and patience of HTTP/2 pings, which find dead peers.
const HTTP2_PING: Duration = Duration::from_secs(20);
/// Wait after a failed accept: out of file descriptors, which others may give back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest handshake of a connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// File descriptors that connections leave to the rest of the process: engines, files, probes.
const SPARE_FILES: u64 = 256;
/// How long idle connections may take to close at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// All open connections. Dropping it closes them.
pub(crate) struct Connections {
    router: Router,
    builder: Arc<Builder<TokioExecutor>>,
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
    open: Open,
    most: usize,
    patience: Patience,
}

/// How long clients may take.
#[derive(Clone, Copy)]
struct Patience {
    /// To the first request.
    first_request: Duration,
    /// To take something of an answer.
    write: Duration,
}

impl Connections {
    pub(crate) fn new(router: Router, config: &EdgeConfig) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(config.header_read_timeout)
            .max_buf_size(MAX_HEADER_BYTES)
            .max_headers(MAX_HEADERS);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_HTTP2_STREAMS)
            .max_header_list_size(MAX_HEADER_BYTES as u32)
            .keep_alive_interval(HTTP2_PING)
            .keep_alive_timeout(HTTP2_PING);
        Self {
            router,
            builder: Arc::new(builder),
            graceful: GracefulShutdown::new(),
            tasks: JoinSet::new(),
            open: Open::default(),
            most: config.max_connections.min(most_by_files()).max(1),
            patience: Patience {
                first_request: config.header_read_timeout,
                write: config.write_timeout,
            },
        }
    }

    /// Accepts and serves connections until `stop` completes.
    pub(crate) async fn accept_until(&mut self, listener: &Listener, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut trouble = Recurring::default();
        loop {
            tokio::select! {
                () = &mut stop => return,
                Some(ended) = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => {
                    self.open.forget(ended.map_or_else(|error| error.id(), |(id, ())| id));
                }
                accepted = accept(listener, &self.open, self.most) => match accepted {
                    Ok(accepted) => self.spawn(accepted),
                    Err(error) => {
                        if trouble.is_news(&error.to_string(), Instant::now()) {
                            tracing::warn!(%error, "a connection could not be accepted");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Lets every connection end after its current answer, for a short while.
    pub(crate) async fn finish(mut self) {
        let closed = async {
            self.graceful.shutdown().await;
            while self.tasks.join_next().await.is_some() {}
        };
        drop(tokio::time::timeout(CLOSE_TIMEOUT, closed).await);
    }

    fn spawn(&mut self, accepted: Accepted) {
        if self.open.len() >= self.most {
            self.open.close_idlest();
        }
        let activity = self.open.begin();
        let task = self.tasks.spawn(serve(
            Arc::clone(&self.builder),
            self.router.clone(),
            accepted,
            self.graceful.watcher(),
            self.patience,
            Arc::clone(&activity),
        ));
        self.open.insert(activity, task);
    }
}

/// Connections that the process has file descriptors for: running out of them would take the probes with it.
fn most_by_files() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Of few at least half.
    let most = limit.saturating_sub(SPARE_FILES).max(limit / 2);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// The next connection that has a place, if need be that of an idle one.
async fn accept(listener: &Listener, open: &Open, most: usize) -> std::io::Result<Accepted> {
    if open.len() >= most {
        open.someone_idles().await;
    }
    listener.accept().await
}

async fn serve(
    builder: Arc<Builder<TokioExecutor>>,
    router: Router,
    accepted: Accepted,
    watcher: Watcher,
    patience: Patience,
    activity: Arc<Activity>,
) {
    let (stream, facts) = match tokio::time::timeout(HANDSHAKE_TIMEOUT, accepted.shake()).await {
        Ok(Ok(shaken)) => shaken,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
        Err(_) => return tracing::debug!("a handshake took longer than {HANDSHAKE_TIMEOUT:?}"),
    };
    let stream = PatientWrites::new(stream, patience.write, Arc::clone(&activity));
    let seen = AtomicBool::new(false);
    let service = hyper::service::service_fn(|mut request: http::Request<Incoming>| {
        seen.store(true, Ordering::Relaxed);
        request.extensions_mut().extend(facts.clone());
        let router = router.clone();
        let running = activity.run();
        let is_http2 = request.version() == http::Version::HTTP_2;
        async move {
            let response = answer(router, request).await?;
            // The body goes when its last byte is on its way, or nobody wants it.
            Ok::<_, Infallible>(response.map(|body| {
                if is_http2 {
                    Body::new(PatientBody::new(body, patience.write, running))
                } else {
                    Body::new(Held::new(body, running))
                }
            }))
        }
    });
    let connection = watcher.watch(builder.serve_connection(TokioIo::new(stream), service));
    // hyper's own timeouts begin once it knows the protocol, which a client can delay for ever.
    let no_request = async {
        tokio::time::sleep(patience.first_request).await;
        if seen.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        },
        () = no_request => tracing::debug!("a connection sent no request in time"),
    }
}

async fn answer(router: Router, request: http::Request<Incoming>) -> Result<Response, Infallible> {
    let is_last = framing::must_be_last(&request);
    let response = match framing::check(&request) {
        Ok(()) => router.oneshot(request).await?,
        Err(error) => framing::refuse(&error),
    };
    Ok(if is_last {
        framing::closing(response)
    } else {
        response
    })
}
