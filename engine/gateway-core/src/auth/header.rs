//! From header lines to one credential.

use super::Reason;

/// The lines of the headers that can carry a credential, as they came.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderValues<'a> {
    /// Values of `Authorization`.
    pub authorization: &'a [&'a [u8]],
    /// Values of `X-Api-Key`, which Anthropic's clients send.
    pub api_key: &'a [&'a [u8]],
}

/// Longest credential, in bytes. Tokens with many groups reach 8 KiB.
const MAX_CREDENTIAL_BYTES: usize = 16 * 1024;

/// The one credential of a request; `None` if there is none.
///
/// # Errors
/// [`Reason::MalformedHeader`] for more than one, for a scheme other than `Bearer`, and for a text that isn't visible ASCII. Two different
/// credentials are never resolved by picking one: a proxy in front may have picked the other.
pub fn bearer(headers: HeaderValues<'_>) -> Result<Option<&str>, Reason> {
    let token = match (headers.authorization, headers.api_key) {
        ([], []) => return Ok(None),
        ([value], []) => without_scheme(value)?,
        ([], [value]) => value,
        _ => return Err(Reason::MalformedHeader),
    };
    let is_visible = token.iter().all(u8::is_ascii_graphic);
    if token.is_empty() || token.len() > MAX_CREDENTIAL_BYTES || !is_visible {
        return Err(Reason::MalformedHeader);
    }
    str::from_utf8(token)
        .map(Some)
        .map_err(|_| Reason::MalformedHeader)
}

/// The scheme's name is case-insensitive and one or more spaces follow it (RFC 9110, section 11.4).
fn without_scheme(value: &[u8]) -> Result<&[u8], Reason> {
    let (scheme, rest) = value
        .split_at_checked(b"bearer".len())
        .ok_or(Reason::MalformedHeader)?;
    let token = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") && rest.first() == Some(&b' ') {
        Ok(token)
    } else {
        Err(Reason::MalformedHeader)
    }
}
