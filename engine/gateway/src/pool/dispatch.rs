//! Sends a request to an engine, and elsewhere if that fails before its first token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::types::{Error, ErrorCode, GenerateRequest, SequenceOutput};
use kvasir_client::{EngineClient, GrpcClient, OutputStream};
use kvasir_edge::Source;
use kvasir_gateway_core::routing::{
    Attempt, EngineFailure, EngineId, NoEngine, Outcome, Retry, RouteRequest, Ticket,
};
use kvasir_gateway_core::waiting::Waiter;

use super::failed::{self, Failed, failure_of};
use super::gap::Unbroken;
use super::{Pool, RevisionModel, Turn};

/// A request with everything that its choice of an engine looks at.
pub(crate) struct Job<'a> {
    pub(crate) model: &'a RevisionModel,
    pub(crate) request: GenerateRequest,
    pub(crate) hashes: Vec<u64>,
    pub(crate) session: Option<u64>,
    pub(crate) random: u64,
    /// How it waits.
    pub(crate) waiter: Waiter,
    /// Set once an engine has it.
    pub(crate) is_sent: &'a AtomicBool,
}

/// A request that has begun to be answered.
pub(crate) struct Begun {
    pub(crate) first: SequenceOutput,
    pub(crate) rest: OutputStream,
    pub(crate) place: Running,
}

/// A request's place at its engine. Dropped, its client has left.
pub(crate) struct Running {
    pool: Arc<Pool>,
    pub(crate) client: Arc<GrpcClient>,
    ticket: Option<Ticket>,
    /// Where it runs, for the audit log.
    pub(crate) engine: String,
    /// Blocks that the engine was thought to have cached.
    pub(crate) overlap_blocks: u32,
    /// Engines that it was sent to.
    pub(crate) attempts: u32,
}

/// Sends a request until an engine begins to answer it.
pub(crate) async fn dispatch(pool: &Arc<Pool>, mut job: Job<'_>) -> Result<Begun, Failed> {
    let mut excluded: Vec<EngineId> = Vec::new();
    // Engines that it was sent to, and those that it failed at.
    let (mut num_sent, mut attempts) = (0, 0);
    let mut last_failure = None;
    pool.lock().budget.request();
    loop {
        let revision = &job.model.revision;
        let turn = match pool.turn(&mut job.waiter, Some(revision)).await {
            Ok(turn) => turn,
            Err(_) if is_superseded(pool, &job) => return Err(Failed::Superseded),
            Err(refusal) => return Err(last_failure.unwrap_or(Failed::SentAway(refusal))),
        };
        let (mut place, engine_id) = match choose(pool, &job, &excluded, turn) {
            Ok(chosen) => chosen,
            // It has failed the others: nothing to wait for.
            Err(NoEngine::AllTried) => {
                return Err(last_failure.unwrap_or(Failed::AllTried));
            }
            Err(_) if is_superseded(pool, &job) => return Err(Failed::Superseded),
            // Between turn and choice the last engine went; the next turn waits or is refused.
            Err(NoEngine::NoneKnown | NoEngine::AllDraining | NoEngine::AllEjected) => continue,
        };
        num_sent += 1;
        job.is_sent.store(true, Ordering::Relaxed);
        place.attempts = num_sent;
        let error = match first_output(pool, &place.client, &job.request).await {
            Ok(outputs) => return Ok(place.begun(outputs, job.request.n)),
            Err(error) => error,
        };
        let Some(failure) = failure_of(&error) else {
            place.finish(Outcome::Completed);
            return Err(Failed::Engine(error));
        };
        place.finish(Outcome::Failed(failure));
        pool.metrics.engine_failed(failure);
        attempts += u32::from(failure != EngineFailure::ShuttingDown);
        let is_gone = failure == EngineFailure::ConnectionLost && is_gone(&place.client).await;
        let retry = retry(pool, engine_id, (failure, is_gone), attempts);
        tracing::info!(
            engine = place.engine,
            code = failure.code(),
            ?retry,
            reason = error.message,
            "an engine failed a request"
        );
        let failed = Failed::Engine(error);
        if retry != Retry::Elsewhere {
            return Err(failed);
        }
        pool.metrics.retried();
        excluded.push(engine_id);
        last_failure = Some(failed);
        job.random = job.random.rotate_left(7).wrapping_add(1);
    }
}

fn is_superseded(pool: &Pool, job: &Job<'_>) -> bool {
    let now = pool.clock.now();
    pool.lock().is_superseded(&job.model.revision, now)
}

/// Whether the connection is lost, and not one request alone. All that it carried end at the same time, a moment before it's known.
async fn is_gone(client: &GrpcClient) -> bool {
    tokio::time::timeout(MOMENT, client.disconnected()).await.is_ok()
}

/// Longest time between the end of a connection's requests and its own.
const MOMENT: Duration = Duration::from_millis(100);

/// Whether a request goes on after an engine has failed it.
fn retry(pool: &Pool, engine: EngineId, (failure, is_gone): (EngineFailure, bool), attempts: u32) -> Retry {
    let now = pool.clock.now();
    let mut core = pool.lock();
    if is_gone || failure == EngineFailure::ShuttingDown {
        // Its report says so in a moment, or its link takes it away; nobody else should have to find out, and who waits for an engine must
        // not take this one for one that can be used.
        core.router.set_draining(engine, true);
    }
    let is_out_of_use = core.router.is_out_of_use(engine, now);
    core.budget.retry(Attempt {
        failure,
        has_begun: false,
        attempts,
        is_out_of_use,
    })
}

fn choose(
    pool: &Arc<Pool>,
    job: &Job<'_>,
    excluded: &[EngineId],
    turn: Turn,
) -> Result<(Running, EngineId), NoEngine> {
    let now = pool.clock.now();
    let request = RouteRequest {
        revision: &job.model.revision,
        prompt_tokens: u32::try_from(job.request.prompt_token_ids.len()).unwrap_or(u32::MAX),
        num_sequences: job.request.n,
        hashes: &job.hashes,
        session: job.session,
        excluded,
        random: job.random,
    };
    let chosen = pool.lock().choose(&request, now);
    // The turn ends after the counters have risen, so that nobody is let in twice for one seat.
    drop(turn);
    let (choice, client) = chosen?;
    let place = Running {
        pool: Arc::clone(pool),
        client,
        engine: choice.address.to_string(),
        overlap_blocks: choice.overlap_blocks,
        attempts: 0,
        ticket: Some(choice.ticket),
    };
    Ok((place, choice.engine))
}

/// The first output that shows that the engine works on the request.
async fn first_output(
    pool: &Pool,
    client: &GrpcClient,
    request: &GenerateRequest,
) -> Result<(SequenceOutput, OutputStream), Error> {
    let patience = pool.patience.first_token;
    let first = async {
        let mut outputs = client.generate(request.clone()).await?;
        let lost = || kvasir_client::refusal(ErrorCode::Unavailable, "the engine ended the request early");
        let first = outputs.next().await.ok_or_else(lost)?;
        match first.finish.as_ref().and_then(|finish| finish.error.clone()) {
            Some(error) if first.token_ids.is_empty() => Err(error),
            _ => Ok((first, outputs)),
        }
    };
    match tokio::time::timeout(patience, first).await {
        Ok(first) => first,
        Err(_) => Err(failed::no_first_token(patience)),
    }
}

impl Running {
    fn begun(mut self, (first, rest): (SequenceOutput, OutputStream), n: u32) -> Begun {
        let now = self.pool.clock.now();
        if let Some(ticket) = &mut self.ticket {
            self.pool.lock().router.begun(ticket, now);
        }
        let rest = Unbroken::new(&first, rest, n, self.pool.patience.next_token);
        Begun {
            first,
            rest: Box::pin(rest),
            place: self,
        }
    }

    /// The request has ended there.
    pub(crate) fn finish(&mut self, outcome: Outcome) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let now = self.pool.clock.now();
        let mut core = self.pool.lock();
        core.router.finish(ticket, outcome, now);
        core.usher(now);
    }

    /// The error that ended a request which had begun.
    pub(crate) fn fail(&mut self, error: &Error) {
        match failure_of(error) {
            Some(failure) => {
                self.pool.metrics.engine_failed(failure);
                self.finish(Outcome::Failed(failure));
                self.pool.failed_begun(&self.engine, failure, &error.message);
            }
            None => self.finish(Outcome::Completed),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.finish(Outcome::ClientLeft);
    }
}

/// Stands where a request's own source will be.
pub(super) struct NoSource;

#[async_trait]
impl Source for NoSource {
    async fn generate(&self, _request: GenerateRequest) -> Result<OutputStream, ApiError> {
        Err(ApiError::new(
            ErrorKind::Internal,
            "this request came by no visit",
        ))
    }

    fn abort(&self, _request_id: &str, _index: Option<u32>) {}
}
