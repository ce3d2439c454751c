//! Refuses requests that two servers could cut differently (request smuggling, RFC 9112 sections 3.2, 6.1 and 6.3).
//!
//! The HTTP library refuses what it can't read: differing lengths, a last coding other than chunked, folded lines, spaces before a colon.
//! Here goes what it would read one way and a proxy in front of us maybe another. The connection is closed afterwards, because what follows
//! on it may be the body that somebody else saw. A length beside a coding can't be refused: hyper drops the length before anybody sees
//! it. So no connection outlives a request with a coding, which the RFC asks for where there are both.

use axum::response::Response;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
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
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let num_hosts = headers.get_all(HOST).iter().count();
    let reason = match (codings.next(), codings.next()) {
        (_, Some(_)) => "Transfer-Encoding may come once",
        (Some(coding), _) if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            "chunked is the only Transfer-Encoding"
        }
        _ => match (num_hosts, request.version()) {
            (0, Version::HTTP_11) => "the Host header is missing",
            (0 | 1, _) => return Ok(()),
            _ => "the Host header may come once",
        },
    };
    Err(ApiError::new(ErrorKind::Schema, reason))
}

/// Whether the connection must end after the answer: its body may be cut in two ways.
pub(crate) fn must_be_last<B>(request: &Request<B>) -> bool {
    request.version() <= Version::HTTP_11 && request.headers().contains_key(TRANSFER_ENCODING)
}

/// The answer to such a request, after which the connection ends.
pub(crate) fn refuse(error: &ApiError) -> Response {
    closing(error_response(error))
}

/// The answer, after which the connection ends.
pub(crate) fn closing(mut response: Response) -> Response {
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
            &[host, ("transfer-encoding", "Chunked")],
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
            &[host, ("transfer-encoding", "gzip, chunked")],
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
