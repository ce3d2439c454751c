//! Where connections come from.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use http::Extensions;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// An open listening socket.
pub enum Listener {
    /// Of TCP.
    Tcp(TcpListener),
    /// Of a Unix socket; who may connect is decided by its file's permissions.
    Unix(UnixListener),
    /// Of TCP, with something between a connection and its first request, for example TLS.
    Guarded(TcpListener, Arc<dyn Handshake>),
}

/// What happens between a connection and its first request.
#[async_trait]
pub trait Handshake: Send + Sync + 'static {
    /// Takes the connection over, and adds what it finds out to `facts`, which every request of the connection then carries.
    ///
    /// # Errors
    /// The connection is closed.
    async fn shake(&self, stream: TcpStream, facts: &mut Extensions) -> io::Result<Box<dyn ConnectionIo>>;
}

/// Bytes in both directions.
pub trait ConnectionIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ConnectionIo for T {}

/// Where the peer of a TCP connection is, among the facts of its requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerAddress(pub SocketAddr);

/// An accepted connection before its handshake.
pub(crate) enum Accepted {
    Tcp(TcpStream, SocketAddr, Option<Arc<dyn Handshake>>),
    Unix(UnixStream),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(listener) | Self::Guarded(listener, _) => listener.fmt(f),
            Self::Unix(listener) => listener.fmt(f),
        }
    }
}

impl Listener {
    /// Waits for the next connection. Cancelling it loses none.
    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        let (listener, handshake) = match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                return Ok(Accepted::Unix(stream));
            }
            Self::Tcp(listener) => (listener, None),
            Self::Guarded(listener, handshake) => (listener, Some(Arc::clone(handshake))),
        };
        let (stream, peer) = listener.accept().await?;
        // Tokens are small writes that must not wait for each other.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        Ok(Accepted::Tcp(stream, peer, handshake))
    }

    /// Whether its address can be read, which a broken socket's can't.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) | Self::Guarded(listener, _) => listener.local_addr().map(drop),
            Self::Unix(listener) => listener.local_addr().map(drop),
        }
    }
}

impl Accepted {
    /// The bytes of the connection and what is known of it.
    pub(crate) async fn shake(self) -> io::Result<(Box<dyn ConnectionIo>, Extensions)> {
        let mut facts = Extensions::new();
        let io: Box<dyn ConnectionIo> = match self {
            Self::Unix(stream) => Box::new(stream),
            Self::Tcp(stream, peer, handshake) => {
                facts.insert(PeerAddress(peer));
                match handshake {
                    None => Box::new(stream),
                    Some(handshake) => handshake.shake(stream, &mut facts).await?,
                }
            }
        };
        Ok((io, facts))
    }
}
