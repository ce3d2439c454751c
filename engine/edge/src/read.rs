//! Reads request bodies without trusting their headers, size or speed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::BodyExt;
use kvasir_api::{ApiError, ErrorKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::EdgeConfig;

/// How much of a refused body is read and thrown away, in multiples of the limit: a client that is still sending
/// would otherwise see a reset connection instead of the answer.
const DISCARD_FACTOR: usize = 4;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a body that the budget doesn't count: whoever asks something short shall not have to wait for others' long bodies.
const FREE_BYTES: usize = 64 << 10;
/// What the budget counts in.
const UNIT_BYTES: usize = 1 << 10;

/// Memory for the bodies of all requests, from their first byte until their answers begin: without a bound for all together, many clients with
/// bodies of the allowed size take all memory there is.
#[derive(Clone, Debug)]
pub(crate) struct BodyBudget {
    free: Arc<Semaphore>,
    num_bytes: usize,
}

/// What a body takes of the budget, until it's dropped.
#[derive(Debug, Default)]
pub(crate) struct BodyPlace(Option<OwnedSemaphorePermit>);

impl BodyBudget {
    pub(crate) fn new(num_bytes: usize) -> Self {
        let num_units = (num_bytes / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(num_units)),
            num_bytes,
        }
    }

    /// Makes a place large enough for so many bytes.
    fn grow(&self, place: &mut BodyPlace, num_bytes: usize) -> Result<(), ApiError> {
        let wanted = num_bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT_BYTES);
        let held = place.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(wanted.saturating_sub(held)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let full = |_| {
            let message = format!(
                "the long requests that are read now fill the {} bytes for them; try again",
                self.num_bytes
            );
            ApiError::new(ErrorKind::Unavailable, message).because("bodies_full")
        };
        let grown = Arc::clone(&self.free)
            .try_acquire_many_owned(more)
            .map_err(full)?;
        match &mut place.0 {
            Some(permit) => permit.merge(grown),
            none => *none = Some(grown),
        }
        Ok(())
    }
}

/// The body of a JSON request, and its place in the budget.
pub(crate) async fn read_json(
    request: Request,
    config: &EdgeConfig,
    budget: &BodyBudget,
) -> Result<(Bytes, BodyPlace), ApiError> {
    let (parts, body) = request.into_parts();
    check_headers(&parts.headers)?;
    let limit = config.max_body_bytes;
    if content_length(&parts.headers).is_some_and(|length| length > limit as u64) {
        if !parts.headers.contains_key(EXPECT) {
            discard(body, limit.saturating_mul(DISCARD_FACTOR)).await;
        }
        return Err(too_large(limit));
    }
    let collected = tokio::time::timeout(config.body_read_timeout, collect(body, limit, budget)).await;
    collected.unwrap_or_else(|_| {
        let message = format!(
            "the request body did not arrive within {:?}",
            config.body_read_timeout
        );
        Err(ApiError::new(ErrorKind::RequestTimeout, message))
    })
}

async fn collect(mut body: Body, limit: usize, budget: &BodyBudget) -> Result<(Bytes, BodyPlace), ApiError> {
    let (mut bytes, mut place) = (BytesMut::new(), BodyPlace::default());
    while let Some(frame) = body.frame().await {
        let cut_off = |_| {
            let message = "the request body could not be read to its end";
            ApiError::new(ErrorKind::Schema, message).because("body_cut_off")
        };
        let frame = frame.map_err(cut_off)?;
        let Ok(data) = frame.into_data() else { continue };
        let len = bytes.len().saturating_add(data.len());
        if len > limit {
            return Err(too_large(limit));
        }
        budget.grow(&mut place, len)?;
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.freeze(), place))
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
    let message = "the content type of the request must be application/json";
    Err(ApiError::new(ErrorKind::Schema, message).because("wrong_content_type"))
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
