//! Probes, figures, and what is served.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use kvasir_api::{ApiError, ErrorKind, ModelCard, ModelList};

use crate::gate::shutting_down;
use crate::host::{ModelNames, Visit};
use crate::metrics::CONTENT_TYPE;
use crate::reply::{json_response, with_type};
use crate::state::State;

/// `GET /health`: this process works.
pub(crate) async fn health(state: &State) -> Result<Response, ApiError> {
    state.host.health().await.map(|()| empty())
}

/// `GET /ready`: requests may be sent here, and nobody is shutting down.
pub(crate) async fn ready(state: &State) -> Result<Response, ApiError> {
    if state.is_draining() {
        return Err(shutting_down());
    }
    state.host.ready().await.map(|()| empty())
}

/// `GET /version`.
pub(crate) fn version() -> Response {
    json_response(&serde_json::json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /metrics`.
pub(crate) async fn metrics(state: &State) -> Result<Response, ApiError> {
    let text = state.host.metrics().await?;
    Ok(with_type(StatusCode::OK, CONTENT_TYPE, Body::from(text)))
}

/// `GET /load`: inference requests in this process.
pub(crate) fn load(state: &State) -> Response {
    json_response(&serde_json::json!({ "server_load": state.in_flight.len() }))
}

/// `GET /server_info`: the resolved configuration, the models, the first one also by itself, and the registered routes.
pub(crate) fn server_info(state: &State) -> Response {
    let models = state.host.models();
    let first = models.first().cloned().unwrap_or_default();
    let routes: Vec<_> = state.served_routes().map(route_json).collect();
    let mut all = Vec::with_capacity(models.len());
    for names in models.iter() {
        all.push(serde_json::json!({ "served_model_names": **names, "model": model_json(state, names) }));
    }
    json_response(&serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "config": state.config.resolved_config,
        "routes": routes,
        "served_model_names": *first,
        "model": model_json(state, &first),
        "models": all,
    }))
}

fn model_json(state: &State, names: &ModelNames) -> serde_json::Value {
    let info = names.first().and_then(|name| state.host.model_info(name));
    let info = info.unwrap_or_default();
    serde_json::json!({
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
    })
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
    let dump = state.host.dump(last_stall).await?;
    Ok(with_type(StatusCode::OK, "application/json", Body::from(dump)))
}

/// `GET /v1/models`: those that exist for this client.
pub(crate) fn models(state: &State, visit: &dyn Visit) -> Response {
    let models = state.host.models();
    let names = models.iter().flat_map(|names| names.iter());
    let visible = names.filter(|name| visit.sees_model(name));
    let data = visible.map(|name| card(state, name)).collect();
    json_response(&ModelList { object: "list", data })
}

/// `GET /v1/models/{model}`.
pub(crate) fn model(state: &State, visit: &dyn Visit, name: &str) -> Result<Response, ApiError> {
    let model = state.check_model(visit, Some(name))?;
    Ok(json_response(&card(state, &model.name)))
}

fn card(state: &State, name: &str) -> ModelCard {
    let info = state.host.model_info(name).unwrap_or_default();
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

fn empty() -> Response {
    Response::new(Body::empty())
}
