//! JSON Web Tokens: which claims of a token to believe.
//!
//! Order matters: the unverified part only chooses the issuer and the key; nothing of it is believed before the signature is good. The
//! algorithm must be the key's own (RFC 8725, sections 3.1 and 3.2). Keys that a token brings along (`jwk`, `jku`, `x5c`) are never read.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::claims::Claims;
use super::jwk::{Algorithm, Jwks, PublicKey};
use super::{Method, Principal, Reason, TenantFromClaims};
use crate::time::UnixSeconds;

/// Longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Largest clock skew that may be configured, in seconds.
const MAX_SKEW_SECONDS: u32 = 300;

/// Characters of `sub` that the audit log keeps.
const MAX_SUBJECT_CHARS: usize = 256;

/// Checks signatures. The caller brings the crypto library.
pub trait SignatureVerifier {
    /// Whether `signature` is the key's signature of `message` under the key's one algorithm. For P-256 the signature is `r` and `s` of
    /// 32 bytes each (RFC 7518, section 3.4). False for any malformed key or signature.
    fn is_valid(&self, key: &PublicKey, message: &[u8], signature: &[u8]) -> bool;
}

/// Somebody whose tokens are accepted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JwtIssuer {
    issuer: String,
    audiences: Vec<String>,
    skew_seconds: u32,
    keys: Jwks,
    tenant: TenantFromClaims,
}

/// Why an issuer can't be configured so.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JwtIssuerError {
    /// The issuer has no name.
    #[error("an issuer needs the exact text of its tokens' iss")]
    NoIssuer,
    /// Tokens for anybody would be accepted.
    #[error(
        "issuer {issuer:?} needs at least one audience, or tokens meant for other services would be accepted"
    )]
    NoAudience {
        /// The issuer.
        issuer: String,
    },
    /// The skew is too large.
    #[error("a clock skew of {seconds} s is larger than {MAX_SKEW_SECONDS} s: set the clocks instead")]
    SkewTooLarge {
        /// What was asked for.
        seconds: u32,
    },
}

/// A token whose signature nobody has looked at.
#[derive(Debug)]
pub(super) struct Unverified<'a> {
    alg: String,
    kid: Option<String>,
    has_critical_extension: bool,
    /// What was signed: header and claims as they came.
    message: &'a [u8],
    claims: Claims,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

impl JwtIssuer {
    /// An issuer: the exact `iss`, the audiences of which a token must name one, the tolerated difference between clocks, the keys, and
    /// the way to the tenant.
    ///
    /// # Errors
    /// The name is empty, there is no audience, or the skew is above 300 s.
    pub fn new(
        issuer: String,
        audiences: Vec<String>,
        skew_seconds: u32,
        keys: Jwks,
        tenant: TenantFromClaims,
    ) -> Result<Self, JwtIssuerError> {
        if issuer.is_empty() {
            return Err(JwtIssuerError::NoIssuer);
        }
        if audiences.iter().all(String::is_empty) {
            return Err(JwtIssuerError::NoAudience { issuer });
        }
        if skew_seconds > MAX_SKEW_SECONDS {
            return Err(JwtIssuerError::SkewTooLarge {
                seconds: skew_seconds,
            });
        }
        Ok(Self {
            issuer,
            audiences,
            skew_seconds,
            keys,
            tenant,
        })
    }

    /// The exact `iss`.
    pub fn name(&self) -> &str {
        &self.issuer
    }

    /// The same issuer with a newer key set.
    #[must_use]
    pub fn with_keys(&self, keys: Jwks) -> Self {
        Self { keys, ..self.clone() }
    }

    pub(super) fn is_named_by(&self, token: &Unverified<'_>) -> bool {
        token.claims.string("iss") == Some(&self.issuer)
    }

    pub(super) fn principal(
        &self,
        token: &Unverified<'_>,
        verifier: &dyn SignatureVerifier,
        now: UnixSeconds,
    ) -> Result<Principal, Reason> {
        let algorithm = Algorithm::parse(&token.alg).ok_or(Reason::ForbiddenAlgorithm)?;
        if token.has_critical_extension {
            return Err(Reason::CriticalExtension);
        }
        let key = self.keys.select(token.kid.as_deref(), algorithm)?;
        if !verifier.is_valid(key, token.message, &token.signature) {
            return Err(Reason::WrongSignature);
        }
        self.check_claims(&token.claims, now)?;
        Ok(Principal {
            tenant: self.tenant.tenant(&token.claims)?,
            method: Method::Jwt,
            subject: token
                .claims
                .string("sub")
                .unwrap_or_default()
                .chars()
                .take(MAX_SUBJECT_CHARS)
                .collect(),
        })
    }

    fn check_claims(&self, claims: &Claims, now: UnixSeconds) -> Result<(), Reason> {
        let skew = i64::from(self.skew_seconds);
        let expires = claims.seconds("exp")?.ok_or(Reason::NoExpiry)?;
        if now >= UnixSeconds(expires).plus(skew) {
            return Err(Reason::Expired);
        }
        for begin in ["nbf", "iat"] {
            if claims
                .seconds(begin)?
                .is_some_and(|begin| now.plus(skew) < UnixSeconds(begin))
            {
                return Err(Reason::NotYetValid);
            }
        }
        let is_for_us =
            |audience: &str| !audience.is_empty() && self.audiences.iter().any(|ours| ours == audience);
        if claims.strings("aud").any(is_for_us) {
            Ok(())
        } else {
            Err(Reason::WrongAudience)
        }
    }
}

impl<'a> Unverified<'a> {
    /// Takes a token apart. Any text is safe to give.
    pub(super) fn parse(token: &'a str) -> Result<Self, Reason> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Reason::MalformedToken);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(Reason::MalformedToken)?;
        let (header, claims) = message.split_once('.').ok_or(Reason::MalformedToken)?;
        let header: Header = json(header)?;
        Ok(Self {
            alg: header.alg,
            kid: header.kid,
            has_critical_extension: header.crit.is_some(),
            message: message.as_bytes(),
            claims: json(claims)?,
            signature: decode(signature)?,
        })
    }
}

fn json<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, Reason> {
    serde_json::from_slice(&decode(part)?).map_err(|_| Reason::MalformedToken)
}

fn decode(part: &str) -> Result<Vec<u8>, Reason> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Reason::MalformedToken)
}
