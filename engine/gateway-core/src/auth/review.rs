//! Kubernetes tokens: what the API server says in a TokenReview becomes a tenant.

use super::{Method, Principal, Reason};
use crate::names::TenantName;

/// The status of a TokenReview.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ReviewFacts {
    /// Whether the API server vouches for the token.
    pub is_authenticated: bool,
    /// The user, for example `system:serviceaccount:default:reader`.
    pub username: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// The audiences that the token and the review's request have in common.
    pub audiences: Vec<String>,
}

/// Which reviewed users a rule stands for; all comparisons are exact.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReviewRule {
    /// One service account.
    ServiceAccount {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Every service account of a namespace.
    Namespace(String),
    /// Every member of a group.
    Group(String),
    /// One user, by the whole name.
    Username(String),
}

/// How reviewed tokens map to tenants.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReviewRules {
    /// The audience that a token must be meant for: this gateway's own, never the API server's.
    pub audience: String,
    /// The first rule that fits names the tenant.
    pub rules: Vec<(ReviewRule, TenantName)>,
}

impl ReviewRules {
    pub(super) fn principal(&self, facts: &ReviewFacts) -> Result<Principal, Reason> {
        if !facts.is_authenticated || facts.username.is_empty() {
            return Err(Reason::ReviewRefused);
        }
        // An API server that doesn't know audiences answers with none; its word then says nothing about whom the token is for.
        if !facts.audiences.contains(&self.audience) {
            return Err(Reason::WrongAudience);
        }
        let tenant = self
            .rules
            .iter()
            .find(|(rule, _)| rule.fits(facts))
            .map(|(_, tenant)| tenant);
        Ok(Principal {
            tenant: tenant.ok_or(Reason::NoTenant)?.clone(),
            method: Method::TokenReview,
            subject: facts.username.clone(),
        })
    }
}

impl ReviewRule {
    fn fits(&self, facts: &ReviewFacts) -> bool {
        let account = facts
            .username
            .strip_prefix("system:serviceaccount:")
            .and_then(|rest| rest.split_once(':'));
        match self {
            Self::ServiceAccount { namespace, name } => account == Some((namespace, name)),
            Self::Namespace(namespace) => account.is_some_and(|(of, _)| of == namespace),
            Self::Group(group) => facts.groups.contains(group),
            Self::Username(username) => facts.username == *username,
        }
    }
}
