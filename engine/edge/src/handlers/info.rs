//! Probes, figures, and what is served.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use kvasir_api::{ApiError, ErrorKind, ModelCard, ModelList};
use kvasir_client::types::{ErrorCode, LoadReport};

use crate::gate::PROBE_TIMEOUT;
use crate::metrics::CONTENT_TYPE;
use crate::reply::{json_response, with_type};
use crate::state::State;

/// `GET /health`: the engine makes steps while there is work. A full queue is healthy (C18, C19), and so is an engine whose watchdog has failed
/// stuck requests, until that turns out not to help.
pub(crate) async fn health(state: &State) -> Result<Response, ApiError> {
    let load = load_report(state).await?;
    if let Some(watchdog) = load.watchdog {
        return match watchdog.unhealthy {
            Some(reason) => Err(ApiError::new(ErrorKind::Unavailable, reason)),
            None => Ok(empty()),
        };
    }
    let bound = state.config.max_stall.as_micros();
    if u128::from(load.stalled_us) > bound {
        let message = format!(
            "the engine has work and completed no step for {} ms; the limit is {} ms",
            load.stalled_us / 1000,
            bound / 1000
        );
        return Err(ApiError::new(ErrorKind::Unavailable, message));
    }
    Ok(empty())
}

/// `GET /ready`: the model is known (or this edge would not run), the engine answers, nobody is shutting down.
pub(crate) async fn ready(state: &State) -> Result<Response, ApiError> {
    let draining = || ApiError::new(ErrorKind::Unavailable, "the server is shutting down");
    if state.is_draining() || load_report(state).await?.draining {
        return Err(draining());
    }
    Ok(empty())
}

/// `GET /version`.
pub(crate) fn version() -> Response {
    json_response(&serde_json::json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /metrics`. Without an answer of the engine its figures are the last known ones.
pub(crate) async fn metrics(state: &State) -> Result<Response, ApiError> {
    let load = load_report(state).await.ok();
    let text = state.pipeline.metrics().render(load);
    let text = text.map_err(|_| ApiError::new(ErrorKind::Internal, "the metrics could not be written"))?;
    Ok(with_type(StatusCode::OK, CONTENT_TYPE, Body::from(text)))
}

/// `GET /load`: inference requests in this process.
pub(crate) fn load(state: &State) -> Response {
    json_response(&serde_json::json!({ "server_load": state.in_flight.len() }))
}

/// `GET /server_info`: the resolved configuration, the model and the registered routes.
pub(crate) fn server_info(state: &State) -> Response {
    let info = state.pipeline.model_info();
    let routes: Vec<_> = state.served_routes().map(route_json).collect();
    json_response(&serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "config": state.config.resolved_config,
        "routes": routes,
        "served_model_names": state.model_names,
        "model": {
            "name": info.model,
            "architecture": info.architecture,
            "dtype": info.dtype,
            "num_parameters": info.num_parameters,
            "vocab_size": info.vocab_size,
            "max_model_len": info.max_model_len,
            "block_size": info.block_size,
            "num_blocks": info.num_blocks,
            "max_num_seqs": info.max_num_seqs,
            "weights_digest": info.weights_digest,
            "text_assets_digest": info.text_assets_digest,
            "engine_version": info.engine_version,
        },
    }))
}

fn route_json(route: &crate::routes::Route) -> serde_json::Value {
    serde_json::json!({ "method": route.method.as_str(), "path": route.path, "scope": route.scope })
}

/// `GET /debug/dump`: the engine's state now, or with `?last_stall` as it was then.
pub(crate) async fn dump(state: &State, query: Option<&str>) -> Result<Response, ApiError> {
    let last_stall = match query.unwrap_or_default() {
        "" => false,
        "last_stall" | "last_stall=true" => true,
        _ => {
            return Err(ApiError::new(
                ErrorKind::Value,
                "the only parameter is last_stall",
            ));
        }
    };
    let dump = state.pipeline.engine().dump(last_stall).await;
    let dump = dump.map_err(|error| match error.code() {
        ErrorCode::InvalidRequest => ApiError::new(ErrorKind::NotFound, error.message),
        _ => ApiError::new(ErrorKind::Unavailable, error.message),
    })?;
    Ok(with_type(StatusCode::OK, "application/json", Body::from(dump)))
}

/// `GET /v1/models`.
pub(crate) fn models(state: &State) -> Response {
    let data = state.model_names.iter().map(|name| card(state, name)).collect();
    json_response(&ModelList { object: "list", data })
}

/// `GET /v1/models/{model}`.
pub(crate) fn model(state: &State, name: &str) -> Result<Response, ApiError> {
    state.check_model(Some(name))?;
    Ok(json_response(&card(state, name)))
}

fn card(state: &State, name: &str) -> ModelCard {
    let info = state.pipeline.model_info();
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: state.started,
        owned_by: "kvasir",
        root: info.model.clone(),
        parent: None,
        max_model_len: info.max_model_len,
    }
}

/// Probes are public: where the engine is and what the connection said is for the log, not for the answer.
async fn load_report(state: &State) -> Result<LoadReport, ApiError> {
    let unreachable = |reason: String| {
        tracing::warn!(reason, "a probe didn't reach the engine");
        ApiError::new(
            ErrorKind::Unavailable,
            "the engine can't be reached; this server's log says why",
        )
    };
    match tokio::time::timeout(PROBE_TIMEOUT, state.pipeline.engine().load()).await {
        Ok(Ok(load)) => Ok(load),
        Ok(Err(error)) => Err(unreachable(error.message)),
        Err(_) => Err(unreachable(format!("no answer within {PROBE_TIMEOUT:?}"))),
    }
}

fn empty() -> Response {
    Response::new(Body::empty())
}
