//! Names that configuration gives.

use std::fmt;
use std::sync::Arc;

/// Longest name of a tenant, in bytes: it becomes a metric label and part of keys in the limit store.
const MAX_TENANT_NAME_BYTES: usize = 63;

/// The name of a tenant: 1 to 63 of `a-z`, `0-9`, `-`, `.`, beginning and ending with a letter or digit. Cheap to clone.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TenantName(Arc<str>);

/// A text that can't be a tenant's name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{name:?} can't be a tenant's name: use 1 to {MAX_TENANT_NAME_BYTES} of a-z, 0-9, - and ., with a letter or digit first and last"
)]
pub struct BadTenantName {
    /// What was given, cut after 80 characters.
    pub name: String,
}

impl TenantName {
    /// Checks a name.
    ///
    /// # Errors
    /// The name breaks the rule that the type states.
    pub fn new(name: &str) -> Result<Self, BadTenantName> {
        let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = name.as_bytes();
        let ends_plain =
            bytes.first().is_some_and(|c| is_plain(*c)) && bytes.last().is_some_and(|c| is_plain(*c));
        let inner_allowed = bytes.iter().all(|c| is_plain(*c) || matches!(c, b'-' | b'.'));
        if bytes.len() <= MAX_TENANT_NAME_BYTES && ends_plain && inner_allowed {
            return Ok(Self(name.into()));
        }
        Err(BadTenantName {
            name: name.chars().take(80).collect(),
        })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_names_are_dns_like() {
        for good in ["a", "team-a", "a.b", "0", &"x".repeat(63)] {
            assert_eq!(TenantName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a b", "ä", "a\n", &"x".repeat(64)] {
            assert!(TenantName::new(bad).is_err(), "{bad:?}");
        }
    }
}
