//! Addresses: joining, comparing, encoding.

use ureq::http::Uri;

/// The address that `location` means in an answer from `url`. From https there is no way back to http.
pub(super) fn join(url: &str, location: &str) -> Option<String> {
    let base: Uri = url.parse().ok()?;
    if location.starts_with("https://")
        || (location.starts_with("http://") && base.scheme_str() == Some("http"))
    {
        return Some(location.to_owned());
    }
    let is_path = location.starts_with('/') && !location.starts_with("//");
    is_path.then(|| {
        Some(format!(
            "{}://{}{location}",
            base.scheme_str()?,
            base.authority()?
        ))
    })?
}

pub(super) fn same_origin(one: &str, other: &str) -> bool {
    let origin = |url: &str| {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_owned();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some((scheme, uri.host()?.to_ascii_lowercase(), port))
    };
    origin(one).is_some() && origin(one) == origin(other)
}

/// Percent-encodes everything but unreserved characters and, in paths, slashes.
pub(super) fn encode(text: &str, is_path: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            b'/' if is_path => encoded.push('/'),
            _ => {
                encoded.push('%');
                for digit in [byte >> 4, byte & 15] {
                    encoded.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
                }
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::{encode, join, same_origin};

    #[test]
    fn redirects_lead_to_paths_and_addresses_but_not_down_to_http() {
        assert_eq!(join("https://h:1/a", "/b?c").unwrap(), "https://h:1/b?c");
        assert_eq!(join("http://h/a", "http://i/b").unwrap(), "http://i/b");
        assert_eq!(join("https://h/a", "http://h/b"), None);
        assert_eq!(join("https://h/a", "//i/b"), None);
        assert_eq!(join("https://h/a", "file:///b"), None);
    }

    #[test]
    fn origin_is_scheme_host_and_port() {
        assert!(same_origin("https://h/a", "https://H:443/b"));
        for other in ["http://h/", "https://h:444/", "https://h.i/", "h"] {
            assert!(!same_origin("https://h/a", other), "{other}");
        }
    }

    #[test]
    fn unusual_characters_are_encoded() {
        assert_eq!(encode("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encode("a b/ü.gguf", true), "a%20b/%C3%BC.gguf");
    }
}
