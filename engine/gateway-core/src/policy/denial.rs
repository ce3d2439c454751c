//! Why a request is denied, and what of it the client reads.

use super::Scope;
use crate::auth::Reason;

/// Why a request is denied. For the audit log: a client learns only [`answer`](Self::answer).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Denial {
    /// The route isn't in the table.
    UnlistedRoute,
    /// The credential names nobody.
    Unauthenticated(Reason),
    /// The credential names a tenant that the policy doesn't have.
    UnknownTenant,
    /// The tenant lacks the route's scope.
    MissingScope(Scope),
    /// The tenant may not use the model.
    ForbiddenModel,
    /// The tenant may not use the adapter.
    ForbiddenAdapter,
    /// The client wants more output tokens than its tenant may have.
    TooManyTokens {
        /// What it wants.
        wanted: u32,
        /// What it may have.
        limit: u32,
    },
}

/// What the client reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// 404: there is no such route.
    NoSuchRoute,
    /// 401: the text of [`Reason::answer`].
    Unauthenticated,
    /// 403: this credential may not do this.
    Forbidden,
    /// 404: there is no such model, or none for this client.
    NoSuchModel,
    /// 400: fewer tokens, please.
    TooManyTokens {
        /// What the client may ask for.
        limit: u32,
    },
}

impl Denial {
    /// The stable code for the audit log and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::UnlistedRoute => "unlisted_route",
            Self::Unauthenticated(reason) => reason.code(),
            Self::UnknownTenant => "unknown_tenant",
            Self::MissingScope(_) => "missing_scope",
            Self::ForbiddenModel => "forbidden_model",
            Self::ForbiddenAdapter => "forbidden_adapter",
            Self::TooManyTokens { .. } => "too_many_tokens",
        }
    }

    /// What the client may know of it.
    pub fn answer(self) -> Answer {
        match self {
            Self::UnlistedRoute => Answer::NoSuchRoute,
            Self::Unauthenticated(_) => Answer::Unauthenticated,
            Self::UnknownTenant | Self::MissingScope(_) => Answer::Forbidden,
            Self::ForbiddenModel | Self::ForbiddenAdapter => Answer::NoSuchModel,
            Self::TooManyTokens { limit, .. } => Answer::TooManyTokens { limit },
        }
    }
}

impl Answer {
    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NoSuchRoute | Self::NoSuchModel => 404,
            Self::TooManyTokens { .. } => 400,
        }
    }
}
