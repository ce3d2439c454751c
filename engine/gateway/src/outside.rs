//! The services that a gateway asks, made from its configuration: issuers' key sets, the API server, the limit store.

use std::sync::Arc;

use kvasir_config::gateway::{AuthConfig, EnginesConfig, GatewayConfig, JwtConfig, TokenReviewConfig};
use kvasir_gateway_core::auth::Authenticator;
use tokio::sync::watch;

use crate::api_server::{ApiServer, ApiServerError};
use crate::discovery::Discovery;
use crate::jwks::{JwksFollowError, JwksFollower, KeySets, with_keys};
use crate::store::{Accounts, RedisStore, RedisStoreError};
use crate::token_review::TokenReviewer;

/// What they are.
pub(crate) struct Outside {
    /// Tenants' accounts, shared where a store is configured.
    pub(crate) accounts: Accounts,
    /// Follows issuers' key sets; `None` without issuers.
    pub(crate) keys: Option<Arc<JwksFollower>>,
    sets: Option<watch::Receiver<KeySets>>,
    /// Of the cluster that this process is a pod of; `None` until it's needed.
    api_server: Option<ApiServer>,
    /// With what it was configured by.
    reviewer: Option<(String, Arc<TokenReviewer>)>,
}

/// Why one of them can't be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum OutsideError {
    /// The limit store.
    #[error("limits.store: {0}")]
    Store(#[from] RedisStoreError),
    /// An issuer.
    #[error("auth.jwt: {0}")]
    Keys(#[from] JwksFollowError),
    /// The API server.
    #[error(transparent)]
    ApiServer(#[from] ApiServerError),
}

impl Outside {
    /// Opens what the configuration names. Call it within a runtime.
    ///
    /// # Errors
    /// Something of it can't be used.
    pub(crate) fn open(config: &GatewayConfig) -> Result<Self, OutsideError> {
        let replicas = config.limits.replicas.get();
        let accounts = match &config.limits.store {
            None => Accounts::alone(replicas),
            Some(store) => Accounts::with_store(replicas, Arc::new(RedisStore::of_config(store)?)),
        };
        let mut outside = Self {
            accounts,
            keys: None,
            sets: None,
            reviewer: None,
            api_server: None,
        };
        outside.follow_issuers(&config.auth.jwt)?;
        outside.follow_reviews(config.auth.token_review.as_ref())?;
        Ok(outside)
    }

    /// Where a model's engines are.
    pub(crate) fn discovery(&mut self, engines: &EnginesConfig) -> Result<Discovery, OutsideError> {
        Ok(Discovery::start(engines, || self.own_api_server())?)
    }

    fn own_api_server(&mut self) -> Result<ApiServer, ApiServerError> {
        Ok(match &self.api_server {
            Some(server) => server.clone(),
            None => self.api_server.insert(api_server()?).clone(),
        })
    }

    /// Follows these issuers from now on.
    pub(crate) fn follow_issuers(&mut self, issuers: &[JwtConfig]) -> Result<(), OutsideError> {
        let follower = (!issuers.is_empty()).then(|| JwksFollower::start(issuers));
        let follower = follower.transpose()?;
        self.sets = follower.as_ref().map(JwksFollower::sets);
        self.keys = follower.map(Arc::new);
        Ok(())
    }

    /// Asks about tokens as it's configured from now on. Verdicts of a reviewer that stays the same are kept.
    pub(crate) fn follow_reviews(&mut self, review: Option<&TokenReviewConfig>) -> Result<(), OutsideError> {
        let Some(review) = review else {
            self.reviewer = None;
            return Ok(());
        };
        let by = reviewed_by(review);
        if self.reviewer.as_ref().is_some_and(|(known, _)| *known == by) {
            return Ok(());
        }
        let server = match &review.api_server {
            Some(named) => ApiServer::new(&named.url, named.authorities.clone(), named.token_file.clone())?,
            None => self.own_api_server()?,
        };
        let reviewer = TokenReviewer::new(server, review.audience.clone());
        self.reviewer = Some((by, Arc::new(reviewer)));
        Ok(())
    }

    /// Resolves when an issuer has other keys.
    pub(crate) async fn keys_changed(&mut self) {
        if let Some(sets) = &mut self.sets
            && sets.changed().await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }

    /// The same authenticator with the keys that are known now.
    pub(crate) fn with_keys(&self, authenticator: &Authenticator) -> Authenticator {
        match &self.keys {
            None => authenticator.clone(),
            Some(keys) => with_keys(authenticator, &keys.sets().borrow().clone()),
        }
    }

    /// Who asks the API server about tokens; `None` unless that is configured, by what could be followed.
    pub(crate) fn reviewer(&self, auth: &AuthConfig) -> Option<Arc<TokenReviewer>> {
        let (by, reviewer) = self.reviewer.as_ref()?;
        let is_wanted = auth
            .token_review
            .as_ref()
            .is_some_and(|review| reviewed_by(review) == *by);
        is_wanted.then(|| Arc::clone(reviewer))
    }
}

/// Everything that another reviewer is needed for. Rules are decided here.
fn reviewed_by(review: &TokenReviewConfig) -> String {
    format!("{:?} {:?}", review.audience, review.api_server)
}

/// The API server of the cluster that this process is a pod of, by the variables that Kubernetes sets.
fn api_server() -> Result<ApiServer, ApiServerError> {
    let variable = |name: &str| std::env::var(name).map_err(|_| ApiServerError::NoCluster);
    ApiServer::of_pod(
        &variable("KUBERNETES_SERVICE_HOST")?,
        &variable("KUBERNETES_SERVICE_PORT")?,
    )
}
