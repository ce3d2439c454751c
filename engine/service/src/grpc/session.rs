//! One session: requests and aborts come in, messages of outputs go out. When it ends, for whatever reason, its requests are aborted.

use std::sync::Arc;

use futures::Stream;
use kvasir_client::types::session_request::Kind;
use kvasir_client::types::{Admission, Error, GenerateRequest, SessionRequest, StepOutputs};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming};

use crate::names::Names;
use crate::outbox::Outbox;
use crate::shared::{EngineState, Shared};
use crate::sink::Sink;

/// Starts a session; it lives as long as the stream.
pub(super) fn open(
    shared: Arc<Shared>,
    inbound: Streaming<SessionRequest>,
    stop: CancellationToken,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<StepOutputs, Status>> + Send {
    let limits = shared.limits;
    let session = Arc::new(Session {
        names: Arc::new(Names::new(limits.max_live_requests)),
        outbox: Arc::new(Outbox::new(limits.output_buffer, limits.max_live_requests)),
        shared,
    });
    let reader = tokio::spawn(read(Arc::clone(&session), inbound, stop));
    let guard = Guard {
        session,
        _reader: AbortOnDropHandle::new(reader),
        _place: place,
    };
    futures::stream::unfold(guard, |guard| async move {
        let next = guard.session.outbox.next().await?;
        Some((next, guard))
    })
}

#[derive(Debug)]
struct Session {
    shared: Arc<Shared>,
    names: Arc<Names>,
    outbox: Arc<Outbox>,
}

/// Ends the session when the outgoing stream is dropped: at its end, or when the connection is lost.
#[derive(Debug)]
struct Guard {
    session: Arc<Session>,
    _reader: AbortOnDropHandle<()>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Guard {
    fn drop(&mut self) {
        for key in self.session.names.close() {
            self.session.shared.abort(key, None);
        }
    }
}

/// Why a session stops reading.
enum End {
    /// The client has nothing more to say, or the engine ends: what runs is still told.
    Finish,
    /// The server ends.
    Stop,
    /// The client sent something that can't be read, or the connection is lost.
    Broken(Status),
}

/// Reads what the client says, and ends the session.
async fn read(session: Arc<Session>, mut inbound: Streaming<SessionRequest>, stop: CancellationToken) {
    let end = loop {
        let next = async {
            session.outbox.room().await;
            inbound.message().await
        };
        tokio::select! {
            () = stop.cancelled() => break End::Stop,
            () = session.engine_ended() => break End::Finish,
            message = next => match message {
                Ok(Some(SessionRequest { kind: Some(kind) })) => session.take(kind),
                // From a newer client, about something that it must not rely on.
                Ok(Some(SessionRequest { kind: None })) => {}
                Ok(None) => break End::Finish,
                Err(status) => break End::Broken(status),
            },
        }
    };
    let status = match end {
        End::Finish => {
            tokio::select! {
                () = session.all_ended() => {}
                () = stop.cancelled() => {}
            }
            None
        }
        End::Stop => None,
        End::Broken(status) => Some(status),
    };
    session.outbox.end(status);
}

impl Session {
    fn take(&self, kind: Kind) {
        match kind {
            Kind::Generate(request) => {
                // As much of the id as can be one, for the answer.
                let id: String = request.request_id.chars().take(512).collect();
                if let Err(error) = self.start(request) {
                    self.outbox.answer(Admission {
                        request_id: id,
                        error: Some(error),
                    });
                }
            }
            Kind::Abort(abort) => {
                if let Some(key) = self.names.key(&abort.request_id) {
                    self.shared.abort(key, abort.index);
                }
            }
        }
    }

    fn start(&self, request: GenerateRequest) -> Result<(), Error> {
        let (request, place) = self.shared.prepare(&self.names, request)?;
        self.shared.submit(
            request,
            place,
            Sink::Session {
                outbox: Arc::clone(&self.outbox),
            },
        )
    }

    async fn engine_ended(&self) {
        let mut state = self.shared.state.subscribe();
        let ended = |state: &EngineState| matches!(state, EngineState::Stopped | EngineState::Failed(_));
        // It fails only when the sender is gone, and `self` holds it.
        drop(state.wait_for(ended).await);
    }

    /// Waits until the session's requests have ended and what they were told is queued.
    async fn all_ended(&self) {
        let mut live = self.shared.live.subscribe();
        drop(live.wait_for(|_| self.names.is_empty()).await);
    }
}
