//! Reads request bodies without trusting their headers, size or speed.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kvasir_api::{ApiError, ErrorKind};

use crate::config::EdgeConfig;

/// How much of a refused body is read and thrown away, in multiples of the limit: a client that is still sending
/// would otherwise see a reset connection instead of the answer.
const DISCARD_FACTOR: usize = 4;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a JSON request.
pub(crate) async fn read_json(request: Request, config: &EdgeConfig) -> Result<Bytes, ApiError> {
    let (parts, body) = request.into_parts();
    check_headers(&parts.headers)?;
    let limit = config.max_body_bytes;
    if content_length(&parts.headers).is_some_and(|length| length > limit as u64) {
        if !parts.headers.contains_key(EXPECT) {
            discard(body, limit.saturating_mul(DISCARD_FACTOR)).await;
        }
        return Err(too_large(limit));
    }
    let collected = tokio::time::timeout(config.body_read_timeout, Limited::new(body, limit).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Ok(Err(_)) => Err(ApiError::new(
            ErrorKind::Schema,
            "the request body could not be read to its end",
        )),
        Err(_) => {
            let message = format!(
                "the request body did not arrive within {:?}",
                config.body_read_timeout
            );
            Err(ApiError::new(ErrorKind::RequestTimeout, message))
        }
    }
}

fn check_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_identity = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers
        .get(CONTENT_ENCODING)
        .is_some_and(|encoding| !is_identity(encoding))
    {
        return Err(ApiError::new(
            ErrorKind::UnsupportedMedia,
            "compressed request bodies are not supported",
        ));
    }
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorKind::Schema,
        "the content type of the request must be application/json",
    ))
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(
        ErrorKind::TooLarge,
        format!("the request body is larger than the limit of {limit} bytes"),
    )
}

async fn discard(mut body: Body, limit: usize) {
    let read = async {
        let mut seen = 0usize;
        while let Some(Ok(frame)) = body.frame().await {
            seen = seen.saturating_add(frame.data_ref().map_or(0, Bytes::len));
            if seen > limit {
                break;
            }
        }
    };
    // Whether it ends or not, the answer is the same.
    drop(tokio::time::timeout(DISCARD_TIMEOUT, read).await);
}
