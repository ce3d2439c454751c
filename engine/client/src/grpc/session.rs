//! Keeps one session open to the engine, and opens it again with growing pauses after a loss.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kvasir_proto::engine::v1::engine_client::EngineClient as Stub;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::CALL_TIMEOUT;
use super::routes::Routes;
use crate::error::refusal;
use crate::types::session_request::Kind;
use crate::types::{
    AbortRequest, Error, ErrorCode, GenerateRequest, GetModelInfoRequest, ModelInfo, SessionRequest,
    StepOutputs,
};

/// Requests that wait for the transport; more wait for their turn.
const MAX_UNSENT: usize = 256;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Whether the engine can be talked to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Link {
    /// No attempt has ended yet.
    Connecting,
    /// A session is open.
    Open,
    /// The last attempt failed or the session broke, for this reason.
    Lost(String),
}

/// What the client and the task that runs the session share.
#[derive(Debug)]
pub(super) struct Session {
    target: String,
    link: watch::Sender<Link>,
    unsent: Arc<Semaphore>,
    state: Mutex<State>,
    /// What the first session's engine served.
    identity: OnceLock<Identity>,
}

/// What a client has built on: its tokenizer came with these text assets, and its answers name these weights.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Identity {
    vocab_size: u32,
    text_assets_digest: String,
    weights_digest: String,
}

impl From<ModelInfo> for Identity {
    fn from(info: ModelInfo) -> Self {
        Self {
            vocab_size: info.vocab_size,
            text_assets_digest: info.text_assets_digest,
            weights_digest: info.weights_digest,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    routes: Routes,
    outgoing: Option<mpsc::UnboundedSender<Outgoing>>,
}

/// A message on its way to the transport. Its queue is bounded by accounting: requests hold a permit until they are taken, and a live
/// request queues at most one abort per sequence and one for all.
#[derive(Debug)]
struct Outgoing {
    message: SessionRequest,
    /// Returned when the transport takes the message.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Session {
    pub(super) fn new(target: &str) -> Self {
        Self {
            target: target.to_owned(),
            link: watch::Sender::new(Link::Connecting),
            unsent: Arc::new(Semaphore::new(MAX_UNSENT)),
            state: Mutex::default(),
            identity: OnceLock::new(),
        }
    }

    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Runs until dropped.
    pub(super) async fn run(&self, mut stub: Stub<Channel>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let (sender, receiver) = mpsc::unbounded_channel::<Outgoing>();
            let requests = UnboundedReceiverStream::new(receiver).map(|outgoing| outgoing.message);
            let reason = match stub.session(requests).await {
                Ok(response) => match self.recognize(&mut stub).await {
                    Ok(()) => {
                        self.opened(sender);
                        let (heard, reason) = self.read(response.into_inner()).await;
                        if heard {
                            pause = FIRST_PAUSE;
                        }
                        reason
                    }
                    Err(reason) => reason,
                },
                Err(status) => describe(&status),
            };
            self.lost(reason);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Refuses an engine that serves another model than the first session's: its token ids would mean other text. Asked once the
    /// session is open, because from then on both go to the same process.
    async fn recognize(&self, stub: &mut Stub<Channel>) -> Result<(), String> {
        let asked = stub.get_model_info(GetModelInfoRequest {});
        let info = match tokio::time::timeout(CALL_TIMEOUT, asked).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return Err(describe(&status)),
            Err(_) => return Err(format!("no answer within {} s", CALL_TIMEOUT.as_secs())),
        };
        let model = info.model.clone();
        let found = Identity::from(info);
        if *self.identity.get_or_init(|| found.clone()) == found {
            return Ok(());
        }
        Err(format!(
            "it serves another model now, {model}, whose tokens would mean other text; restart this process to use it"
        ))
    }

    /// Fails while there is no session.
    ///
    /// # Errors
    /// If the last attempt failed, or the session broke.
    pub(super) fn check(&self) -> Result<(), Error> {
        let is_lost = matches!(*self.link.borrow(), Link::Lost(_));
        if is_lost { Err(self.unavailable()) } else { Ok(()) }
    }

    /// Works on the routing table.
    pub(super) fn with_routes<T>(&self, work: impl FnOnce(&mut Routes) -> T) -> T {
        work(&mut self.lock().routes)
    }

    /// Sends a request whose route exists, when the transport has room.
    ///
    /// # Errors
    /// If there is no session, or it broke meanwhile.
    pub(super) async fn send(&self, request: GenerateRequest) -> Result<(), Error> {
        let permit = Arc::clone(&self.unsent)
            .acquire_owned()
            .await
            .map_err(|_| self.unavailable())?;
        self.queue(Kind::Generate(request), Some(permit))
    }

    /// Sends an abort; without a session there is nothing to abort.
    pub(super) fn abort(&self, wire_id: String, index: Option<u32>) {
        if self
            .queue(
                Kind::Abort(AbortRequest {
                    request_id: wire_id,
                    index,
                }),
                None,
            )
            .is_err()
        {
            tracing::trace!("an abort had no session to go to");
        }
    }

    /// The error of a call that can't be made now.
    pub(super) fn unavailable(&self) -> Error {
        let reason = match &*self.link.borrow() {
            Link::Lost(reason) => reason.clone(),
            Link::Connecting | Link::Open => "the session is not open".to_owned(),
        };
        let message = format!(
            "the engine at {} can't be reached ({reason}); it is tried again",
            self.target
        );
        refusal(ErrorCode::Unavailable, message)
    }

    fn queue(&self, kind: Kind, permit: Option<OwnedSemaphorePermit>) -> Result<(), Error> {
        let outgoing = Outgoing {
            message: SessionRequest { kind: Some(kind) },
            _permit: permit,
        };
        let sent = self
            .lock()
            .outgoing
            .as_ref()
            .is_some_and(|sender| sender.send(outgoing).is_ok());
        if sent { Ok(()) } else { Err(self.unavailable()) }
    }

    /// Routes what the engine sends until the session ends. Says whether anything came, and why it ended.
    async fn read(&self, mut outputs: Streaming<StepOutputs>) -> (bool, String) {
        let mut heard = false;
        loop {
            match outputs.message().await {
                Ok(Some(message)) => {
                    heard = true;
                    for wire_id in self.with_routes(|routes| routes.route(message)) {
                        self.abort(wire_id, None);
                    }
                }
                Ok(None) => return (heard, "the engine ended the session".to_owned()),
                Err(status) => return (heard, describe(&status)),
            }
        }
    }

    fn opened(&self, sender: mpsc::UnboundedSender<Outgoing>) {
        self.lock().outgoing = Some(sender);
        self.link.send_replace(Link::Open);
        tracing::info!(target = self.target, "session with the engine is open");
    }

    fn lost(&self, reason: String) {
        match &*self.link.borrow() {
            // Whoever connects hears of it.
            Link::Connecting => tracing::debug!(target = self.target, reason, "no session with the engine"),
            Link::Lost(known) if *known == reason => {
                tracing::debug!(target = self.target, reason, "still no session with the engine");
            }
            Link::Open | Link::Lost(_) => {
                tracing::warn!(
                    target = self.target,
                    reason,
                    "no session with the engine; it's tried again"
                );
            }
        }
        self.link.send_replace(Link::Lost(reason));
        let error = self.unavailable();
        let mut state = self.lock();
        state.outgoing = None;
        state.routes.fail_all(&error);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Every change under the lock is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A status with the reasons behind it: tonic's own text is often just "transport error", and often that of all of them.
fn describe(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn a_reason_that_every_layer_repeats_is_told_once() {
        let layers = ["tcp connect error: refused", "refused", "refused", "by a rule"];
        let mut source = None;
        for text in layers.into_iter().rev() {
            source = Some(Box::new(Layer { text, source }));
        }
        let status = Status::from_error(source.expect("there are layers"));
        assert_eq!(describe(&status), "tcp connect error: refused: by a rule");
    }
}
