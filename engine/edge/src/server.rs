//! The server: a router over the route table, and the loop that serves it until it is told to stop.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::{MethodFilter, on};
use futures::FutureExt as _;
use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::EngineClient;
use tokio_util::sync::CancellationToken;

use crate::config::EdgeConfig;
use crate::connections::Connections;
use crate::error::EdgeError;
use crate::gate;
use crate::host::{Host, OneEngine};
use crate::listener::Listener;
use crate::pipeline::PipelineOptions;
use crate::reply::error_response;
use crate::routes::{ROUTES, Route};
use crate::state::State;

/// How long requests that are cut off have to say so to their clients.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);

/// An HTTP edge over an engine.
#[derive(Clone)]
pub struct Edge {
    state: Arc<State>,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Every request was answered.
    Clean,
    /// The time was over first.
    Forced {
        /// Requests that were cut off.
        remaining: usize,
    },
}

impl Edge {
    /// Asks the engine what it serves and loads the files for text.
    ///
    /// # Errors
    /// If the engine can't be asked, or its text assets can't be used.
    pub async fn new(config: EdgeConfig, engine: Arc<dyn EngineClient>) -> Result<Self, EdgeError> {
        let options = PipelineOptions {
            model_name: config.served_model_names.first().cloned().unwrap_or_default(),
            generation_config: config.generation_config,
            limits: Some(config.limits()),
            seed: config.seed,
            figures: None,
            spans: config.spans.clone(),
        };
        let host = OneEngine::connect(engine, &config, options).await?;
        Ok(Self::over(config, Arc::new(host)))
    }

    /// An edge over something that lets requests in and has engines for them. Of `config`, names, keys and what concerns a model are the
    /// host's business and not read.
    pub fn over(config: EdgeConfig, host: Arc<dyn Host>) -> Self {
        Self {
            state: Arc::new(State::new(config, host)),
        }
    }

    /// The route table, with the routes that have to be asked for.
    pub fn routes() -> &'static [Route] {
        &ROUTES
    }

    /// The routes that this edge serves.
    pub fn served_routes(&self) -> impl Iterator<Item = &'static Route> {
        self.state.served_routes()
    }

    /// The names that requests may put into `model`, of the served model or of all of them; the first one of each is shown in answers.
    pub fn model_names(&self) -> Vec<String> {
        let models = self.state.host.models();
        models.iter().flat_map(|names| names.iter().cloned()).collect()
    }

    /// The routes as a service. What isn't in the table is answered with 404.
    ///
    /// # Panics
    /// If the route table had a method that isn't standard, which a test rules out.
    pub fn router(&self) -> Router {
        let mut router = Router::new();
        for route in self.served_routes() {
            let state = Arc::clone(&self.state);
            let filter =
                MethodFilter::try_from(route.method.clone()).expect("the table has standard methods only");
            let handler = move |request: Request| gate::serve(Arc::clone(&state), route, request);
            router = router.route(route.path, on(filter, handler));
        }
        router
            .fallback(not_found)
            .method_not_allowed_fallback(method_not_allowed)
    }

    /// From now on each connection of HTTP/1 ends with its next answer, so that clients connect anew, elsewhere. Nothing is refused.
    pub fn leave(&self) {
        self.state.start_leaving();
    }

    /// Serves until `stop`; then readiness fails, new inference is refused, and running answers may end within
    /// `shutdown_timeout`. What still runs then ends with an error, which a stream sends as its last event. Dropping the future ends everything at once.
    ///
    /// # Errors
    /// If the listening socket can't be used.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        stop: CancellationToken,
    ) -> Result<Shutdown, EdgeError> {
        let listener = listener.into();
        listener.check().map_err(EdgeError::Listener)?;
        let state = self.state.as_ref();
        let mut connections = Connections::new(self.router(), &state.config);
        connections.accept_until(&listener, stop.cancelled()).await;
        state.start_draining();
        state.in_flight.close();
        tracing::info!(in_flight = state.in_flight.len(), "draining");
        // The listener stays open, so that probes learn that the server is not ready.
        let drained = async {
            let drained = tokio::time::timeout(state.config.shutdown_timeout, state.in_flight.wait());
            drop(drained.await);
        };
        connections.accept_until(&listener, drained).await;
        let remaining = state.in_flight.len();
        if remaining > 0 {
            tracing::warn!(remaining, "the shutdown timeout is over; requests are cut off");
            state.cut.cancel();
            let told = tokio::time::timeout(CUT_TIMEOUT, state.in_flight.wait());
            connections.accept_until(&listener, told.map(drop)).await;
        }
        drop(listener);
        connections.finish().await;
        Ok(if remaining == 0 {
            Shutdown::Clean
        } else {
            Shutdown::Forced { remaining }
        })
    }
}

async fn not_found(request: Request) -> axum::response::Response {
    let path: String = request.uri().path().chars().take(200).collect();
    error_response(&ApiError::new(
        ErrorKind::NotFound,
        format!("there is no route {path}"),
    ))
}

async fn method_not_allowed(request: Request) -> axum::response::Response {
    let path: String = request.uri().path().chars().take(200).collect();
    let message = format!("{path} does not take the method {}", request.method());
    error_response(&ApiError::new(ErrorKind::MethodNotAllowed, message))
}
