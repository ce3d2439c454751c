//! The HTTP server's open socket.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use kvasir_config::Bind;
use kvasir_edge::Listener;
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};

use super::banner::Address;
use crate::exit::Failure;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// An open socket, and where it is.
pub(super) struct Listening {
    listener: Listener,
    address: Address,
    guard: Option<RemoveOnDrop>,
}

impl Listening {
    /// Opens it. A Unix socket is for its owner only; one that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// If the address is in use or not ours.
    pub(super) async fn open(bind: &Bind) -> Result<Self, Failure> {
        match bind {
            Bind::Tcp { host, port } => open_tcp(host, *port).await.map_err(|error| {
                Failure::Failed(format!(
                    "can't listen on {host} port {port}: {error}; --host and --port choose another"
                ))
            }),
            Bind::Unix(path) => open_unix(path)
                .await
                .map_err(|error| Failure::Failed(format!("can't listen on {}: {error}", path.display()))),
        }
    }

    /// Where it is; the port is the one that the system chose.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The socket, and what removes its file when dropped.
    pub(super) fn into_parts(self) -> (Listener, Option<RemoveOnDrop>) {
        (self.listener, self.guard)
    }
}

async fn open_tcp(host: &str, port: u16) -> io::Result<Listening> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let listener = TcpListener::bind((name, port)).await?;
    let port = listener.local_addr()?.port();
    Ok(Listening {
        listener: listener.into(),
        address: Address::Tcp {
            host: host.to_owned(),
            port,
        },
        guard: None,
    })
}

async fn open_unix(path: &Path) -> io::Result<Listening> {
    remove_stale(path).await?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let guard = RemoveOnDrop(path.to_owned());
    // Nobody can connect before `listen`, so the mode holds from the first connection on.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    let listener: UnixListener = socket.listen(BACKLOG)?;
    Ok(Listening {
        listener: listener.into(),
        address: Address::Unix(path.to_owned()),
        guard: Some(guard),
    })
}

/// Removes a socket that its process left behind. Anything else stays, and binding fails.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket
        && let Err(error) = UnixStream::connect(path).await
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        return std::fs::remove_file(path);
    }
    Ok(())
}

/// Removes a socket's file when its listener goes.
pub(super) struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "the socket was gone already");
        }
    }
}
