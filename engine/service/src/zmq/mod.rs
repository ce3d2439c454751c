//! KV events as vLLM publishes them: msgpack over a ZeroMQ PUB socket, with a ROUTER socket for replays. For tools made for vLLM, and off
//! unless asked for: the events carry the tokens of every prompt.
//!
//! ```text
//! worker --one batch per step, numbered, never waits--> thread "kvasir-kv-events" --> subscribers
//!                                                          kept for replays
//! ```
//!
//! Everything is bounded: what the thread hasn't taken by `max_queue_size`, what a subscriber hasn't read by `hwm`, what is kept by
//! `buffer_steps` and 256 MiB, connections by 64 subscribers and 16 that ask for replays. What doesn't fit is lost to its reader, who sees the
//! gap in the numbers. Who asks for nothing is sent away after a minute.

mod batch;
mod endpoint;
mod hub;
mod log;
mod msgpack;
mod peer;
mod zmtp;

use std::io;
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

pub(crate) use self::batch::Format;
use self::endpoint::Endpoint;
pub use self::endpoint::EndpointError;
use self::hub::{Hub, Numbered};
use self::log::PeerLog;
use self::peer::{PeerError, Publication};
use crate::grpc::listener::{RemoveOnDrop, bind_unix};

/// Connections of subscribers.
const MAX_SUBSCRIBERS: usize = 64;
/// Connections that ask for replays; places of their own, so that neither kind can take the other's.
const MAX_REPLAY_PEERS: usize = 16;
/// Pause before a connection is tried again, or after a failed accept.
const PAUSE: Duration = Duration::from_millis(500);

/// What to publish and where; the names and meanings are those of vLLM's `--kv-events-config`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ZmqConfig {
    /// Where batches go: `tcp://HOST:PORT` or `ipc://PATH`.
    pub endpoint: String,
    /// Whether it is listened on (true) or connected to. `None` is vLLM's rule: `tcp://*`, IPv6 and `ipc://` are listened on.
    pub bind: Option<bool>,
    /// Where replays are asked for; listened on.
    pub replay_endpoint: Option<String>,
    /// Batches kept for replays.
    pub buffer_steps: usize,
    /// Batches that wait for one subscriber.
    pub hwm: usize,
    /// Batches that wait for the publishing thread.
    pub max_queue_size: usize,
    /// The first frame of each batch, which subscribers filter by.
    pub topic: String,
    /// Whether hashes are the last 64 bits as a number, vLLM's default, or 32 bytes (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`).
    pub int_block_hashes: bool,
}

/// Why nothing can be published.
#[derive(Debug, thiserror::Error)]
pub enum ZmqError {
    /// An endpoint can't be read.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A bound is zero.
    #[error("{0} is 0, it must be at least 1")]
    Zero(&'static str),
    /// Both sockets at one place.
    #[error(
        "endpoint {endpoint} and replay_endpoint {replay_endpoint} are the same place, where only one socket can be: give them different ports or paths"
    )]
    SamePlace {
        /// Where batches go.
        endpoint: String,
        /// Where replays are asked for.
        replay_endpoint: String,
    },
    /// An endpoint can't be listened on.
    #[error("can't listen on {endpoint}: {source}")]
    Bind {
        /// Where.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
    /// The operating system gave no thread.
    #[error("can't start the thread that publishes KV events: {0}")]
    Thread(#[source] io::Error),
}

/// A running publisher. It ends when its [`EventSender`] is dropped.
#[derive(Debug)]
pub(crate) struct ZmqPublisher {
    /// What was bound: the free port if 0 was asked for.
    pub(crate) endpoint: String,
    pub(crate) replay_endpoint: Option<String>,
    _thread: JoinHandle<()>,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct EventSender {
    batches: mpsc::Sender<Numbered>,
    next: u64,
    /// Whether the last batch was lost, so that a long outage is logged once.
    is_losing: bool,
}

impl EventSender {
    /// Sends one step's events under the next number. Never waits: if the publisher is that far behind, the batch is lost.
    pub(crate) fn send(&mut self, payload: Vec<u8>) {
        let batch = Numbered {
            sequence: self.next,
            payload: payload.into(),
        };
        self.next += 1;
        let is_lost = self.batches.try_send(batch).is_err();
        if is_lost && !self.is_losing {
            tracing::warn!(
                "KV events are published too slowly; batches are lost, which subscribers see as a gap"
            );
        }
        self.is_losing = is_lost;
    }
}

/// Opens the sockets and starts the thread.
///
/// # Errors
/// See [`ZmqError`].
pub(crate) fn start(config: &ZmqConfig, dp_rank: u32) -> Result<(EventSender, ZmqPublisher), ZmqError> {
    let Places {
        endpoint,
        binds,
        replay,
    } = places(config, dp_rank)?;
    let (batches, receiver) = mpsc::channel(config.max_queue_size);
    let publication = Publication {
        hub: Arc::new(Mutex::new(Hub::new(config.buffer_steps))),
        topic: Bytes::from(config.topic.clone()),
        hwm: config.hwm,
        patience: peer::PATIENCE,
    };
    let (opened, opening) = std_mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("kvasir-kv-events".to_owned())
        .spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(opened.send(Err(ZmqError::Thread(error)))),
            };
            runtime.block_on(async {
                match open(endpoint, binds, replay).await {
                    Ok((sockets, names)) => {
                        drop(opened.send(Ok(names)));
                        run(sockets, publication, receiver).await;
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
            });
        })
        .map_err(ZmqError::Thread)?;
    let gone = || ZmqError::Thread(io::Error::other("the thread ended"));
    let (endpoint, replay_endpoint) = opening.recv().map_err(|_| gone())??;
    announce(&endpoint, replay_endpoint.as_deref(), binds);
    let sender = EventSender {
        batches,
        next: 0,
        is_losing: false,
    };
    let publisher = ZmqPublisher {
        endpoint,
        replay_endpoint,
        _thread: thread,
    };
    Ok((sender, publisher))
}

/// Where the sockets are to be.
struct Places {
    endpoint: Endpoint,
    binds: bool,
    replay: Option<Endpoint>,
}

/// Reads and checks the configuration.
fn places(config: &ZmqConfig, dp_rank: u32) -> Result<Places, ZmqError> {
    for (name, value) in [("hwm", config.hwm), ("max_queue_size", config.max_queue_size)] {
        if value == 0 {
            return Err(ZmqError::Zero(name));
        }
    }
    let endpoint = Endpoint::parse(&config.endpoint, dp_rank)?;
    let binds = config.bind.unwrap_or_else(|| endpoint.is_bound_by_vllm());
    let replay = config
        .replay_endpoint
        .as_deref()
        .map(|text| Endpoint::parse(text, dp_rank))
        .transpose()?;
    if let Some(replay) = replay.as_ref().filter(|replay| replay.meets(&endpoint)) {
        return Err(ZmqError::SamePlace {
            endpoint: endpoint.to_string(),
            replay_endpoint: replay.to_string(),
        });
    }
    for endpoint in [Some(&endpoint), replay.as_ref()].into_iter().flatten() {
        if !endpoint.is_local() {
            tracing::warn!(
                "KV EVENTS LEAVE THIS MACHINE THROUGH {endpoint}: they carry the tokens of every prompt, unencrypted, to whoever reads there"
            );
        }
    }
    Ok(Places {
        endpoint,
        binds,
        replay,
    })
}

fn announce(endpoint: &str, replay_endpoint: Option<&str>, binds: bool) {
    if binds {
        tracing::info!(
            endpoint,
            replay_endpoint,
            "KV events are published in vLLM's format; subscribers connect to the endpoint"
        );
    } else {
        tracing::info!(
            endpoint,
            replay_endpoint,
            "KV events are published in vLLM's format to whoever listens on the endpoint; with \"bind\": true it is listened on here"
        );
    }
}

/// The two sockets, and what they are called.
type Opened = ((Source, Option<Source>), (String, Option<String>));

/// What connections come from.
enum Source {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        _socket: RemoveOnDrop,
    },
    /// It is connected to, and again after a loss.
    Remote(Endpoint),
}

async fn open(endpoint: Endpoint, binds: bool, replay: Option<Endpoint>) -> Result<Opened, ZmqError> {
    let (events, name) = if binds {
        bind(&endpoint).await?
    } else {
        let name = endpoint.to_string();
        (Source::Remote(endpoint), name)
    };
    let (replays, replay_name) = match replay {
        Some(endpoint) => bind(&endpoint)
            .await
            .map(|(source, name)| (Some(source), Some(name)))?,
        None => (None, None),
    };
    Ok(((events, replays), (name, replay_name)))
}

async fn bind(endpoint: &Endpoint) -> Result<(Source, String), ZmqError> {
    let bound = async {
        Ok(match endpoint {
            Endpoint::Tcp { host, port } => {
                let host = if host == "*" { "0.0.0.0" } else { host };
                let listener = TcpListener::bind((host, *port)).await?;
                let name = format!("tcp://{}", listener.local_addr()?);
                (Source::Tcp(listener), name)
            }
            Endpoint::Ipc(path) => {
                let listener = bind_unix(path).await?;
                let source = Source::Unix {
                    listener,
                    _socket: RemoveOnDrop(path.clone()),
                };
                (source, endpoint.to_string())
            }
        })
    };
    bound.await.map_err(|source| ZmqError::Bind {
        endpoint: endpoint.to_string(),
        source,
    })
}

/// Serves peers until the worker sends no more; then what is queued has a moment to leave.
async fn run(
    (events, replays): (Source, Option<Source>),
    publication: Publication,
    batches: mpsc::Receiver<Numbered>,
) {
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(events, publication.clone(), Role::Events));
    if let Some(replays) = replays {
        tasks.spawn(serve(replays, publication.clone(), Role::Replays));
    }
    peer::pass_on(batches, publication).await;
    tokio::time::sleep(PAUSE).await;
    tasks.shutdown().await;
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    Events,
    Replays,
}

impl Role {
    const fn max_peers(self) -> usize {
        match self {
            Self::Events => MAX_SUBSCRIBERS,
            Self::Replays => MAX_REPLAY_PEERS,
        }
    }
}

async fn serve(source: Source, publication: Publication, role: Role) {
    let places = Arc::new(Semaphore::new(role.max_peers()));
    let log = Arc::new(PeerLog::default());
    let mut peers = JoinSet::new();
    loop {
        // It fails only when the semaphore is closed, which nobody does.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        while peers.try_join_next().is_some() {}
        let publication = publication.clone();
        let reports = Arc::clone(&log);
        let result = match &source {
            Source::Tcp(listener) => listener.accept().await.map(|(io, _)| {
                peers.spawn(async move {
                    reports.ended(drive(io, &publication, role).await);
                    drop(place);
                });
            }),
            Source::Unix { listener, .. } => listener.accept().await.map(|(io, _)| {
                peers.spawn(async move {
                    reports.ended(drive(io, &publication, role).await);
                    drop(place);
                });
            }),
            Source::Remote(endpoint) => {
                log.lost(endpoint, connect(endpoint, &publication, role).await);
                tokio::time::sleep(PAUSE).await;
                Ok(())
            }
        };
        if let Err(error) = result {
            log.not_accepted(&error);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn connect(endpoint: &Endpoint, publication: &Publication, role: Role) -> Result<(), PeerError> {
    match endpoint {
        Endpoint::Tcp { host, port } => {
            drive(TcpStream::connect((&**host, *port)).await?, publication, role).await
        }
        Endpoint::Ipc(path) => drive(UnixStream::connect(path).await?, publication, role).await,
    }
}

async fn drive<IO>(io: IO, publication: &Publication, role: Role) -> Result<(), PeerError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send,
{
    match role {
        Role::Events => peer::serve_subscriber(io, publication).await,
        Role::Replays => peer::serve_replays(io, publication).await,
    }
}
