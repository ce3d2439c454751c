//! Decides what a principal may do: route by scope, then model, adapter and length by tenant.
//!
//! Inputs are a [`Policy`], the scope of the matched route and the principal; later, when the body is read, the model it names. Outputs are
//! an [`Entry`], then a [`Grant`], or a [`Denial`] whose reason is for the audit log.
//!
//! Invariants, each a row of `tests/decisions.txt`:
//! 1. Deny by default: an unlisted route, an unknown tenant, a scope, model or adapter that isn't named is denied. (The research on engines,
//!    C73 and C74: servers that guarded a list of prefixes and left the rest open.)
//! 2. A model or adapter that a tenant may not use is answered like one that doesn't exist, so nobody learns what others run.
//! 3. A client can make its request less urgent than its tenant's class, never more.
//!
//! Not decided here: how much (see [`limits`](crate::limits)), and where to.

mod denial;
mod scope;
mod tenant;

use std::collections::BTreeMap;

use crate::auth::{Principal, Reason};
use crate::names::TenantName;

pub use denial::{Answer, Denial};
pub use scope::{Scope, Scopes};
pub use tenant::{Allowed, Priority, Tenant};

/// All tenants; immutable, swapped as a whole. The default knows nobody.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Tenants by name.
    pub tenants: BTreeMap<TenantName, Tenant>,
}

/// Who passed the door of a route.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// The route is public; there may be no credential.
    Public,
    /// A tenant that has the route's scope.
    Tenant {
        /// Its name.
        name: &'a TenantName,
        /// Its rules.
        tenant: &'a Tenant,
    },
}

/// What a request's body asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelUse<'a> {
    /// The served model.
    pub model: &'a str,
    /// The adapter on top of it.
    pub adapter: Option<&'a str>,
    /// Most output tokens the client wants; `None`: as many as it may have.
    pub max_tokens: Option<u32>,
    /// The urgency the client wants; `None`: its tenant's.
    pub priority: Option<Priority>,
}

/// The terms on which a request runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grant {
    /// Most output tokens; `None`: as many as the model allows.
    pub max_tokens: Option<u32>,
    /// Its class.
    pub priority: Priority,
    /// Its tenant's share among those of its class, 1 or more.
    pub weight: u32,
}

impl Policy {
    /// Whether `who` may enter a route. `scope` is `None` for a route that isn't in the table.
    ///
    /// # Errors
    /// The route isn't listed, nobody is known, or the tenant lacks the scope.
    pub fn enter<'a>(
        &'a self,
        scope: Option<Scope>,
        who: Result<&Principal, Reason>,
    ) -> Result<Entry<'a>, Denial> {
        let scope = scope.ok_or(Denial::UnlistedRoute)?;
        if scope == Scope::Public {
            return Ok(Entry::Public);
        }
        let principal = who.map_err(Denial::Unauthenticated)?;
        let (name, tenant) = self
            .tenants
            .get_key_value(&principal.tenant)
            .ok_or(Denial::UnknownTenant)?;
        if !tenant.scopes.contains(scope) {
            return Err(Denial::MissingScope(scope));
        }
        Ok(Entry::Tenant { name, tenant })
    }
}

impl Entry<'_> {
    /// Whether the model may be used, and may therefore be listed.
    pub fn sees_model(&self, model: &str) -> bool {
        matches!(self, Self::Tenant { tenant, .. } if tenant.models.contains(model))
    }

    /// The terms on which the entered may use a model.
    ///
    /// # Errors
    /// The tenant may not use the model or the adapter, or wants more tokens than it may have.
    pub fn grant(&self, wanted: ModelUse<'_>) -> Result<Grant, Denial> {
        // Public routes serve no model.
        let Self::Tenant { tenant, .. } = self else {
            return Err(Denial::ForbiddenModel);
        };
        if !tenant.models.contains(wanted.model) {
            return Err(Denial::ForbiddenModel);
        }
        if wanted
            .adapter
            .is_some_and(|adapter| !tenant.adapters.contains(adapter))
        {
            return Err(Denial::ForbiddenAdapter);
        }
        if let (Some(wanted), Some(limit)) = (wanted.max_tokens, tenant.max_tokens)
            && wanted > limit
        {
            return Err(Denial::TooManyTokens { wanted, limit });
        }
        Ok(Grant {
            max_tokens: wanted.max_tokens.or(tenant.max_tokens),
            priority: wanted
                .priority
                .map_or(tenant.priority, |wanted| wanted.max(tenant.priority)),
            weight: tenant.weight.max(1),
        })
    }
}

#[cfg(test)]
mod tests;
