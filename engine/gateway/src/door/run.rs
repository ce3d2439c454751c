//! Charges the requests of one call, sends each to an engine, and settles what they came to.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{StreamExt, TryStreamExt, stream};
use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::OutputStream;
use kvasir_client::types::GenerateRequest;
use kvasir_gateway_core::limits::{Amounts, Cost, Limits};
use kvasir_gateway_core::routing::tokens_within;
use kvasir_gateway_core::salt::{SaltError, TenantSalt};
use uuid::Uuid;

use super::visit::{Inner, Reading, RunningRequest};
use crate::pool::dispatch::{Begun, Job, dispatch};
use crate::pool::{Metered, Tally};
use crate::store::OpenCharge;

/// Requests of one call that wait for an engine or their first tokens at one time.
const MAX_STARTING: usize = 32;

impl Inner {
    /// Charges all requests of a call before the first one reaches an engine, so that none is paid for whose call is refused.
    pub(super) async fn generate_all(
        self: &Arc<Self>,
        requests: Vec<GenerateRequest>,
    ) -> Result<Vec<OutputStream>, ApiError> {
        let (name, tenant) = self.tenant()?;
        let reading = self.lock().reading.clone();
        let reading =
            reading.ok_or_else(|| ApiError::new(ErrorKind::Internal, "the request has no model"))?;
        check_number(requests.len(), &tenant.limits)
            .inspect_err(|error| self.lock().record.decide("limited", error.reason()))?;
        let salt = self.live.settings.salt.tenant_salt(name);
        let mut planned = Vec::with_capacity(requests.len());
        for mut request in requests {
            let hashes = reading.hashes(&salt, &request);
            let hashes = hashes.map_err(|error| {
                ApiError::new(ErrorKind::Value, error.to_string()).with_param("cache_salt")
            })?;
            request.tenant_salt = salt.as_bytes().to_vec().into();
            planned.push((request, hashes));
        }
        let estimates: Vec<Cost> = planned.iter().map(|(request, _)| estimate(request)).collect();
        let charged = self.charge_all(&estimates).await?;
        stream::iter(planned.into_iter().zip(charged))
            .map(|(planned, unbegun)| self.run(&reading, planned, unbegun))
            .buffered(MAX_STARTING)
            .try_collect()
            .await
    }

    /// Charges the requests of a call; all of them or none.
    async fn charge_all(self: &Arc<Self>, estimates: &[Cost]) -> Result<Vec<Unbegun>, ApiError> {
        let (name, tenant) = self.tenant()?;
        let total = |of: &[Cost]| -> Amounts { of.iter().map(|cost| cost.amounts()).sum() };
        let mut charged = Vec::with_capacity(estimates.len());
        for estimate in estimates {
            let admitted = self.accounts.charge(name, &tenant.limits, *estimate).await;
            let admitted = admitted.map_err(|exhausted| {
                // Those before are taken back with this return, and what the client reads is the account without them.
                let before = total(&estimates[..charged.len()]);
                self.exhausted(&exhausted.of_call(before, total(estimates)))
            })?;
            self.lock().usage = Some(admitted.usage);
            charged.push(Unbegun {
                inner: Arc::clone(self),
                charge: Some(admitted.charge),
                estimate: *estimate,
                is_sent: AtomicBool::new(false),
            });
        }
        Ok(charged)
    }

    async fn run(
        self: &Arc<Self>,
        reading: &Reading,
        (request, hashes): (GenerateRequest, Vec<u64>),
        unbegun: Unbegun,
    ) -> Result<OutputStream, ApiError> {
        let estimate = unbegun.estimate;
        let mut waiter = self.waiter(estimate.input_tokens + estimate.output_tokens)?;
        {
            let state = self.lock();
            waiter.weight = state.weight;
            waiter.priority = i32::try_from(state.terms.priority).unwrap_or(waiter.priority);
        }
        let (high, low) = Uuid::new_v4().as_u64_pair();
        let (id, n) = (request.request_id.clone(), request.n.max(1));
        let job = Job {
            model: &reading.model,
            request,
            hashes,
            session: reading.session,
            // Each half has fixed bits where the other one is random.
            random: high ^ low,
            waiter,
            is_sent: &unbegun.is_sent,
        };
        match dispatch(&reading.pool, job).await {
            Ok(begun) => {
                reading.pool.metrics.routed(begun.place.overlap_blocks);
                Ok(self.metered(begun, (id, n), unbegun.taken(), estimate.input_tokens))
            }
            Err(failed) => {
                unbegun.taken().cancel();
                Err(self.failed(&failed))
            }
        }
    }

    /// The outputs of a request that has begun, counted, and settled at their end.
    fn metered(
        self: &Arc<Self>,
        begun: Begun,
        (id, n): (String, u32),
        charge: OpenCharge,
        input_tokens: u64,
    ) -> OutputStream {
        {
            let mut state = self.lock();
            state.record.engines.push(begun.place.engine.clone());
            state.record.attempts += begun.place.attempts;
            let running = RunningRequest {
                client: Arc::clone(&begun.place.client),
                stopped: BTreeSet::new(),
            };
            state.running.insert(id.clone(), running);
        }
        let inner = Arc::clone(self);
        let request_id = id.clone();
        Box::pin(Metered::begun(begun, (&request_id, n), move |tally: &Tally| {
            let actual = Cost {
                input_tokens,
                output_tokens: tally.output_tokens,
            };
            charge.settle(actual);
            let mut state = inner.lock();
            // What the edge has ended had what it asked for, a stop string for example.
            let stopped = state.running.remove(&id).map(|running| running.stopped);
            let is_whole = tally.open.is_subset(&stopped.unwrap_or_default());
            state.record.ended(tally, actual, is_whole);
        }))
    }
}

impl Reading {
    /// What the choice of an engine looks at of a request's prompt.
    fn hashes(&self, salt: &TenantSalt, request: &GenerateRequest) -> Result<Vec<u64>, SaltError> {
        let prompt = &request.prompt_token_ids;
        let num_tokens = self.pool.prefix_chars.map_or(prompt.len(), |chars| {
            let text = self.model.pipeline.text();
            // An id that has no token has no text.
            tokens_within(prompt, |id| text.token_bytes(id).unwrap_or_default(), chars)
        });
        self.model
            .hashes(salt, &request.cache_salt, &prompt[..num_tokens])
    }
}

/// A charged request that no engine has begun to answer. Dropped, its client has left or its call was refused: it costs nothing, or its
/// prompt where an engine has it.
struct Unbegun {
    inner: Arc<Inner>,
    /// Until it's settled by somebody else.
    charge: Option<OpenCharge>,
    estimate: Cost,
    is_sent: AtomicBool,
}

impl Unbegun {
    /// The charge, which whoever takes it settles.
    fn taken(mut self) -> OpenCharge {
        self.charge.take().expect("it's taken once, with the whole")
    }
}

impl Drop for Unbegun {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take() else { return };
        if !self.is_sent.load(Ordering::Relaxed) {
            return charge.cancel();
        }
        let actual = Cost {
            input_tokens: self.estimate.input_tokens,
            output_tokens: 0,
        };
        charge.settle(actual);
        self.inner.lock().record.paid(actual);
    }
}

/// A call with more prompts than may ever run together is refused as such: waiting wouldn't help it.
fn check_number(num_requests: usize, limits: &Limits) -> Result<(), ApiError> {
    let most = [
        (limits.requests_per_minute, "requests per minute"),
        (limits.concurrency.map(u64::from), "requests at one time"),
    ];
    for (limit, what) in most {
        if let Some(limit) = limit.filter(|limit| num_requests as u64 > *limit && num_requests > 1) {
            let message = format!(
                "each prompt is a request, and {num_requests} are more than the limit of {limit} {what}"
            );
            let error = ApiError::new(ErrorKind::Value, message).with_param("prompt");
            return Err(error.because("request_exceeds_limit"));
        }
    }
    Ok(())
}

/// The most that a request can cost.
fn estimate(request: &GenerateRequest) -> Cost {
    let max_tokens = request.stop.as_ref().map_or(0, |stop| stop.max_tokens);
    Cost {
        input_tokens: request.prompt_token_ids.len() as u64,
        output_tokens: u64::from(max_tokens) * u64::from(request.n.max(1)),
    }
}
