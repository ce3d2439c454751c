//! The door: who comes in, and what becomes of the request.

mod audit;
mod record;
mod run;
mod visit;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::Recurring;
use kvasir_client::types::ModelInfo;
use kvasir_edge::host::{Host, Knock, ModelNames, Visit};
use kvasir_edge::{Figures, Scope as RouteScope, one_exposition};
use kvasir_gateway_core::auth::{
    CertificateFacts, HeaderValues, Identification, Presented, Principal, Reason, bearer,
};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::policy::{Answer, Denial, Entry, Scope};
use sha2::{Digest, Sha256};

pub(crate) use self::audit::Audit;
use self::record::VisitorRecord;
use self::visit::Visiting;

use crate::clock::unix_now;
use crate::jwks::{JwksFollower, with_keys};
use crate::metrics::GatewayMetrics;
use crate::pools::Pools;
use crate::settings::Settings;
use crate::store::Accounts;
use crate::token_review::TokenReviewer;
use crate::verifier::RingVerifier;

/// Longest wait for the word of an API server on a token.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// Where clients of Anthropic put their key.
const HEADER_API_KEY: &str = "x-api-key";

/// What a gateway decides by at one moment; replaced as a whole.
pub(crate) struct Live {
    pub(crate) settings: Settings,
    /// What is served.
    pub(crate) pools: Pools,
    /// Asks the API server about tokens, if that is configured.
    pub(crate) reviewer: Option<Arc<TokenReviewer>>,
    /// Follows issuers' key sets, if there are issuers.
    pub(crate) keys: Option<Arc<JwksFollower>>,
}

/// Everything behind the door.
pub(crate) struct DoorHost {
    pub(crate) live: Arc<ArcSwap<Live>>,
    pub(crate) accounts: Accounts,
    pub(crate) figures: Figures,
    pub(crate) metrics: Arc<GatewayMetrics>,
    pub(crate) audit: Audit,
    pub(crate) review_trouble: Mutex<Recurring>,
    pub(crate) started: Instant,
}

#[async_trait]
impl Host for DoorHost {
    async fn enter(&self, knock: Knock<'_>) -> Result<Arc<dyn Visit>, ApiError> {
        let live = self.live.load_full();
        let mut record = VisitorRecord::new(&knock, self.audit.clone(), Arc::clone(&self.metrics));
        let scope = scope(knock.route.scope);
        // Nobody is asked for a credential that doesn't matter.
        let who = if scope == Scope::Public {
            Err(Reason::NoCredential)
        } else {
            self.identify(&live, knock).await
        };
        if let Ok(principal) = &who {
            record.known(principal);
        }
        match live
            .settings
            .policy
            .enter(Some(scope), who.as_ref().map_err(|reason| *reason))
        {
            Ok(Entry::Public) => Ok(Arc::new(Visiting::public(self, live, record))),
            Ok(Entry::Tenant { name, .. }) => {
                let name = name.clone();
                let sessions = sessions(&name, knock.headers, &live.pools);
                Ok(Arc::new(Visiting::of_tenant(self, live, record, name, sessions)))
            }
            Err(denial) => {
                if who.is_err() {
                    record.claimed(known_key(&live, knock.headers));
                }
                let error = denied(denial);
                record.denied(denial.code(), error.status());
                Err(error)
            }
        }
    }

    fn models(&self) -> Arc<[ModelNames]> {
        self.live.load().pools.names()
    }

    fn model_info(&self, name: &str) -> Option<Arc<ModelInfo>> {
        self.live.load().pools.info(name)
    }

    async fn health(&self) -> Result<(), ApiError> {
        Ok(())
    }

    async fn ready(&self) -> Result<(), ApiError> {
        if self.live.load().pools.is_ready(self.started.elapsed()) {
            return Ok(());
        }
        let message = "no engine can be used, and requests may not wait for one";
        Err(ApiError::new(ErrorKind::Unavailable, message).because("no_engine"))
    }

    async fn metrics(&self) -> Result<String, ApiError> {
        let unwritten = |_| ApiError::new(ErrorKind::Internal, "the metrics could not be written");
        let live = self.live.load();
        let of_others = live.pools.others.iter().map(|model| model.pool.figures());
        let requests = self.figures.render_with(of_others).map_err(unwritten)?;
        let own = self
            .metrics
            .render(&self.accounts, &self.audit)
            .map_err(unwritten)?;
        let mut texts = vec![requests, own];
        for model in live.pools.iter() {
            texts.push(model.pool.metrics.render(&model.pool).map_err(unwritten)?);
        }
        Ok(one_exposition(&texts))
    }

    fn figures(&self) -> &Figures {
        &self.figures
    }
}

impl DoorHost {
    /// Each token that comes would make a line.
    fn unreviewed(&self, reason: &str) -> Reason {
        let mut trouble = self.review_trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.is_news(reason, Instant::now()) {
            tracing::warn!(reason, "tokens are refused unreviewed");
        }
        Reason::ReviewUnavailable
    }

    async fn identify(&self, live: &Live, knock: Knock<'_>) -> Result<Principal, Reason> {
        let authenticator = &live.settings.authenticator;
        let authorization = lines(knock.headers, AUTHORIZATION.as_str());
        let api_key = lines(knock.headers, HEADER_API_KEY);
        let bearer = bearer(HeaderValues {
            authorization: &authorization,
            api_key: &api_key,
        })?;
        let presented = Presented {
            bearer,
            certificate: knock.connection.get::<CertificateFacts>(),
        };
        let mut identified = authenticator.identify(presented, &RingVerifier, unix_now());
        if let (Err(Reason::UnknownSigningKey), Some(keys)) = (&identified, &live.keys) {
            // The issuer may have a new key since the last look.
            keys.refetch().await;
            let newest = with_keys(authenticator, &keys.sets().borrow().clone());
            identified = newest.identify(presented, &RingVerifier, unix_now());
        }
        match identified? {
            Identification::Known(principal) => Ok(principal),
            Identification::NeedsReview => {
                let reviewer = live.reviewer.as_ref().ok_or(Reason::UnknownKind)?;
                let asked = reviewer.review(bearer.unwrap_or_default());
                let facts = match tokio::time::timeout(REVIEW_TIMEOUT, asked).await {
                    Ok(Ok(facts)) => facts,
                    Ok(Err(error)) => return Err(self.unreviewed(&error.to_string())),
                    Err(_) => return Err(self.unreviewed("the API server took too long")),
                };
                authenticator.reviewed(&facts)
            }
        }
    }
}

fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
    let values = headers.get_all(name).iter();
    values.map(http::HeaderValue::as_bytes).collect()
}

/// The id of a key of ours that a refused request showed: an expired one, or one with another secret.
fn known_key(live: &Live, headers: &HeaderMap) -> Option<String> {
    let authorization = lines(headers, AUTHORIZATION.as_str());
    let api_key = lines(headers, HEADER_API_KEY);
    let shown = HeaderValues {
        authorization: &authorization,
        api_key: &api_key,
    };
    let id = live.settings.authenticator.keys.known_id(bearer(shown).ok()??)?;
    Some(id.to_owned())
}

fn scope(scope: RouteScope) -> Scope {
    match scope {
        RouteScope::Public => Scope::Public,
        RouteScope::Inference => Scope::Inference,
        RouteScope::Operations => Scope::Operations,
        RouteScope::Admin => Scope::Admin,
    }
}

/// The conversations that a client names in the headers that models go by: for each header a number. Two tenants' conversations of one name are
/// two conversations.
fn sessions(tenant: &TenantName, headers: &HeaderMap, pools: &Pools) -> Vec<(HeaderName, u64)> {
    let mut sessions: Vec<(HeaderName, u64)> = Vec::new();
    for header in pools.iter().map(|model| &model.session_header) {
        let Some(value) = headers.get(header) else {
            continue;
        };
        let is_new = sessions.iter().all(|(known, _)| known != header);
        if is_new && (1..=256).contains(&value.len()) {
            let digest = Sha256::new()
                .chain_update((tenant.as_str().len() as u64).to_le_bytes())
                .chain_update(tenant.as_str())
                .chain_update(value.as_bytes())
                .finalize();
            let bits = digest.iter().take(8);
            let number = bits.fold(0, |bits, byte| bits << 8 | u64::from(*byte));
            sessions.push((header.clone(), number));
        }
    }
    sessions
}

/// What the client reads of a denial.
pub(crate) fn denied(denial: Denial) -> ApiError {
    match denial.answer() {
        Answer::NoSuchRoute => ApiError::new(ErrorKind::NotFound, "there is no such route"),
        Answer::Unauthenticated => ApiError::new(ErrorKind::Unauthorized, Reason::NoCredential.answer()),
        Answer::Forbidden => ApiError::new(ErrorKind::Forbidden, "this credential may not use this route"),
        Answer::NoSuchModel => {
            ApiError::new(ErrorKind::NotFound, "the model does not exist").with_param("model")
        }
        Answer::TooManyTokens { limit } => ApiError::new(
            ErrorKind::Value,
            format!("max_tokens must be at most {limit} for this credential"),
        )
        .with_param("max_tokens"),
    }
}
