//! One connection: a subscriber, or somebody who asks for a replay.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::hub::{Hub, Numbered};
use super::zmtp::{self, Decoder, GREETING_BYTES, Incoming, ZmtpError};

/// Subscriptions of one peer.
const MAX_SUBSCRIPTIONS: usize = 64;
/// A peer that doesn't shake hands in this time isn't one.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// A peer that asks for nothing in this time, or takes nothing of a replay, is sent away: its place may be needed. ZeroMQ's library connects
/// again by itself.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);
/// What a replay ends with, as vLLM: minus one.
const END_OF_REPLAY: [u8; 8] = [0xff; 8];

/// What the peers share.
#[derive(Clone, Debug)]
pub(super) struct Publication {
    pub(super) hub: Arc<Mutex<Hub>>,
    pub(super) topic: Bytes,
    /// Batches that wait for one subscriber.
    pub(super) hwm: usize,
    /// How long a peer may ask for nothing, or take nothing: [`PATIENCE`].
    pub(super) patience: Duration,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerError {
    /// The connection.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The peer.
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
    /// It didn't say what it is.
    #[error("no handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    /// It subscribed to nothing, or asked for no replay.
    #[error("nothing was asked for in time")]
    Idle,
    /// It doesn't read what it asked for.
    #[error("nothing of a replay was read in time")]
    Stuck,
}

impl Publication {
    fn with_hub<T>(&self, work: impl FnOnce(&mut Hub) -> T) -> T {
        // Every change under the lock is complete before anything that could panic.
        work(&mut self.hub.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn publish(&self, batch: Numbered) {
        self.with_hub(|hub| hub.publish(batch));
    }
}

/// Sends a subscriber what it subscribed to, until it leaves.
///
/// # Errors
/// Why it ended; a peer that leaves is an `Io` error of kind `UnexpectedEof`.
pub(super) async fn serve_subscriber<IO>(io: IO, publication: &Publication) -> Result<(), PeerError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut peer = Peer::open(io, "PUB", &["SUB", "XSUB"]).await?;
    let mut queue = publication.with_hub(|hub| hub.subscribe(publication.hwm));
    let mut subscriptions: Vec<Bytes> = Vec::new();
    let idle = tokio::time::sleep(publication.patience);
    tokio::pin!(idle);
    loop {
        tokio::select! {
            () = &mut idle, if subscriptions.is_empty() => return Err(PeerError::Idle),
            incoming = peer.read() => {
                let incoming = incoming?;
                peer.answer_ping(&incoming).await?;
                note_subscription(&incoming, &mut subscriptions)?;
                if subscriptions.is_empty() && idle.is_elapsed() {
                    idle.as_mut().reset(tokio::time::Instant::now() + publication.patience);
                }
            }
            batch = queue.recv() => {
                let Some(batch) = batch else { return Ok(()) };
                let topic = &publication.topic;
                if subscriptions.iter().any(|prefix| topic.starts_with(prefix)) {
                    let sequence = batch.sequence.to_be_bytes();
                    peer.write(&[topic, &sequence, &batch.payload]).await?;
                }
            }
        }
    }
}

/// ZMTP 3.0 subscribes by messages, 3.1 by commands.
fn note_subscription(incoming: &Incoming, subscriptions: &mut Vec<Bytes>) -> Result<(), ZmtpError> {
    let (subscribes, prefix) = match incoming {
        Incoming::Command(name, prefix) if &name[..] == b"SUBSCRIBE" => (true, prefix.clone()),
        Incoming::Command(name, prefix) if &name[..] == b"CANCEL" => (false, prefix.clone()),
        Incoming::Message(frames) => match frames.first().map(|frame| (frame.first(), frame)) {
            Some((Some(1), frame)) => (true, frame.slice(1..)),
            Some((Some(0), frame)) => (false, frame.slice(1..)),
            _ => return Ok(()),
        },
        Incoming::Command(..) => return Ok(()),
    };
    if !subscribes {
        if let Some(index) = subscriptions.iter().position(|known| *known == prefix) {
            subscriptions.swap_remove(index);
        }
        return Ok(());
    }
    if subscriptions.len() == MAX_SUBSCRIPTIONS {
        return Err(ZmtpError::NumSubscriptions(MAX_SUBSCRIPTIONS));
    }
    subscriptions.push(prefix);
    Ok(())
}

/// Answers requests for replays: an empty frame and the first number wanted, 8 bytes, big-endian. Anything else is ignored, as vLLM does.
///
/// # Errors
/// As `serve_subscriber`.
pub(super) async fn serve_replays<IO>(io: IO, publication: &Publication) -> Result<(), PeerError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut peer = Peer::open(io, "ROUTER", &["REQ", "DEALER", "ROUTER"]).await?;
    loop {
        let wanted = tokio::time::timeout(publication.patience, next_request(&mut peer));
        let wanted = wanted.await.map_err(|_| PeerError::Idle)??;
        replay(&mut peer, publication, wanted).await?;
    }
}

/// The number that the next request begins with.
async fn next_request<IO>(peer: &mut Peer<IO>) -> Result<u64, PeerError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send,
{
    loop {
        let incoming = peer.read().await?;
        peer.answer_ping(&incoming).await?;
        if let Incoming::Message(frames) = incoming
            && let [delimiter, wanted] = &frames[..]
            && delimiter.is_empty()
            && let Ok(wanted) = <[u8; 8]>::try_from(&wanted[..])
        {
            return Ok(u64::from_be_bytes(wanted));
        }
    }
}

/// One batch after the other, so that a slow reader keeps nothing alive. What came after the request is the subscription's business.
async fn replay<IO>(peer: &mut Peer<IO>, publication: &Publication, wanted: u64) -> Result<(), PeerError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send,
{
    let last = publication.with_hub(|hub| hub.last());
    let mut next = Some(wanted);
    while let Some(batch) = next.and_then(|from| publication.with_hub(|hub| hub.from(from)))
        && last.is_some_and(|last| batch.sequence <= last)
    {
        let sequence = batch.sequence.to_be_bytes();
        let frames: [&[u8]; 4] = [b"", &publication.topic, &sequence, &batch.payload];
        let written = tokio::time::timeout(publication.patience, peer.write(&frames));
        written.await.map_err(|_| PeerError::Stuck)??;
        next = batch.sequence.checked_add(1);
    }
    let written = tokio::time::timeout(publication.patience, peer.write(&[b"", b"", &END_OF_REPLAY, b""]));
    written.await.map_err(|_| PeerError::Stuck)?
}

/// A connection after its handshake.
struct Peer<IO> {
    io: IO,
    decoder: Decoder,
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Peer<IO> {
    async fn open(io: IO, socket_type: &str, peers: &[&str]) -> Result<Self, PeerError> {
        let handshake = Self::shake_hands(io, socket_type, peers);
        tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
            .await
            .map_err(|_| PeerError::Timeout)?
    }

    async fn shake_hands(mut io: IO, socket_type: &str, peers: &[&str]) -> Result<Self, PeerError> {
        io.write_all(&zmtp::greeting()).await?;
        let mut greeting = [0; GREETING_BYTES];
        io.read_exact(&mut greeting).await?;
        zmtp::check_greeting(&greeting)?;
        io.write_all(&zmtp::ready(socket_type)).await?;
        let mut peer = Self {
            io,
            decoder: Decoder::default(),
        };
        let found = zmtp::socket_type(&peer.read().await?)?;
        if peers.contains(&&*found) {
            Ok(peer)
        } else {
            Err(ZmtpError::SocketType(found).into())
        }
    }

    /// The next message or command. May be dropped while it waits.
    async fn read(&mut self) -> Result<Incoming, PeerError> {
        loop {
            if let Some(incoming) = self.decoder.next()? {
                return Ok(incoming);
            }
            if self.io.read_buf(self.decoder.buffer()).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Answers, if this is a PING: two bytes of its time to live, then a context.
    async fn answer_ping(&mut self, incoming: &Incoming) -> Result<(), PeerError> {
        if let Incoming::Command(name, body) = incoming
            && &name[..] == b"PING"
            && let Some(context) = body.get(2..)
        {
            self.io.write_all(&zmtp::pong(context)).await?;
        }
        Ok(())
    }

    async fn write(&mut self, frames: &[&[u8]]) -> Result<(), PeerError> {
        let mut bytes = BytesMut::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
        for (index, frame) in frames.iter().enumerate() {
            let more = index + 1 < frames.len();
            bytes.extend_from_slice(&zmtp::frame_head(frame.len(), more));
            bytes.extend_from_slice(frame);
        }
        self.io.write_all(&bytes).await?;
        Ok(())
    }
}

/// Publishes what the worker sends, until it sends no more.
pub(super) async fn pass_on(mut batches: mpsc::Receiver<Numbered>, publication: Publication) {
    while let Some(batch) = batches.recv().await {
        publication.publish(batch);
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
