//! The gate in front of every handler: entry, draining, body, request id, figures. No handler is reachable around it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::RequestExt;
use axum::extract::{Path, Request};
use axum::response::Response;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use kvasir_api::{ApiError, Body, ErrorKind};
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use crate::framing;
use crate::handlers;
use crate::host::{Knock, Visit};
use crate::pipeline::Pipeline;
use crate::read::read_json;
use crate::reply::error_response;
use crate::routes::{Handler, Route, Scope};
use crate::state::{Meant, State};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const X_PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");
/// Longest `X-Request-Id` that is used, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// An inference request that passed the gate.
pub(crate) struct Call<'a> {
    pub(crate) body: Body<'a>,
    pub(crate) model: Meant,
    pub(crate) visit: Arc<dyn Visit>,
    pub(crate) pipeline: Pipeline,
    /// The client's `X-Request-Id`, if it sent a usable one.
    pub(crate) client_id: Option<String>,
    /// The client's id, or a random one.
    pub(crate) id: String,
    /// From the header of the same name.
    pub(crate) priority: Option<i64>,
    /// From the header of the same name; empty if there is none.
    pub(crate) traceparent: String,
    pub(crate) arrival: Instant,
    /// Keeps the server from shutting down before the answer is out.
    pub(crate) token: Arc<TaskTrackerToken>,
}

/// How often one request is read, each time for other engines. One rollout takes two; the rest is for rollouts that overlap.
const MAX_READINGS: usize = 4;

/// Codes of refusals in logs.
pub(crate) const SHUTTING_DOWN: &str = "shutting_down";
pub(crate) const UNKNOWN_MODEL: &str = "unknown_model";

/// Whose a request is.
struct Ids {
    client: Option<String>,
    id: String,
}

/// Serves a request on a route of the table.
pub(crate) async fn serve(state: Arc<State>, route: &'static Route, request: Request) -> Response {
    let arrival = Instant::now();
    let client = client_id(request.headers());
    let id = client
        .clone()
        .unwrap_or_else(|| Uuid::new_v4().simple().to_string());
    let method = request.method().clone();
    let is_http1 = request.version() <= http::Version::HTTP_11;
    let knock = Knock {
        route,
        headers: request.headers(),
        connection: request.extensions(),
        request_id: &id,
        arrival,
    };
    let ids = Ids {
        client,
        id: id.clone(),
    };
    let mut response = match state.host.enter(knock).await {
        Ok(visit) => {
            let answer = answer(&state, route, request, (ids, arrival), &visit).await;
            let mut response = answer.unwrap_or_else(|error| {
                visit.refused(&error);
                error_response(&error)
            });
            let status = response.status();
            visit.answered(status, response.headers_mut());
            response
        }
        Err(error) => error_response(&error),
    };
    if route.scope == Scope::Inference {
        state.host.figures().http_request(
            method.as_str(),
            route.path,
            response.status().as_u16(),
            arrival.elapsed(),
        );
    }
    if state.is_leaving() && is_http1 {
        response = framing::closing(response);
    }
    if state.config.enable_request_id_headers
        && let Ok(value) = HeaderValue::from_str(&id)
    {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    response
}

async fn answer(
    state: &Arc<State>,
    route: &'static Route,
    mut request: Request,
    (ids, arrival): (Ids, Instant),
    visit: &Arc<dyn Visit>,
) -> Result<Response, ApiError> {
    match route.handler {
        Handler::Health => return handlers::health(state).await,
        Handler::Ready => return handlers::ready(state).await,
        Handler::Version => return Ok(handlers::version()),
        Handler::Metrics => return handlers::metrics(state).await,
        Handler::Load => return Ok(handlers::load(state)),
        Handler::ServerInfo => return Ok(handlers::server_info(state)),
        Handler::Dump => return handlers::dump(state, request.uri().query()).await,
        Handler::Models => return Ok(handlers::models(state, visit.as_ref())),
        Handler::Model => {
            // What isn't UTF-8 behind its percent signs names no model.
            let Ok(Path(name)) = request.extract_parts::<Path<String>>().await else {
                let message = "the model's name is not valid UTF-8";
                return Err(ApiError::new(ErrorKind::NotFound, message).because(UNKNOWN_MODEL));
            };
            return handlers::model(state, visit.as_ref(), &name);
        }
        Handler::ChatCompletions | Handler::Completions | Handler::Tokenize | Handler::Detokenize => {}
    }
    if state.is_draining() {
        return Err(shutting_down());
    }
    let token = Arc::new(state.in_flight.token());
    let priority = priority(request.headers())?;
    let traceparent = traceparent(request.headers());
    let (bytes, _place) = read_json(request, &state.config, &state.bodies).await?;
    let body = Body::parse(&bytes)?;
    let wanted = body.model()?;
    for _ in 0..MAX_READINGS {
        let (model, pipeline) = pipeline(state, visit.as_ref(), (wanted.as_deref(), bytes.len())).await?;
        let call = Call {
            pipeline: pipeline.until(state.cut.clone()),
            model,
            visit: Arc::clone(visit),
            body: body.clone(),
            client_id: ids.client.clone(),
            id: ids.id.clone(),
            priority,
            traceparent: traceparent.clone(),
            arrival,
            token: Arc::clone(&token),
        };
        let answer = match route.handler {
            Handler::ChatCompletions => handlers::chat_completions(state, call).await,
            Handler::Completions => handlers::completions(state, call).await,
            Handler::Tokenize => handlers::tokenize(state, call).await,
            _ => handlers::detokenize(state, call).await,
        };
        if answer.is_ok() || !visit.goes_again() {
            return answer;
        }
    }
    let message = "the model is being replaced; try again";
    Err(ApiError::new(ErrorKind::Unavailable, message).because("model_replaced"))
}

/// The model that a request means, and its pipeline. A name that isn't served is refused before anything waits for engines.
async fn pipeline(
    state: &State,
    visit: &dyn Visit,
    (wanted, body_bytes): (Option<&str>, usize),
) -> Result<(Meant, Pipeline), ApiError> {
    if state.is_nothing_known() {
        // Engines name what they serve, and none has come so far.
        let pipeline = visit.pipeline(None, body_bytes).await?;
        return Ok((state.check_model(visit, wanted)?, pipeline));
    }
    let model = state.check_model(visit, wanted)?;
    let pipeline = visit.pipeline(Some(&model.name), body_bytes).await?;
    Ok((model, pipeline))
}

/// The answer to what comes or ends too late.
pub(crate) fn shutting_down() -> ApiError {
    ApiError::new(ErrorKind::Unavailable, "the server is shutting down").because(SHUTTING_DOWN)
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

/// A trace context of the W3C's form, version 00: other text doesn't reach engines and logs.
fn traceparent(headers: &HeaderMap) -> String {
    let Some(text) = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()) else {
        return String::new();
    };
    let is_hex = |part: &str, len| {
        part.len() == len
            && part
                .bytes()
                .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
    };
    let parts: Vec<&str> = text.split('-').collect();
    match parts.as_slice() {
        ["00", trace, parent, flags] if is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2) => {
            text.to_owned()
        }
        _ => String::new(),
    }
}

/// Longest wait for an answer of the engine to a probe or a scrape.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trace_contexts_of_the_published_form_are_passed_on() {
        let read = |text: &str| {
            let value = HeaderValue::from_str(text).unwrap();
            traceparent(&HeaderMap::from_iter([(TRACEPARENT, value)]))
        };
        // The example of the recommendation.
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(read(good), good);
        for bad in [
            "",
            "00",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(read(bad), "", "{bad:?}");
        }
        assert_eq!(traceparent(&HeaderMap::new()), "");
    }

    #[test]
    fn ids_with_control_characters_or_no_end_are_not_used() {
        assert!(is_usable_id("a-1"));
        for id in ["", "a b", "a\n", &"x".repeat(129)] {
            assert!(!is_usable_id(id), "{id:?}");
        }
    }
}
