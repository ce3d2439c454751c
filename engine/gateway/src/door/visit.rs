//! One request behind the door, until its answer is out.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::types::GenerateRequest;
use kvasir_client::{EngineClient, GrpcClient, OutputStream};
use kvasir_edge::host::{Knock, Terms, Visit, Wanted};
use kvasir_edge::{PeerAddress, Pipeline, Source};
use kvasir_gateway_core::auth::Principal;
use kvasir_gateway_core::limits::{Cost, Exhausted, Usage, rate_limit_headers, retry_after_seconds};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::policy::{Entry, ModelUse, Tenant};
use kvasir_gateway_core::time::Micros;
use kvasir_gateway_core::waiting::Waiter;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::audit::{Audit, AuditLine};
use super::{DoorHost, Live, denied};
use crate::metrics::GatewayMetrics;
use crate::pool::dispatch::{Begun, Failed, Job, dispatch, refused};
use crate::pool::{Metered, Pool, RevisionModel};
use crate::store::{Accounts, OpenCharge};

/// Bytes of a request's body that are taken for one token while nobody can count them.
const BYTES_PER_TOKEN: usize = 4;

/// A request that was let in.
pub(crate) struct Visiting {
    inner: Arc<Inner>,
}

struct Inner {
    live: Arc<Live>,
    pool: Arc<Pool>,
    accounts: Accounts,
    /// `None` on public routes.
    tenant: Option<TenantName>,
    session: Option<u64>,
    state: Mutex<State>,
}

/// What happens to the request.
struct State {
    record: VisitorRecord,
    model: Option<Arc<RevisionModel>>,
    terms: Terms,
    weight: u32,
    usage: Option<Usage>,
    retry_after: Option<u64>,
    /// The end of all its waiting, once it has begun to wait.
    until: Micros,
    /// The engines that it was read for have gone; others are there.
    is_superseded: bool,
    /// Its own requests at engines, by their ids: nobody else's can be named.
    running: BTreeMap<String, Arc<GrpcClient>>,
}

/// What the audit log says of a request; written when it's dropped.
pub(crate) struct VisitorRecord {
    audit: Audit,
    metrics: Arc<GatewayMetrics>,
    began: Instant,
    request_id: String,
    tenant: Option<String>,
    method: Option<&'static str>,
    subject: Option<String>,
    peer: Option<SocketAddr>,
    http_method: String,
    route: &'static str,
    model: Option<String>,
    revision: Option<String>,
    engines: Vec<String>,
    attempts: u32,
    decision: &'static str,
    reason: &'static str,
    status: u16,
    cost: Cost,
    cached_tokens: u64,
}

impl Visiting {
    /// On a public route, where nobody is known and no model can be used.
    pub(super) fn public(host: &DoorHost, live: Arc<Live>, record: VisitorRecord) -> Self {
        Self::new(host, live, record, None, None)
    }

    /// Of a tenant that may use the route.
    pub(super) fn of_tenant(
        host: &DoorHost,
        live: Arc<Live>,
        record: VisitorRecord,
        tenant: TenantName,
        session: Option<&[u8]>,
    ) -> Self {
        // Two tenants' sessions of one name are two sessions.
        let session = session.map(|session| {
            let digest = Sha256::new()
                .chain_update((tenant.as_str().len() as u64).to_le_bytes())
                .chain_update(tenant.as_str())
                .chain_update(session)
                .finalize();
            digest
                .iter()
                .take(8)
                .fold(0, |bits, byte| bits << 8 | u64::from(*byte))
        });
        Self::new(host, live, record, Some(tenant), session)
    }

    fn new(
        host: &DoorHost,
        live: Arc<Live>,
        record: VisitorRecord,
        tenant: Option<TenantName>,
        session: Option<u64>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                live,
                pool: Arc::clone(&host.pool),
                accounts: host.accounts.clone(),
                tenant,
                session,
                state: Mutex::new(State {
                    record,
                    model: None,
                    terms: Terms::default(),
                    weight: 1,
                    usage: None,
                    retry_after: None,
                    until: Micros(u64::MAX),
                    is_superseded: false,
                    running: BTreeMap::new(),
                }),
            }),
        }
    }
}

#[async_trait]
impl Visit for Visiting {
    fn sees_model(&self, name: &str) -> bool {
        self.inner.entry().is_some_and(|entry| entry.sees_model(name))
    }

    async fn pipeline(&self, body_bytes: usize) -> Result<Pipeline, ApiError> {
        let inner = &self.inner;
        let model = loop {
            if let Some(model) = inner.pool.pick(inner.session) {
                break model;
            }
            // No engine has ever told what it serves: the request waits as a whole.
            let mut waiter = inner.waiter((body_bytes / BYTES_PER_TOKEN) as u64)?;
            let turn = inner.pool.turn(&mut waiter, None).await;
            let mut state = inner.lock();
            state.until = waiter.until;
            if let Err(refusal) = turn {
                state.record.failed(refusal.code());
                state.retry_after = Some(inner.live.settings.door.retry_after.as_secs());
                return Err(refused(refusal));
            }
        };
        let mut state = inner.lock();
        state.record.revision = Some(model.revision.to_string());
        state.model = Some(Arc::clone(&model));
        drop(state);
        Ok(model
            .pipeline
            .with_source(Arc::new(VisitSource(Arc::clone(inner)))))
    }

    fn terms(&self, wanted: Wanted<'_>) -> Result<Terms, ApiError> {
        let inner = &self.inner;
        let mut state = inner.lock();
        state.record.model = Some(wanted.model.to_owned());
        let priority =
            |priority: i64| i32::try_from(priority).unwrap_or(if priority < 0 { i32::MIN } else { i32::MAX });
        let granted = inner.entry().ok_or(ErrorKind::Forbidden).map(|entry| {
            entry.grant(ModelUse {
                model: wanted.model,
                adapter: None,
                max_tokens: wanted.max_tokens,
                priority: wanted.priority.map(priority),
            })
        });
        match granted {
            Ok(Ok(grant)) => {
                state.terms = Terms {
                    max_tokens: grant.max_tokens,
                    priority: grant.priority.into(),
                };
                state.weight = grant.weight;
                Ok(state.terms)
            }
            Ok(Err(denial)) => {
                state.record.decide("denied", denial.code());
                Err(denied(denial))
            }
            Err(kind) => Err(ApiError::new(kind, "no model can be used here")),
        }
    }

    fn goes_again(&self) -> bool {
        std::mem::take(&mut self.inner.lock().is_superseded)
    }

    fn answered(&self, status: StatusCode, headers: &mut HeaderMap) {
        let mut state = self.inner.lock();
        state.record.status = status.as_u16();
        if status.is_client_error() && state.record.decision == "allowed" && state.record.reason == "ok" {
            state.record.decide("failed", "bad_request");
        } else if status.is_server_error() && state.record.reason == "ok" {
            state.record.decide("failed", "unavailable");
        }
        for (name, value) in state.usage.iter().flat_map(rate_limit_headers) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        if let Some(seconds) = state.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
    }
}

/// Runs a visit's requests. Keeps the visit until they have ended.
struct VisitSource(Arc<Inner>);

#[async_trait]
impl Source for VisitSource {
    async fn generate(&self, request: GenerateRequest) -> Result<OutputStream, ApiError> {
        self.0.generate(request).await
    }

    fn abort(&self, request_id: &str, index: Option<u32>) {
        let client = self.0.lock().running.get(request_id).cloned();
        if let Some(client) = client {
            client.abort(request_id, index);
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant's rules, as they were when it came in.
    fn tenant(&self) -> Result<(&TenantName, &Tenant), ApiError> {
        let known = self.tenant.as_ref().and_then(|name| {
            let (name, tenant) = self.live.settings.policy.tenants.get_key_value(name)?;
            Some((name, tenant))
        });
        known.ok_or_else(|| ApiError::new(ErrorKind::Forbidden, "no model can be used here"))
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let (name, tenant) = self.tenant().ok()?;
        Some(Entry::Tenant { name, tenant })
    }

    fn waiter(&self, cost: u64) -> Result<Waiter, ApiError> {
        let (name, tenant) = self.tenant()?;
        Ok(Waiter {
            tenant: name.clone(),
            priority: tenant.priority,
            weight: tenant.weight.max(1),
            cost,
            queue_share_percent: tenant.queue_share_percent,
            until: self.lock().until,
        })
    }

    async fn generate(self: &Arc<Self>, mut request: GenerateRequest) -> Result<OutputStream, ApiError> {
        let (name, tenant) = self.tenant()?;
        let model = self.lock().model.clone();
        let model = model.ok_or_else(|| ApiError::new(ErrorKind::Internal, "the request has no model"))?;
        let salt = self.live.settings.salt.tenant_salt(name);
        let hashes = model.hashes(&salt, &request.cache_salt, &request.prompt_token_ids);
        let hashes = hashes
            .map_err(|error| ApiError::new(ErrorKind::Value, error.to_string()).with_param("cache_salt"))?;
        request.tenant_salt = salt.as_bytes().to_vec().into();
        let estimate = estimate(&request);
        let admitted = match self.accounts.charge(name, &tenant.limits, estimate).await {
            Ok(admitted) => admitted,
            Err(exhausted) => return Err(self.exhausted(&exhausted)),
        };
        self.lock().usage = Some(admitted.usage);
        let mut waiter = self.waiter(estimate.input_tokens + estimate.output_tokens)?;
        {
            let state = self.lock();
            waiter.weight = state.weight;
            waiter.priority = i32::try_from(state.terms.priority).unwrap_or(waiter.priority);
        }
        let (high, low) = Uuid::new_v4().as_u64_pair();
        let (id, n) = (request.request_id.clone(), request.n.max(1));
        let job = Job {
            model: &model,
            request,
            hashes,
            session: self.session,
            // Each half has fixed bits where the other one is random.
            random: high ^ low,
            waiter,
        };
        let begun = match dispatch(&self.pool, job).await {
            Ok(begun) => begun,
            Err(failed) => {
                admitted.charge.cancel();
                return Err(self.failed(&failed));
            }
        };
        Ok(self.metered(begun, (id, n), admitted.charge, estimate.input_tokens))
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
            state.running.insert(id.clone(), Arc::clone(&begun.place.client));
        }
        self.pool.metrics.routed(begun.place.overlap_blocks);
        let inner = Arc::clone(self);
        Box::pin(Metered::new(begun, n, move |tally, _place| {
            let actual = Cost {
                input_tokens,
                output_tokens: tally.output_tokens,
            };
            charge.settle(actual);
            let mut state = inner.lock();
            state.running.remove(&id);
            state.record.ended(tally, actual);
        }))
    }

    fn failed(&self, failed: &Failed) -> ApiError {
        let mut state = self.lock();
        if matches!(failed, Failed::Superseded) {
            // No failure: it's read again, and recorded when that has ended.
            state.is_superseded = true;
            return failed.answer();
        }
        state.record.failed(failed.code());
        let answer = failed.answer();
        if matches!(answer.status(), 429 | 503) {
            state.retry_after = Some(self.live.settings.door.retry_after.as_secs().max(1));
        }
        answer
    }

    fn exhausted(&self, exhausted: &Exhausted) -> ApiError {
        let mut state = self.lock();
        state.record.decide("limited", exhausted.code());
        state.retry_after = retry_after_seconds(exhausted);
        ApiError::new(ErrorKind::RateLimited, exhausted.to_string())
    }
}

/// The most that a request can cost.
fn estimate(request: &GenerateRequest) -> Cost {
    let max_tokens = request.stop.as_ref().map_or(0, |stop| stop.max_tokens);
    Cost {
        input_tokens: request.prompt_token_ids.len() as u64,
        output_tokens: u64::from(max_tokens) * u64::from(request.n.max(1)),
    }
}

impl VisitorRecord {
    pub(super) fn new(knock: &Knock<'_>, audit: Audit, metrics: Arc<GatewayMetrics>) -> Self {
        Self {
            audit,
            metrics,
            began: knock.arrival,
            request_id: knock.request_id.to_owned(),
            tenant: None,
            method: None,
            subject: None,
            peer: knock.connection.get::<PeerAddress>().map(|peer| peer.0),
            http_method: knock.route.method.to_string(),
            route: knock.route.path,
            model: None,
            revision: None,
            engines: Vec::new(),
            attempts: 0,
            decision: "allowed",
            reason: "ok",
            status: 0,
            cost: Cost::default(),
            cached_tokens: 0,
        }
    }

    pub(super) fn known(&mut self, principal: &Principal) {
        self.tenant = Some(principal.tenant.to_string());
        self.method = Some(principal.method.code());
        self.subject = Some(principal.subject.clone());
    }

    pub(super) fn denied(&mut self, reason: &'static str, status: u16) {
        self.decide("denied", reason);
        self.status = status;
    }

    fn decide(&mut self, decision: &'static str, reason: &'static str) {
        self.decision = decision;
        self.reason = reason;
    }

    fn failed(&mut self, reason: &'static str) {
        self.decide("failed", reason);
    }

    fn ended(&mut self, tally: &crate::pool::Tally, actual: Cost) {
        self.cost.input_tokens += actual.input_tokens;
        self.cost.output_tokens += actual.output_tokens;
        self.cached_tokens += u64::from(tally.cached_tokens);
        if tally.error.is_some() {
            self.failed("engine_failed");
        } else if !tally.is_done && self.reason == "ok" {
            self.reason = "ended_early";
        }
    }
}

impl Drop for VisitorRecord {
    fn drop(&mut self) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.status == 0 {
            // The client left before there was anything to answer.
            self.reason = "client_left";
        }
        self.audit.log(&AuditLine {
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            request_id: &self.request_id,
            tenant: self.tenant.as_deref(),
            method: self.method,
            subject: self.subject.as_deref(),
            peer: self.peer,
            http_method: &self.http_method,
            route: self.route,
            model: self.model.as_deref(),
            revision: self.revision.as_deref(),
            engines: self.engines.iter().map(String::as_str).collect(),
            attempts: self.attempts,
            decision: self.decision,
            reason: self.reason,
            status: self.status,
            input_tokens: self.cost.input_tokens,
            output_tokens: self.cost.output_tokens,
            cached_tokens: self.cached_tokens,
            duration_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
        let tenant = self.tenant.as_deref();
        self.metrics.request_ended(tenant, self.decision, self.reason);
        self.metrics.tokens(tenant, self.cost, self.cached_tokens);
    }
}
