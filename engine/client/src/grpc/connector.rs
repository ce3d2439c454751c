//! Opens connections to a target for tonic.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint};

use super::target::Target;

/// A peer that doesn't answer this long is gone; kernels notice a dead peer on loopback at once, so this finds stopped ones.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens connections to one engine.
#[async_trait]
pub trait Dial: Send + Sync + 'static {
    /// Opens one.
    ///
    /// # Errors
    /// The engine can't be reached, or is somebody else.
    async fn dial(&self) -> io::Result<Box<dyn Dialled>>;
}

/// Bytes in both directions.
pub trait Dialled: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Dialled for T {}

fn endpoint() -> Endpoint {
    Endpoint::from_static("http://engine.invalid")
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
}

/// A channel over connections that somebody else opens.
pub(super) fn dialled(dial: Arc<dyn Dial>) -> Channel {
    endpoint().connect_with_connector_lazy(tower::service_fn(move |_| {
        let dial = Arc::clone(&dial);
        async move { dial.dial().await.map(TokioIo::new) }
    }))
}

/// A channel that connects when it is used, and again after a loss.
pub(super) fn channel(target: &Target) -> Channel {
    let endpoint = endpoint();
    match target.clone() {
        Target::Tcp { host, port } => endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
            let host = host.clone();
            async move { connect_tcp(&host, port).await.map(TokioIo::new) }
        })),
        Target::Unix(path) => endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        })),
    }
}

async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let address = Target::choose(tokio::net::lookup_host((host, port)).await?).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{host} does not resolve to a loopback address"),
        )
    })?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
