//! What the heads of the hub's answers say.

use kvasir_weights::Digest;
use ureq::Body;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use ureq::http::{HeaderMap, Response};

/// What the hub says about a file.
#[derive(Debug)]
pub(super) struct FileHead {
    /// Its content's name; the name of the blob.
    pub(super) etag: String,
    /// Its size in bytes.
    pub(super) size: u64,
    /// Its digest, where the etag is one: for all large files.
    pub(super) sha256: Option<Digest>,
}

pub(super) fn file_head(response: &Response<Body>) -> Result<FileHead, String> {
    let headers = response.headers();
    let etag = headers
        .get("x-linked-etag")
        .or_else(|| headers.get(ETAG))
        .and_then(|etag| etag.to_str().ok());
    let etag = etag
        .unwrap_or("")
        .trim_start_matches("W/")
        .trim_matches('"')
        .to_owned();
    if !is_blob_name(&etag) {
        return Err(format!("the etag {etag:?} is not possible as a file name"));
    }
    // The length of a redirect is that of its own text.
    let own_length = number(headers, CONTENT_LENGTH.as_str()).filter(|_| response.status().is_success());
    let size = number(headers, "x-linked-size")
        .or(own_length)
        .ok_or("it states no size")?;
    Ok(FileHead {
        sha256: Digest::from_hex(&etag),
        etag,
        size,
    })
}

fn is_blob_name(etag: &str) -> bool {
    (1..=128).contains(&etag.len())
        && !etag.starts_with('.')
        && etag
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

pub(super) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// First byte and total size of `bytes FIRST-LAST/TOTAL`.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let value = headers
        .get(CONTENT_RANGE)?
        .to_str()
        .ok()?
        .trim()
        .strip_prefix("bytes")?;
    let (range, total) = value.trim().split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, total.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::is_blob_name;

    #[test]
    fn etag_that_leads_elsewhere_is_no_blob_name() {
        assert!(is_blob_name("d41d8cd98f00b204e9800998ecf8427e-3"));
        for etag in ["", "..", "../x", "a/b", ".x"] {
            assert!(!is_blob_name(etag), "{etag}");
        }
    }
}
