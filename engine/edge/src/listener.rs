//! Where connections come from.

use std::io;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// An open listening socket.
#[derive(Debug)]
pub enum Listener {
    /// Of TCP.
    Tcp(TcpListener),
    /// Of a Unix socket; who may connect is decided by its file's permissions.
    Unix(UnixListener),
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

impl Listener {
    /// Waits for the next connection. Cancelling it loses none.
    pub(crate) async fn accept(&self) -> io::Result<Either<TcpStream, UnixStream>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Tokens are small writes that must not wait for each other.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY could not be set");
                }
                Ok(Either::Left(stream))
            }
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Either::Right(stream)),
        }
    }

    /// Whether its address can be read, which a broken socket's can't.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(drop),
            Self::Unix(listener) => listener.local_addr().map(drop),
        }
    }
}
