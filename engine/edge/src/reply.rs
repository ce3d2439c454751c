//! Builds responses.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use kvasir_api::{ApiError, ErrorKind};
use serde::Serialize;

/// Names fields of the request that nobody knows.
pub(crate) const X_WARNING: HeaderName = HeaderName::from_static("x-kvasir-warning");
/// Seconds after which a retryable request may be tried again.
const RETRY_AFTER_SECONDS: &str = "1";
/// Most unknown fields that are named, and the longest part of a name that is shown.
const MAX_NAMED_FIELDS: usize = 10;
const MAX_NAME_CHARS: usize = 60;

/// A JSON answer.
pub(crate) fn json_response(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(json) => with_type(StatusCode::OK, "application/json", Body::from(json)),
        Err(_) => error_response(&ApiError::new(
            ErrorKind::Internal,
            "the answer could not be written as JSON",
        )),
    }
}

/// An answer of some other type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A stream of server-sent events.
pub(crate) fn event_stream(body: Body) -> Response {
    let mut response = with_type(StatusCode::OK, "text/event-stream; charset=utf-8", body);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Reverse proxies such as nginx would otherwise collect the stream before passing it on.
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

/// The error object, with the headers that belong to its kind.
pub(crate) fn error_response(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = serde_json::to_vec(&error.body()).unwrap_or_default();
    let mut response = with_type(status, "application/json", Body::from(json));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    }
    if error.kind() == ErrorKind::Unauthorized {
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Names the unknown fields of a request in a header.
pub(crate) fn warn_unknown(response: &mut Response, unknown: &[String]) {
    if unknown.is_empty() {
        return;
    }
    let printable = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    let name = |name: &String| {
        name.chars()
            .take(MAX_NAME_CHARS)
            .map(printable)
            .collect::<String>()
    };
    let mut text = unknown
        .iter()
        .take(MAX_NAMED_FIELDS)
        .map(name)
        .collect::<Vec<_>>()
        .join(", ");
    if unknown.len() > MAX_NAMED_FIELDS {
        text.push_str(", ...");
    }
    if let Ok(value) = HeaderValue::from_str(&format!("unknown fields ignored: {text}")) {
        response.headers_mut().insert(X_WARNING, value);
    }
}
