//! What stands behind an edge: one engine, or a gateway with many of them.
//!
//! The edge reads requests and writes answers. Whose requests they are, on which terms they run and which engine runs them is its
//! [`Host`]'s business. Every request, also one for a public route, enters through [`Host::enter`] and is a [`Visit`] from then on.

mod one_engine;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Extensions, HeaderMap, StatusCode};
use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::types::ModelInfo;

pub(crate) use one_engine::OneEngine;

use crate::metrics::Figures;
use crate::pipeline::Pipeline;
use crate::routes::Route;

/// A request at the door, before its body is read.
#[derive(Clone, Copy, Debug)]
pub struct Knock<'a> {
    /// The route that it asks for.
    pub route: &'static Route,
    /// Its headers. None of them has been believed so far.
    pub headers: &'a HeaderMap,
    /// What its connection's [`Handshake`](crate::Handshake) found out, and its [`PeerAddress`](crate::PeerAddress).
    pub connection: &'a Extensions,
    /// The client's usable `X-Request-Id`, or a random one.
    pub request_id: &'a str,
    /// When it came.
    pub arrival: Instant,
}

/// What a request wants of a model. What it left to the server is absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// The model's name; the default one if the request names none.
    pub model: &'a str,
    /// Output tokens of each sequence.
    pub max_tokens: Option<u32>,
    /// Lower runs earlier.
    pub priority: Option<i64>,
}

/// The terms on which a request runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Terms {
    /// Most output tokens of each sequence, if there is a bound below the model's.
    pub max_tokens: Option<u32>,
    /// Lower runs earlier.
    pub priority: i64,
}

/// What a host counts while a request works that runs on no engine; dropped at its end.
#[derive(Default)]
pub struct Place {
    _held: Option<Box<dyn Send>>,
}

impl Place {
    /// Keeps something until the end.
    pub fn holding(held: impl Send + 'static) -> Self {
        Self {
            _held: Some(Box::new(held)),
        }
    }
}

/// Names that requests may put into `model` for one model, the one that answers show first.
pub type ModelNames = Arc<[String]>;

/// Who lets requests in and has engines for them.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Lets a request in.
    ///
    /// # Errors
    /// Why it has to stay outside.
    async fn enter(&self, knock: Knock<'_>) -> Result<Arc<dyn Visit>, ApiError>;

    /// The served models. A request that names none means the first one that its client sees. A model without a name isn't known yet.
    fn models(&self) -> Arc<[ModelNames]>;

    /// What the engines of the model of that name serve; none while no engine has told.
    fn model_info(&self, name: &str) -> Option<Arc<ModelInfo>>;

    /// Whether this process works.
    ///
    /// # Errors
    /// What is wrong with it, as everybody may know it.
    async fn health(&self) -> Result<(), ApiError>;

    /// Whether requests may be sent here.
    ///
    /// # Errors
    /// Why not, as everybody may know it.
    async fn ready(&self) -> Result<(), ApiError>;

    /// All figures, in the text format of Prometheus.
    ///
    /// # Errors
    /// They can't be written.
    async fn metrics(&self) -> Result<String, ApiError>;

    /// The figures of requests, into which the edge counts.
    fn figures(&self) -> &Figures;

    /// The state of the engine as a JSON document.
    ///
    /// # Errors
    /// There is none, which is also the answer of hosts without one engine.
    async fn dump(&self, last_stall: bool) -> Result<Bytes, ApiError> {
        let _ = last_stall;
        Err(ApiError::new(ErrorKind::NotFound, "there is no one engine here"))
    }
}

/// A request that was let in. It lives until its answer is out or its client has left.
#[async_trait]
pub trait Visit: Send + Sync + 'static {
    /// Whether a served model exists for this client.
    fn sees_model(&self, name: &str) -> bool;

    /// Text and engine for this request. `model` is a served name that the client sees; `None` while no model has a name. `body_bytes` tells
    /// its size before it can be read; the wait may be long.
    ///
    /// # Errors
    /// Nothing can run it.
    async fn pipeline(&self, model: Option<&str>, body_bytes: usize) -> Result<Pipeline, ApiError>;

    /// It names a model that isn't served, or not for this client, and is refused: for the log.
    fn misses_model(&self, name: &str, is_served: bool) {
        let _ = (name, is_served);
    }

    /// Lets it do what needs no engine, with a served model's text alone. It runs until its place is dropped.
    ///
    /// # Errors
    /// It may not do so much now.
    async fn work(&self, model: &str) -> Result<Place, ApiError> {
        let _ = model;
        Ok(Place::default())
    }

    /// The terms on which it runs.
    ///
    /// # Errors
    /// It may not use the model, or not so much of it.
    fn terms(&self, wanted: Wanted<'_>) -> Result<Terms, ApiError>;

    /// Whether a request that was just refused should be read again: its pipeline was made for engines that have gone before any of them
    /// began to answer, and another pipeline would do. Asked once after each failure.
    fn goes_again(&self) -> bool {
        false
    }

    /// It's refused or failed; the answer that says so comes next.
    fn refused(&self, error: &ApiError) {
        let _ = error;
    }

    /// The head of its answer is made; headers may be added.
    fn answered(&self, status: StatusCode, headers: &mut HeaderMap);
}
