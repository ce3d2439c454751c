//! One request behind the door, until its answer is out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::types::GenerateRequest;
use kvasir_client::{EngineClient, GrpcClient, OutputStream};
use kvasir_edge::host::{Place, Terms, Visit, Wanted};
use kvasir_edge::{Pipeline, Source};
use kvasir_gateway_core::limits::{Cost, Exhausted, Usage, rate_limit_headers, retry_after_seconds};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::policy::{Denial, Entry, ModelUse, Tenant};
use kvasir_gateway_core::time::Micros;
use kvasir_gateway_core::waiting::Waiter;

use super::record::VisitorRecord;
use super::{DoorHost, Live, denied};
use crate::pool::failed::{Failed, code_of, refused};
use crate::pool::{Pool, RevisionModel};
use crate::pools::Model;
use crate::store::Accounts;

/// Bytes of a request's body that are taken for one token while nobody can count them.
const BYTES_PER_TOKEN: usize = 4;

/// The reason of requests for models that aren't there, in logs; the edge's own is the same.
const UNKNOWN_MODEL: &str = "unknown_model";

/// A request that was let in.
pub(crate) struct Visiting {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) live: Arc<Live>,
    /// What is served while it's here, which may have changed since it came in.
    newest: Arc<ArcSwap<Live>>,
    pub(super) accounts: Accounts,
    /// `None` on public routes.
    tenant: Option<TenantName>,
    /// What names its conversation, by the headers that models go by.
    sessions: Vec<(HeaderName, u64)>,
    state: Mutex<State>,
}

/// What happens to the request.
pub(super) struct State {
    pub(super) record: VisitorRecord,
    pub(super) reading: Option<Reading>,
    pub(super) terms: Terms,
    pub(super) weight: u32,
    pub(super) usage: Option<Usage>,
    retry_after: Option<u64>,
    /// The end of all its waiting, once it has begun to wait.
    until: Micros,
    /// The engines that it was read for have gone; others are there.
    is_superseded: bool,
    /// Its own requests at engines, by their ids: nobody else's can be named.
    pub(super) running: BTreeMap<String, RunningRequest>,
}

/// What a request is read for.
#[derive(Clone)]
pub(super) struct Reading {
    pub(super) pool: Arc<Pool>,
    pub(super) model: Arc<RevisionModel>,
    pub(super) session: Option<u64>,
    retry_after: Duration,
}

/// A request at an engine.
pub(super) struct RunningRequest {
    pub(super) client: Arc<GrpcClient>,
    /// Sequences that the edge has ended, by their indices: they had what was asked for.
    pub(super) stopped: BTreeSet<u32>,
}

impl Visiting {
    /// On a public route, where nobody is known and no model can be used.
    pub(super) fn public(host: &DoorHost, live: Arc<Live>, record: VisitorRecord) -> Self {
        Self::new(host, live, record, None, Vec::new())
    }

    /// Of a tenant that may use the route.
    pub(super) fn of_tenant(
        host: &DoorHost,
        live: Arc<Live>,
        record: VisitorRecord,
        tenant: TenantName,
        sessions: Vec<(HeaderName, u64)>,
    ) -> Self {
        Self::new(host, live, record, Some(tenant), sessions)
    }

    fn new(
        host: &DoorHost,
        live: Arc<Live>,
        record: VisitorRecord,
        tenant: Option<TenantName>,
        sessions: Vec<(HeaderName, u64)>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                live,
                newest: Arc::clone(&host.live),
                accounts: host.accounts.clone(),
                tenant,
                sessions,
                state: Mutex::new(State {
                    record,
                    reading: None,
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

    async fn pipeline(&self, model: Option<&str>, body_bytes: usize) -> Result<Pipeline, ApiError> {
        let inner = &self.inner;
        let reading = loop {
            let Model {
                session_header,
                retry_after,
                pool,
                ..
            } = inner.find(model)?;
            let session = inner.session(&session_header);
            if let Some(model) = pool.pick(session) {
                break Reading {
                    pool,
                    model,
                    session,
                    retry_after,
                };
            }
            // No engine has ever told what it serves: the request waits as a whole.
            let mut waiter = inner.waiter((body_bytes / BYTES_PER_TOKEN) as u64)?;
            let turn = pool.turn(&mut waiter, None).await;
            let mut state = inner.lock();
            state.until = waiter.until;
            if let Err(refusal) = turn {
                if pool.is_closed() {
                    // Other engines serve its model now, or none do.
                    continue;
                }
                state.record.sent_away(refusal);
                state.retry_after = Some(retry_after.as_secs());
                return Err(refused(refusal));
            }
        };
        let mut state = inner.lock();
        state.record.revision = Some(reading.model.revision.to_string());
        state.reading = Some(reading.clone());
        drop(state);
        let source = VisitSource(Arc::clone(inner));
        Ok(reading.model.pipeline.with_source(Arc::new(source)))
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

    fn misses_model(&self, name: &str, is_served: bool) {
        let mut state = self.inner.lock();
        state.record.model = Some(name.to_owned());
        if is_served {
            state.record.decide("denied", Denial::ForbiddenModel.code());
        }
    }

    async fn work(&self, model: &str) -> Result<Place, ApiError> {
        let inner = &self.inner;
        inner.lock().record.model = Some(model.to_owned());
        let (name, tenant) = inner.tenant()?;
        let admitted = inner.accounts.charge(name, &tenant.limits, Cost::default()).await;
        let admitted = admitted.map_err(|exhausted| inner.exhausted(&exhausted))?;
        inner.lock().usage = Some(admitted.usage);
        Ok(Place::holding(admitted.charge))
    }

    fn goes_again(&self) -> bool {
        std::mem::take(&mut self.inner.lock().is_superseded)
    }

    fn refused(&self, error: &ApiError) {
        self.inner.lock().record.refused(error);
    }

    fn answered(&self, status: StatusCode, headers: &mut HeaderMap) {
        let mut state = self.inner.lock();
        state.record.status = status.as_u16();
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
        let mut all = self.generate_all(vec![request]).await?;
        all.pop()
            .ok_or_else(|| ApiError::new(ErrorKind::Internal, "the request wasn't started"))
    }

    async fn generate_all(&self, requests: Vec<GenerateRequest>) -> Result<Vec<OutputStream>, ApiError> {
        self.0.generate_all(requests).await
    }

    fn abort(&self, request_id: &str, index: Option<u32>) {
        let mut state = self.0.lock();
        let Some(running) = state.running.get_mut(request_id) else {
            return;
        };
        running.stopped.extend(index);
        let client = Arc::clone(&running.client);
        drop(state);
        client.abort(request_id, index);
    }

    fn given_up(&self, error: &ApiError) {
        self.0.lock().record.refused(error);
    }
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant's rules, as they were when it came in.
    pub(super) fn tenant(&self) -> Result<(&TenantName, &Tenant), ApiError> {
        let known = self.tenant.as_ref().and_then(|name| {
            let (name, tenant) = self.live.settings.policy.tenants.get_key_value(name)?;
            Some((name, tenant))
        });
        known.ok_or_else(|| ApiError::new(ErrorKind::Forbidden, "no model can be used here"))
    }

    /// Where a model is served now; the first one where no model has a name yet.
    fn find(&self, name: Option<&str>) -> Result<Model, ApiError> {
        let live = self.newest.load();
        let found = match name {
            None => Some(&live.pools.first),
            Some(name) => live.pools.by_name(name),
        };
        found.cloned().ok_or_else(|| {
            let message = format!("the model `{}` is no longer served", name.unwrap_or_default());
            ApiError::new(ErrorKind::NotFound, message)
                .with_param("model")
                .because(UNKNOWN_MODEL)
        })
    }

    /// The conversation that it belongs to by a header.
    fn session(&self, header: &HeaderName) -> Option<u64> {
        let mut known = self.sessions.iter();
        known.find_map(|(name, session)| (name == header).then_some(*session))
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let (name, tenant) = self.tenant().ok()?;
        Some(Entry::Tenant { name, tenant })
    }

    pub(super) fn waiter(&self, cost: u64) -> Result<Waiter, ApiError> {
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

    pub(super) fn failed(&self, failed: &Failed) -> ApiError {
        let mut state = self.lock();
        if matches!(failed, Failed::Superseded) {
            // No failure: it's read again, and recorded when that has ended.
            state.is_superseded = true;
            return failed.answer();
        }
        match failed {
            Failed::SentAway(refusal) => state.record.sent_away(*refusal),
            Failed::Engine(error) => state.record.failed(code_of(error)),
            Failed::AllTried | Failed::Superseded => state.record.failed("all_engines_tried"),
        }
        let answer = failed.answer();
        if matches!(answer.status(), 429 | 503) {
            let retry_after = state
                .reading
                .as_ref()
                .map(|reading| reading.retry_after.as_secs());
            state.retry_after = Some(retry_after.unwrap_or_default().max(1));
        }
        answer
    }

    pub(super) fn exhausted(&self, exhausted: &Exhausted) -> ApiError {
        let mut state = self.lock();
        state.record.decide("limited", exhausted.code());
        state.retry_after = retry_after_seconds(exhausted);
        state.usage = Some(exhausted.usage());
        ApiError::new(ErrorKind::RateLimited, exhausted.to_string())
    }
}
