//! Listening and accepting: beyond loopback only with mutual TLS, sockets for their owner only, and no more connections than the limit.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::Stream;
use kvasir_client::Recurring;
use kvasir_tls::ServerTls;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::Connected;

use super::Listener;
use super::authority::PlainAuthority;
use crate::setup::ServiceError;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 128;
/// Pause after a failed accept: out of file descriptors, for example, which passes.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// An open listener.
#[derive(Debug)]
pub(super) enum Bound {
    Tcp(TcpListener),
    Tls(TcpListener, Arc<ServerTls>),
    Unix(UnixListener, RemoveOnDrop),
}

impl Bound {
    pub(super) fn target(&self) -> String {
        let place = |listener: &TcpListener| match listener.local_addr() {
            Ok(address) => address.to_string(),
            Err(error) => format!("unknown ({error})"),
        };
        match self {
            Self::Tcp(listener) => format!("http://{}", place(listener)),
            Self::Tls(listener, _) => format!("https://{}", place(listener)),
            Self::Unix(_, socket) => format!("unix:{}", socket.0.display()),
        }
    }
}

/// Removes a socket when its listener goes.
#[derive(Debug)]
pub(crate) struct RemoveOnDrop(pub(crate) PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "the socket was gone already");
        }
    }
}

pub(super) async fn bind(listener: &Listener) -> Result<Bound, ServiceError> {
    match listener {
        Listener::Tcp(address) if !address.ip().is_loopback() => Err(ServiceError::NotLoopback(*address)),
        Listener::Tcp(address) => bind_tcp(*address).await.map(Bound::Tcp),
        Listener::Tls { address, tls } => {
            if !tls.requires_named_clients() {
                return Err(ServiceError::OpenTls(*address));
            }
            let listener = bind_tcp(*address).await?;
            Ok(Bound::Tls(listener, Arc::clone(tls)))
        }
        Listener::Unix(path) => match bind_unix(path).await {
            Ok(listener) => Ok(Bound::Unix(listener, RemoveOnDrop(path.clone()))),
            Err(source) => Err(ServiceError::BindUnix {
                path: path.clone(),
                source,
            }),
        },
    }
}

pub(crate) async fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ServiceError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServiceError::BindTcp { address, source })
}

/// A socket of mode 0600. One that its process left behind is replaced.
pub(crate) async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path).await?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    // Nobody can connect before `listen`, so the mode holds from the first connection on.
    let listening = std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))
        .and_then(|()| socket.listen(BACKLOG));
    if listening.is_err() {
        drop(RemoveOnDrop(path.to_owned()));
    }
    listening
}

/// Removes a socket that its process left behind. Anything else stays, and binding fails.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// What connections come from.
pub(super) trait Accept: Send {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;

    /// Waits for the next one.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Outputs are small and urgent.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Accept for UnixListener {
    type Io = PlainAuthority<UnixStream>;

    async fn accept(&self) -> io::Result<Self::Io> {
        Self::accept(self)
            .await
            .map(|(stream, _)| PlainAuthority::new(stream))
    }
}

/// Connections, at most `max` at a time. Others wait in the kernel. A failed accept is logged and tried again.
pub(super) fn accept<L: Accept + Sync>(
    listener: L,
    max: usize,
) -> impl Stream<Item = io::Result<Counted<L::Io>>> + Send {
    let places = Arc::new(Semaphore::new(max));
    futures::stream::unfold((listener, places), |(listener, places)| async move {
        // Fails only when the semaphore is closed, which nobody does.
        let place = Arc::clone(&places).acquire_owned().await.ok()?;
        let mut trouble = Recurring::default();
        loop {
            match listener.accept().await {
                Ok(io) => return Some((Ok(Counted::new(io, place)), (listener, places))),
                Err(error) => {
                    if trouble.is_news(&error.to_string(), Instant::now()) {
                        tracing::warn!(%error, "can't accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// A connection that holds one of the places.
#[derive(Debug)]
pub(super) struct Counted<IO> {
    io: IO,
    _place: OwnedSemaphorePermit,
}

impl<IO> Counted<IO> {
    pub(super) fn new(io: IO, place: OwnedSemaphorePermit) -> Self {
        Self { io, _place: place }
    }
}

impl<IO: Connected> Connected for Counted<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Counted<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Counted<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
