//! Plain HTTP for probes and Prometheus: a few pages, one request per connection, and nothing that is worth protecting.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use http::StatusCode;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kvasir_client::Recurring;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::grpc::listener::bind_tcp;
use crate::setup::ServiceError;

/// Content type of figures for Prometheus.
pub const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Connections at a time. A probe that finds no place waits in the kernel.
const MAX_CONNECTIONS: usize = 64;
/// Longest life of a connection, whatever its peer does.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The smallest buffer that hyper takes; probes need a twentieth of it.
const MAX_HEADER_BYTES: usize = 8 * 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Page {
    /// The status.
    pub status: StatusCode,
    /// The type of its text.
    pub content_type: &'static str,
    /// The text.
    pub text: String,
}

/// Makes the page at a path; `None` where there is none.
pub type MakePage = Arc<dyn Fn(&str) -> Option<Page> + Send + Sync>;

/// An open port.
#[derive(Debug)]
pub struct PagePort {
    listener: TcpListener,
}

impl Page {
    /// A line of text.
    pub fn line(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            text: format!("{}\n", text.into()),
        }
    }
}

impl PagePort {
    /// Opens it; port 0 takes a free one.
    ///
    /// # Errors
    /// If the address can't be listened on.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServiceError> {
        Ok(Self {
            listener: bind_tcp(address).await?,
        })
    }

    /// Where it is.
    ///
    /// # Errors
    /// If the system doesn't say.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves pages until `stop` is cancelled.
    pub async fn serve(self, make: MakePage, stop: CancellationToken) {
        let mut connections = JoinSet::new();
        let mut trouble = Recurring::default();
        loop {
            let has_room = connections.len() < MAX_CONNECTIONS;
            tokio::select! {
                () = stop.cancelled() => return,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if has_room => match accepted {
                    Ok((stream, _)) => drop(connections.spawn(answer(stream, Arc::clone(&make)))),
                    Err(error) => {
                        if trouble.is_news(&error.to_string(), Instant::now()) {
                            tracing::warn!(%error, "can't accept a connection");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

async fn answer(stream: TcpStream, make: MakePage) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = response(&request, &make);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIMEOUT, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection for a page failed"),
        Err(_) => tracing::debug!("a connection for a page took too long"),
    }
}

fn response(request: &Request<Incoming>, make: &MakePage) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let page =
        make(request.uri().path()).unwrap_or_else(|| Page::line(StatusCode::NOT_FOUND, "no such page"));
    let mut response = Response::new(Full::from(page.text));
    *response.status_mut() = page.status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    response
}
