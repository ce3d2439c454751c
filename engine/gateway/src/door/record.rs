//! What is known of a request at its end, for the audit log and the metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use kvasir_api::ApiError;
use kvasir_edge::PeerAddress;
use kvasir_edge::host::Knock;
use kvasir_gateway_core::auth::{Method, Principal};
use kvasir_gateway_core::limits::Cost;
use kvasir_gateway_core::waiting::Refusal;

use super::audit::{Audit, AuditLine};
use crate::metrics::GatewayMetrics;
use crate::pool::Tally;
use crate::pool::failed::code_of;

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
    pub(super) model: Option<String>,
    pub(super) revision: Option<String>,
    pub(super) engines: Vec<String>,
    pub(super) attempts: u32,
    pub(super) decision: &'static str,
    pub(super) reason: &'static str,
    pub(super) status: u16,
    cost: Cost,
    cached_tokens: u64,
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
            reason: OK,
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

    /// Nobody is known, but a key's id was shown that we know.
    pub(super) fn claimed(&mut self, key_id: Option<String>) {
        if key_id.is_some() {
            self.method = Some(Method::ApiKey.code());
            self.subject = key_id;
        }
    }

    pub(super) fn denied(&mut self, reason: &'static str, status: u16) {
        self.decide("denied", reason);
        self.status = status;
    }

    pub(super) fn decide(&mut self, decision: &'static str, reason: &'static str) {
        self.decision = decision;
        self.reason = reason;
    }

    pub(super) fn failed(&mut self, reason: &'static str) {
        self.decide("failed", reason);
    }

    /// It was sent away from the queue: limited where its own tenant filled that.
    pub(super) fn sent_away(&mut self, refusal: Refusal) {
        let is_limit = refusal.status() == 429;
        self.decide(if is_limit { "limited" } else { "failed" }, refusal.code());
    }

    /// The edge refused or failed it. What is known already is more exact, since the edge only passes that on.
    pub(super) fn refused(&mut self, error: &ApiError) {
        if self.is_well() {
            self.failed(error.reason());
        }
    }

    /// Whether nothing has gone wrong so far.
    fn is_well(&self) -> bool {
        self.reason == OK
    }

    pub(super) fn paid(&mut self, actual: Cost) {
        self.cost.input_tokens += actual.input_tokens;
        self.cost.output_tokens += actual.output_tokens;
    }

    /// A request of it has ended at its engine; `is_whole` if it came to its own end or was ended because it had what it asked for.
    pub(super) fn ended(&mut self, tally: &Tally, actual: Cost, is_whole: bool) {
        self.paid(actual);
        self.cached_tokens += u64::from(tally.cached_tokens);
        if !self.is_well() {
            return;
        }
        if let Some(error) = &tally.error {
            self.failed(code_of(error));
        } else if !is_whole {
            self.reason = CLIENT_LEFT;
        }
    }
}

/// Reasons of requests that nothing went wrong with here.
const OK: &str = "ok";
const CLIENT_LEFT: &str = "client_left";

impl Drop for VisitorRecord {
    fn drop(&mut self) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.status == 0 {
            // The client left before there was anything to answer.
            self.reason = CLIENT_LEFT;
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
