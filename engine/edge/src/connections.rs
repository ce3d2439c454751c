//! The connections of a server: accepted up to a limit, with time and size limits against slow and greedy clients.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::config::EdgeConfig;
use crate::framing;
use crate::listener::{Accepted, Listener};
use crate::patience::PatientWrites;

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
/// How long idle connections may take to close at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// All open connections. Dropping it closes them.
pub(crate) struct Connections {
    router: Router,
    builder: Arc<Builder<TokioExecutor>>,
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
    most: usize,
    first_request_timeout: Duration,
    write_timeout: Duration,
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
            most: config.max_connections.max(1),
            first_request_timeout: config.header_read_timeout,
            write_timeout: config.write_timeout,
        }
    }

    /// Accepts and serves connections until `stop` completes.
    pub(crate) async fn accept_until(&mut self, listener: &Listener, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        loop {
            let has_room = self.tasks.len() < self.most;
            tokio::select! {
                () = &mut stop => return,
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
                accepted = listener.accept(), if has_room => match accepted {
                    Ok(accepted) => self.spawn(accepted),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
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
        let patience = (self.first_request_timeout, self.write_timeout);
        self.tasks.spawn(serve(
            Arc::clone(&self.builder),
            self.router.clone(),
            accepted,
            self.graceful.watcher(),
            patience,
        ));
    }
}

async fn serve(
    builder: Arc<Builder<TokioExecutor>>,
    router: Router,
    accepted: Accepted,
    watcher: Watcher,
    (first_request_timeout, write_timeout): (Duration, Duration),
) {
    let (stream, facts) = match tokio::time::timeout(HANDSHAKE_TIMEOUT, accepted.shake()).await {
        Ok(Ok(shaken)) => shaken,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
        Err(_) => return tracing::debug!("a handshake took longer than {HANDSHAKE_TIMEOUT:?}"),
    };
    let stream = PatientWrites::new(stream, write_timeout);
    let seen = AtomicBool::new(false);
    let service = hyper::service::service_fn(|mut request: http::Request<Incoming>| {
        seen.store(true, Ordering::Relaxed);
        request.extensions_mut().extend(facts.clone());
        let router = router.clone();
        async move {
            match framing::check(&request) {
                Ok(()) => router.oneshot(request).await,
                Err(error) => Ok(framing::refuse(&error)),
            }
        }
    });
    let connection = watcher.watch(builder.serve_connection(TokioIo::new(stream), service));
    // hyper's own timeouts begin once it knows the protocol, which a client can delay for ever.
    let no_request = async {
        tokio::time::sleep(first_request_timeout).await;
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
