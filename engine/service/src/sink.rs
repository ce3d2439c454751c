//! A request on its way to the worker, and the way back.

use std::sync::Arc;
use std::time::Instant;

use kvasir_client::types::{Admission, Error, SequenceOutput};
use kvasir_client::{Delivery, OutputSender};
use tokio::sync::oneshot;

use crate::names::{Names, RequestKey};
use crate::outbox::Outbox;
use crate::shared::Shared;
use crate::validate::ValidRequest;

/// A validated request.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) request: ValidRequest,
    pub(crate) received: Instant,
    pub(crate) sink: Sink,
    pub(crate) place: Place,
}

impl Submission {
    /// Answers a request that isn't taken; its id is free before the client can know.
    pub(crate) fn refuse(self, error: Error) {
        let Self { mut sink, place, .. } = self;
        place.free_name();
        sink.answer(&place.request_id, Err(error));
        if let Sink::Session { outbox } = sink {
            outbox.commit();
        }
    }
}

/// Where a request's answer and outputs go.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A reader in this process.
    Local {
        outputs: OutputSender,
        /// Until it is answered.
        admission: Option<oneshot::Sender<Result<(), Error>>>,
    },
    /// A gRPC session.
    Session { outbox: Arc<Outbox> },
}

impl Sink {
    /// Answers the request, once.
    pub(crate) fn answer(&mut self, request_id: &str, answer: Result<(), Error>) {
        match self {
            Self::Local { admission, .. } => {
                if let Some(admission) = admission.take() {
                    // A caller that no longer waits has left an abort behind.
                    drop(admission.send(answer));
                }
            }
            Self::Session { outbox } => {
                outbox.answer(Admission {
                    request_id: request_id.to_owned(),
                    error: answer.err(),
                });
            }
        }
    }

    /// Passes an output on. Those for a session leave when it is committed.
    pub(crate) fn send(&mut self, key: RequestKey, output: SequenceOutput) -> Delivery {
        match self {
            Self::Local { outputs, .. } => outputs.send(output),
            Self::Session { outbox } => outbox.stage(key, output),
        }
    }
}

/// A live request's place in the table of its client and in the count that draining waits for. Given back on drop.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) key: RequestKey,
    pub(crate) request_id: String,
    pub(crate) names: Arc<Names>,
    shared: Arc<Shared>,
}

impl Place {
    /// Takes a place.
    ///
    /// # Errors
    /// See [`Names::claim`].
    pub(crate) fn claim(shared: &Arc<Shared>, names: &Arc<Names>, request_id: &str) -> Result<Self, Error> {
        let key = shared.next_key();
        names.claim(request_id, key)?;
        shared.live.send_modify(|live| *live += 1);
        Ok(Self {
            key,
            request_id: request_id.to_owned(),
            names: Arc::clone(names),
            shared: Arc::clone(shared),
        })
    }

    /// Frees the id before the reader can learn that the request has ended.
    pub(crate) fn free_name(&self) {
        self.names.release(&self.request_id, self.key);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.free_name();
        self.shared.live.send_modify(|live| *live -= 1);
    }
}
