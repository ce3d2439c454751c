//! Refuses requests that two servers could cut differently (request smuggling, RFC 9112 sections 3.2, 6.1 and 6.3).
//!
//! The HTTP library refuses what it can't read: differing lengths, codings other than chunked, folded lines, spaces before a colon. Here
//! goes what it would read one way and a proxy in front of us maybe another. The connection is closed afterwards, because what follows on
//! it may be the body that somebody else saw.

use axum::response::Response;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Version};
use kvasir_api::{ApiError, ErrorKind};

use crate::reply::error_response;

/// Checks what frames an HTTP/1 request. HTTP/2 has frames of its own.
///
/// # Errors
/// What is ambiguous about it.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), ApiError> {
    if request.version() > Version::HTTP_11 {
        return Ok(());
    }
    let headers = request.headers();
    let num_lines = |name| headers.get_all(name).iter().count();
    let (num_lengths, num_codings) = (num_lines(CONTENT_LENGTH), num_lines(TRANSFER_ENCODING));
    let reason = if num_lengths > 0 && num_codings > 0 {
        "Content-Length and Transfer-Encoding exclude each other"
    } else if num_lengths > 1 || num_codings > 1 {
        "Content-Length and Transfer-Encoding may come once"
    } else {
        match (num_lines(HOST), request.version()) {
            (0, Version::HTTP_11) => "the Host header is missing",
            (0 | 1, _) => return Ok(()),
            _ => "the Host header may come once",
        }
    };
    Err(ApiError::new(ErrorKind::Schema, reason))
}

/// The answer to such a request, after which the connection ends.
pub(crate) fn refuse(error: &ApiError) -> Response {
    let mut response = error_response(error);
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_taken(version: Version, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap()).is_ok()
    }

    #[test]
    fn requests_with_one_meaning_are_taken() {
        let host = ("host", "a");
        for headers in [
            &[host][..],
            &[host, ("content-length", "5")],
            &[host, ("transfer-encoding", "chunked")],
        ] {
            assert!(is_taken(Version::HTTP_11, headers), "{headers:?}");
        }
        assert!(is_taken(Version::HTTP_10, &[]));
        assert!(is_taken(Version::HTTP_2, &[]));
    }

    #[test]
    fn requests_with_two_meanings_are_refused() {
        let host = ("host", "a");
        for headers in [
            &[][..],
            &[host, ("host", "b")],
            &[host, host],
            &[host, ("content-length", "5"), ("transfer-encoding", "chunked")],
            &[host, ("content-length", "5"), ("content-length", "5")],
            &[
                host,
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "identity"),
            ],
        ] {
            assert!(!is_taken(Version::HTTP_11, headers), "{headers:?}");
        }
    }
}
