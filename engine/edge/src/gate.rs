//! The gate in front of every handler: key, draining, body, request id, figures. No handler is reachable around it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::RequestExt;
use axum::extract::{Path, Request};
use axum::response::Response;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};
use kvasir_api::{ApiError, ErrorKind};
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use crate::config::is_known_key;
use crate::handlers;
use crate::read::read_json;
use crate::reply::error_response;
use crate::routes::{Handler, Route, Scope};
use crate::state::State;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");
/// Longest `X-Request-Id` that is used, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// An inference request that passed the gate.
pub(crate) struct Call {
    pub(crate) body: Bytes,
    /// The client's `X-Request-Id`, if it sent a usable one.
    pub(crate) client_id: Option<String>,
    /// From the header of the same name.
    pub(crate) priority: Option<i64>,
    pub(crate) arrival: Instant,
    /// Keeps the server from shutting down before the answer is out.
    pub(crate) token: TaskTrackerToken,
}

/// Serves a request on a route of the table.
pub(crate) async fn serve(state: Arc<State>, route: &'static Route, request: Request) -> Response {
    let arrival = Instant::now();
    let client_id = client_id(request.headers());
    let method = request.method().clone();
    let mut response = match answer(&state, route, request, client_id.clone(), arrival).await {
        Ok(response) => response,
        Err(error) => error_response(&error),
    };
    if route.scope == Scope::Inference {
        let metrics = state.pipeline.metrics();
        metrics.http_request(
            method.as_str(),
            route.path,
            response.status().as_u16(),
            arrival.elapsed(),
        );
    }
    if state.config.enable_request_id_headers {
        let id = client_id.unwrap_or_else(|| Uuid::new_v4().simple().to_string());
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(X_REQUEST_ID, value);
        }
    }
    response
}

async fn answer(
    state: &Arc<State>,
    route: &'static Route,
    mut request: Request,
    client_id: Option<String>,
    arrival: Instant,
) -> Result<Response, ApiError> {
    authorize(state, route.scope, request.headers())?;
    match route.handler {
        Handler::Health => return handlers::health(state).await,
        Handler::Ready => return handlers::ready(state).await,
        Handler::Version => return Ok(handlers::version()),
        Handler::Metrics => return handlers::metrics(state).await,
        Handler::Load => return Ok(handlers::load(state)),
        Handler::ServerInfo => return Ok(handlers::server_info(state)),
        Handler::Dump => return handlers::dump(state, request.uri().query()).await,
        Handler::Models => return Ok(handlers::models(state)),
        Handler::Model => {
            // What isn't UTF-8 behind its percent signs names no model.
            let Ok(Path(name)) = request.extract_parts::<Path<String>>().await else {
                return Err(ApiError::new(
                    ErrorKind::NotFound,
                    "the model's name is not valid UTF-8",
                ));
            };
            return handlers::model(state, &name);
        }
        Handler::ChatCompletions | Handler::Completions | Handler::Tokenize | Handler::Detokenize => {}
    }
    if state.is_draining() {
        return Err(ApiError::new(
            ErrorKind::Unavailable,
            "the server is shutting down",
        ));
    }
    let token = state.in_flight.token();
    let priority = priority(request.headers())?;
    let body = read_json(request, &state.config).await?;
    let call = Call {
        body,
        client_id,
        priority,
        arrival,
        token,
    };
    match route.handler {
        Handler::ChatCompletions => handlers::chat_completions(state, call).await,
        Handler::Completions => handlers::completions(state, call).await,
        Handler::Tokenize => handlers::tokenize(state, &call).await,
        _ => handlers::detokenize(state, &call),
    }
}

/// Refuses requests without a known key. The scheme's case doesn't matter, the key's does (C78).
fn authorize(state: &State, scope: Scope, headers: &HeaderMap) -> Result<(), ApiError> {
    let keys = &state.config.api_keys;
    if keys.is_empty() || scope == Scope::Public {
        return Ok(());
    }
    let token = headers
        .get(AUTHORIZATION)
        .and_then(|value| bearer_token(value.as_bytes()));
    match token {
        Some(token) if is_known_key(keys, token) => Ok(()),
        Some(_) => Err(ApiError::new(
            ErrorKind::Unauthorized,
            "the API key is not known to this server",
        )),
        None => {
            let message = "an API key is needed: send the header `Authorization: Bearer KEY`";
            Err(ApiError::new(ErrorKind::Unauthorized, message))
        }
    }
}

fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii_start())
}

/// The client's id, if it is short and printable; it becomes part of ids, headers and logs.
fn client_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(X_REQUEST_ID)?.to_str().ok()?;
    is_usable_id(id).then(|| id.to_owned())
}

/// Whether a client's id can be part of ours.
pub(crate) fn is_usable_id(id: &str) -> bool {
    (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

fn priority(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    let Some(value) = headers.get(X_PRIORITY) else {
        return Ok(None);
    };
    let parsed = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    parsed.map(Some).ok_or_else(|| {
        ApiError::new(
            ErrorKind::Value,
            "the header X-Vllm-Priority must be a whole number",
        )
        .with_param("priority")
    })
}

/// Longest wait for an answer of the engine to a probe or a scrape.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_scheme_ignores_case_and_the_key_does_not_change() {
        assert_eq!(bearer_token(b"Bearer AbC"), Some(&b"AbC"[..]));
        assert_eq!(bearer_token(b"bEARER  AbC"), Some(&b"AbC"[..]));
        assert_eq!(bearer_token(b"BearerAbC"), None);
        assert_eq!(bearer_token(b"Basic AbC"), None);
        assert_eq!(bearer_token(b"Bearer"), None);
    }

    #[test]
    fn ids_with_control_characters_or_no_end_are_not_used() {
        assert!(is_usable_id("a-1"));
        for id in ["", "a b", "a\n", &"x".repeat(129)] {
            assert!(!is_usable_id(id), "{id:?}");
        }
    }
}
