//! Decides whose request this is: a credential becomes a [`Principal`] or is refused with a [`Reason`].
//!
//! Inputs are what the request presented and facts that others established: the TLS layer has verified a certificate's chain, the API
//! server has reviewed a token. The caller verifies signatures through [`SignatureVerifier`], so that one crypto library serves TLS and
//! tokens; everything about a token beside its signature is decided here.
//!
//! Invariants:
//! 1. Nobody is let in by default: no credential means no principal, unless [`Anonymous::ServedAs`] was configured.
//! 2. A presented bearer decides alone. A bad one is refused even where the connection's certificate would have done, because a client
//!    that presents a wrong credential should hear of it instead of being someone else.
//! 3. All refusals look alike to the client; only the audit log has the reason.
//! 4. An [`Authenticator`] never changes: keys rotate by building a new one and swapping it in.
//!
//! Not decided here: what the principal may do (see [`policy`](crate::policy)).

mod api_key;
mod base32;
mod certificate;
mod claims;
mod header;
mod jwk;
mod jwt;
mod reason;
mod review;

use crate::names::TenantName;
use crate::time::UnixSeconds;

pub use api_key::{
    ApiKey, GeneratedKey, KEY_ENTROPY_BYTES, KeyDigest, KeyId, KeyRecord, KeyTable, KeyTableError,
    generate_key,
};
pub use certificate::{CertificateFacts, CertificateRules, San};
pub use claims::{TenantFromClaims, TenantMap};
pub use header::{HeaderValues, bearer};
pub use jwk::{Algorithm, Jwks, JwksError, PublicKey};
pub use jwt::{JwtIssuer, JwtIssuerError, SignatureVerifier};
pub use reason::Reason;
pub use review::{ReviewFacts, ReviewRule, ReviewRules};

/// Whose request it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Principal {
    /// The tenant that the credential belongs to.
    pub tenant: TenantName,
    /// The kind of the credential.
    pub method: Method,
    /// Which credential of that kind it was, for the audit log: a key's id, a token's `sub`, a user name, a certificate's name.
    pub subject: String,
}

/// A kind of credential.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Method {
    /// An API key.
    ApiKey,
    /// A JSON Web Token of a configured issuer.
    Jwt,
    /// A token that the API server vouched for.
    TokenReview,
    /// A client certificate.
    Certificate,
    /// No credential.
    Anonymous,
}

impl Method {
    /// The stable name for logs and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::ApiKey => "api_key",
            Self::Jwt => "jwt",
            Self::TokenReview => "token_review",
            Self::Certificate => "certificate",
            Self::Anonymous => "anonymous",
        }
    }
}

/// What becomes of requests without a credential.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Anonymous {
    /// They are refused.
    #[default]
    Refused,
    /// They are served as this tenant's. Only explicit configuration may choose it.
    ServedAs(TenantName),
}

/// What a request presented.
#[derive(Clone, Copy, Debug, Default)]
pub struct Presented<'a> {
    /// The bearer token; see [`bearer`].
    pub bearer: Option<&'a str>,
    /// The client certificate of the connection, if its chain was verified.
    pub certificate: Option<&'a CertificateFacts>,
}

/// What is known after a look at the credential.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Identification {
    /// The credential is good.
    Known(Principal),
    /// The API server must review the bearer; [`Authenticator::reviewed`] then decides.
    NeedsReview,
}

/// Everything that turns credentials into principals, as one immutable value. The default lets nobody in.
#[derive(Clone, Debug, Default)]
pub struct Authenticator {
    /// API keys.
    pub keys: KeyTable,
    /// Issuers of JSON Web Tokens, found by a token's `iss`.
    pub issuers: Vec<JwtIssuer>,
    /// How reviewed tokens map to tenants; `None` means that no token is sent to the API server.
    pub review: Option<ReviewRules>,
    /// How client certificates map to tenants.
    pub certificates: CertificateRules,
    /// What becomes of requests without a credential.
    pub anonymous: Anonymous,
}

impl Authenticator {
    /// Whose request it is.
    ///
    /// # Errors
    /// Why the request is nobody's; [`Reason::answer`] is all that the client may see of it.
    pub fn identify(
        &self,
        presented: Presented<'_>,
        verifier: &dyn SignatureVerifier,
        now: UnixSeconds,
    ) -> Result<Identification, Reason> {
        if let Some(bearer) = presented.bearer
            && !self.ignores_bearers()
        {
            return self.identify_bearer(bearer, verifier, now);
        }
        if let Some(certificate) = presented.certificate {
            return self
                .certificates
                .principal(certificate, now)
                .map(Identification::Known);
        }
        match &self.anonymous {
            Anonymous::Refused => Err(Reason::NoCredential),
            Anonymous::ServedAs(tenant) => Ok(Identification::Known(Principal {
                tenant: tenant.clone(),
                method: Method::Anonymous,
                subject: "anonymous".to_owned(),
            })),
        }
    }

    /// Whose request it is, after the API server's word on its bearer.
    ///
    /// # Errors
    /// As for [`identify`](Self::identify).
    pub fn reviewed(&self, facts: &ReviewFacts) -> Result<Principal, Reason> {
        let rules = self.review.as_ref().ok_or(Reason::UnknownKind)?;
        rules.principal(facts)
    }

    /// Everybody is served and no bearer could be good: OpenAI's clients always send one, also where none is asked for.
    fn ignores_bearers(&self) -> bool {
        let any_could_be_good = !self.keys.is_empty() || !self.issuers.is_empty() || self.review.is_some();
        self.anonymous != Anonymous::Refused && !any_could_be_good
    }

    fn identify_bearer(
        &self,
        bearer: &str,
        verifier: &dyn SignatureVerifier,
        now: UnixSeconds,
    ) -> Result<Identification, Reason> {
        if let Some(key) = ApiKey::parse(bearer) {
            return self.keys.principal(&key, now).map(Identification::Known);
        }
        let token = match jwt::Unverified::parse(bearer) {
            Ok(token) => token,
            // A bearer that is no JWT can only be one of the API server's own kinds.
            Err(reason) => {
                return self
                    .review
                    .as_ref()
                    .map(|_| Identification::NeedsReview)
                    .ok_or(reason);
            }
        };
        match self.issuers.iter().find(|issuer| issuer.is_named_by(&token)) {
            Some(issuer) => issuer.principal(&token, verifier, now).map(Identification::Known),
            None if self.review.is_some() => Ok(Identification::NeedsReview),
            None => Err(Reason::UnknownIssuer),
        }
    }
}

#[cfg(test)]
mod tests;
