//! Asks the API server whose a token is.
//!
//! Answers are kept for a short time, by the token's digest, so that a busy client costs a review every few seconds and a token that was
//! revoked stops working as fast. Refusals are kept too. What is kept and what is asked at one time is bounded; failures are never kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvasir_gateway_core::auth::ReviewFacts;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::api_server::{ApiServer, ApiServerError};

/// How long an answer counts. A revoked token works at most so long.
const LIFETIME: Duration = Duration::from_secs(10);
/// Answers that are kept; the oldest go first.
const MAX_KEPT: usize = 10_000;
/// Reviews at one time: a flood of bad tokens must not become one at the API server.
const MAX_REVIEWS: usize = 16;
/// Reviews that wait for their turn.
const MAX_WAITING: usize = 256;
/// Service account tokens have about 1,200 characters.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Groups and audiences that are read of an answer.
const MAX_LISTED: usize = 1000;

/// Reviews tokens for one audience.
#[derive(Debug)]
pub struct TokenReviewer {
    server: ApiServer,
    audience: String,
    kept: Mutex<Kept>,
    reviews: Semaphore,
    places: Semaphore,
}

/// Why nobody knows whose a token is. The client should try again later.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The API server can't be asked.
    #[error("a token can't be reviewed: {0}")]
    Server(#[from] ApiServerError),
    /// Too many tokens wait.
    #[error("a token can't be reviewed now: {MAX_WAITING} others wait for it already")]
    Busy,
}

#[derive(Debug, Default)]
struct Kept {
    answers: BTreeMap<[u8; 32], (ReviewFacts, Instant)>,
    /// The same keys, oldest first.
    order: VecDeque<([u8; 32], Instant)>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    api_version: &'static str,
    kind: &'static str,
    spec: QuestionSpec<'a>,
}

#[derive(Serialize)]
struct QuestionSpec<'a> {
    token: &'a str,
    audiences: [&'a str; 1],
}

#[derive(Deserialize)]
struct Answer {
    status: AnswerStatus,
}

#[derive(Default, Deserialize)]
struct AnswerStatus {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    user: AnswerUser,
    #[serde(default)]
    audiences: Vec<String>,
}

#[derive(Default, Deserialize)]
struct AnswerUser {
    #[serde(default)]
    username: String,
    #[serde(default)]
    groups: Vec<String>,
}

impl TokenReviewer {
    /// Reviews for this audience, which must be the gateway's own.
    pub fn new(server: ApiServer, audience: String) -> Self {
        Self {
            server,
            audience,
            kept: Mutex::default(),
            reviews: Semaphore::new(MAX_REVIEWS),
            places: Semaphore::new(MAX_REVIEWS + MAX_WAITING),
        }
    }

    /// What the API server says about a token.
    ///
    /// # Errors
    /// It can't be asked.
    pub async fn review(&self, token: &str) -> Result<ReviewFacts, ReviewError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Ok(ReviewFacts::default());
        }
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(facts) = self.kept(&digest) {
            return Ok(facts);
        }
        let _place = self.places.try_acquire().map_err(|_| ReviewError::Busy)?;
        // Fails only when the semaphore is closed, which nobody does.
        let _turn = self.reviews.acquire().await.map_err(|_| ReviewError::Busy)?;
        // Another request of the same client may have asked meanwhile.
        if let Some(facts) = self.kept(&digest) {
            return Ok(facts);
        }
        let facts = self.ask(token).await?;
        self.keep(digest, facts.clone());
        Ok(facts)
    }

    async fn ask(&self, token: &str) -> Result<ReviewFacts, ApiServerError> {
        let question = Question {
            api_version: "authentication.k8s.io/v1",
            kind: "TokenReview",
            spec: QuestionSpec {
                token,
                audiences: [&self.audience],
            },
        };
        let question = serde_json::to_vec(&question).map_err(ApiServerError::Answer)?;
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let answer = self.server.post(path, question).await?;
        let answer: Answer = serde_json::from_slice(&answer).map_err(ApiServerError::Answer)?;
        let AnswerStatus {
            authenticated,
            user,
            audiences,
        } = answer.status;
        Ok(ReviewFacts {
            is_authenticated: authenticated,
            username: user.username,
            groups: user.groups.into_iter().take(MAX_LISTED).collect(),
            audiences: audiences.into_iter().take(MAX_LISTED).collect(),
        })
    }

    fn kept(&self, digest: &[u8; 32]) -> Option<ReviewFacts> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (facts, at) = kept.answers.get(digest)?;
        (at.elapsed() < LIFETIME).then(|| facts.clone())
    }

    fn keep(&self, digest: [u8; 32], facts: ReviewFacts) {
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.answers.insert(digest, (facts, now));
        kept.order.push_back((digest, now));
        while let Some((oldest, at)) = kept.order.front().copied() {
            if kept.order.len() <= MAX_KEPT && at.elapsed() < LIFETIME {
                break;
            }
            kept.order.pop_front();
            // It may have been asked again since, and then comes later in the order.
            if kept.answers.get(&oldest).is_some_and(|(_, newest)| *newest == at) {
                kept.answers.remove(&oldest);
            }
        }
    }
}
