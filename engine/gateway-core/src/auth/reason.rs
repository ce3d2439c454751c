//! Why a credential was refused.

/// Why a request is nobody's. For the audit log: a client learns only [`answer`](Self::answer).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Reason {
    /// There is no credential, and nobody configured that there needn't be.
    NoCredential,
    /// The header isn't one credential of a known form.
    MalformedHeader,
    /// The bearer has the form of no configured kind of credential.
    UnknownKind,
    /// No key has this id.
    UnknownKey,
    /// The key's id is known, its secret is wrong.
    WrongSecret,
    /// The key, token or certificate is past its end.
    Expired,
    /// The token isn't valid yet.
    NotYetValid,
    /// The token isn't three parts of base64url around JSON objects, or is too long.
    MalformedToken,
    /// The token demands extensions (`crit`) that nobody here knows.
    CriticalExtension,
    /// The token's `iss` is no configured issuer.
    UnknownIssuer,
    /// The token names an algorithm that isn't allowed: `none`, a shared-secret one, or one that isn't its key's.
    ForbiddenAlgorithm,
    /// The issuer's key set lacks the key that the token names. A newer key set may have it.
    UnknownSigningKey,
    /// The signature is wrong.
    WrongSignature,
    /// The token is meant for somebody else.
    WrongAudience,
    /// The token has no end.
    NoExpiry,
    /// The API server refused the token.
    ReviewRefused,
    /// The API server couldn't be asked about the token.
    ReviewUnavailable,
    /// The credential is good, but no rule gives it a tenant.
    NoTenant,
    /// The credential is good, but rules give it more than one tenant.
    AmbiguousTenant,
}

impl Reason {
    /// Every reason, in order.
    pub const ALL: [Self; 19] = [
        Self::NoCredential,
        Self::MalformedHeader,
        Self::UnknownKind,
        Self::UnknownKey,
        Self::WrongSecret,
        Self::Expired,
        Self::NotYetValid,
        Self::MalformedToken,
        Self::CriticalExtension,
        Self::UnknownIssuer,
        Self::ForbiddenAlgorithm,
        Self::UnknownSigningKey,
        Self::WrongSignature,
        Self::WrongAudience,
        Self::NoExpiry,
        Self::ReviewRefused,
        Self::ReviewUnavailable,
        Self::NoTenant,
        Self::AmbiguousTenant,
    ];

    /// The stable code for the audit log and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoCredential => "no_credential",
            Self::MalformedHeader => "malformed_header",
            Self::UnknownKind => "unknown_kind",
            Self::UnknownKey => "unknown_key",
            Self::WrongSecret => "wrong_secret",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::MalformedToken => "malformed_token",
            Self::CriticalExtension => "critical_extension",
            Self::UnknownIssuer => "unknown_issuer",
            Self::ForbiddenAlgorithm => "forbidden_algorithm",
            Self::UnknownSigningKey => "unknown_signing_key",
            Self::WrongSignature => "wrong_signature",
            Self::WrongAudience => "wrong_audience",
            Self::NoExpiry => "no_expiry",
            Self::ReviewRefused => "review_refused",
            Self::ReviewUnavailable => "review_unavailable",
            Self::NoTenant => "no_tenant",
            Self::AmbiguousTenant => "ambiguous_tenant",
        }
    }

    /// What the client reads, with status 401: the same for every reason, so that nobody learns which part of a credential was right.
    pub fn answer(self) -> &'static str {
        "missing or invalid credentials"
    }
}
