//! Connections with mutual TLS. Handshakes run beside each other, so that a peer that says nothing holds up nobody.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::Stream;
use kvasir_client::Recurring;
use kvasir_tls::{Reload, ServerTls, explain};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::listener::{ACCEPT_PAUSE, Counted};

/// Longest handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes at a time; more connections wait in the kernel.
const MAX_HANDSHAKES: usize = 128;
/// How often files are looked at: a cluster brings a new certificate hours before the old one ends.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Connections that have shaken hands, at most `max` at a time.
pub(super) fn accept(
    listener: TcpListener,
    tls: Arc<ServerTls>,
    max: usize,
) -> impl Stream<Item = io::Result<Counted<Secured>>> + Send {
    let waiting = Waiting {
        trouble: Recurring::default(),
        listener,
        tls,
        handshakes: JoinSet::new(),
        places: Arc::new(Semaphore::new(max)),
    };
    futures::stream::unfold(waiting, |mut waiting| async move {
        let io = waiting.next().await;
        // Fails only when the semaphore is closed, which nobody does.
        let place = Arc::clone(&waiting.places).acquire_owned().await.ok()?;
        Some((Ok(Counted::new(io, place)), waiting))
    })
}

/// Takes over changed files until `stop`. Open connections keep what they have.
pub(super) async fn follow_files(tls: Arc<ServerTls>, stop: CancellationToken) {
    let mut trouble = Recurring::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RELOAD_INTERVAL) => {}
        }
        let polled = Arc::clone(&tls);
        match tokio::task::spawn_blocking(move || polled.poll()).await {
            Ok(Reload::Unchanged) => trouble.is_over(),
            Ok(Reload::Reloaded) => tracing::info!(not_after = tls.not_after(), "took over new certificates"),
            Ok(Reload::Refused(error)) if !trouble.is_news(&error.to_string(), Instant::now()) => {}
            Ok(Reload::Refused(error)) => {
                tracing::error!(%error, "the changed certificates can't be used; the old ones stay");
            }
            Err(error) => tracing::error!(%error, "looking at the certificates failed"),
        }
    }
}

struct Waiting {
    listener: TcpListener,
    tls: Arc<ServerTls>,
    handshakes: JoinSet<Option<Secured>>,
    places: Arc<Semaphore>,
    trouble: Recurring,
}

impl Waiting {
    async fn next(&mut self) -> Secured {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if self.handshakes.len() < MAX_HANDSHAKES => match accepted {
                    Ok((stream, peer)) => {
                        let acceptor = TlsAcceptor::from(self.tls.config());
                        self.handshakes.spawn(shake_hands(acceptor, stream, peer));
                    }
                    Err(error) => {
                        if self.trouble.is_news(&error.to_string(), Instant::now()) {
                            tracing::warn!(%error, "can't accept a connection");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(ended) = self.handshakes.join_next() => {
                    if let Ok(Some(secured)) = ended {
                        return secured;
                    }
                }
            }
        }
    }
}

async fn shake_hands(acceptor: TlsAcceptor, stream: TcpStream, peer: SocketAddr) -> Option<Secured> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "the connection went at once");
        return None;
    }
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(Secured(Box::new(stream))),
        // Whoever only tries the port, as monitors do, and the operator at each look at the policies.
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            tracing::debug!(%peer, "the connection ended before a word");
            None
        }
        Ok(Err(error)) => {
            tracing::info!(%peer, reason = explain(&error), "a connection was refused");
            None
        }
        Err(_) => {
            tracing::info!(%peer, "a connection was refused: it didn't shake hands in time");
            None
        }
    }
}

/// A connection whose peer has proved who it is.
#[derive(Debug)]
pub(super) struct Secured(Box<TlsStream<TcpStream>>);

impl Connected for Secured {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
