//! The claims of a token, and the tenant they name.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, MapAccess, Visitor};
use serde_json::Value;

use super::Reason;
use crate::names::TenantName;

/// Most claims in one token.
const MAX_CLAIMS: usize = 256;

/// How a token's claims name its tenant.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TenantFromClaims {
    /// All tokens of the issuer belong to one tenant.
    Fixed(TenantName),
    /// The values of a claim (a string or a list of strings) are looked up.
    Claim {
        /// The claim's name.
        claim: String,
        /// Tenants by value. A value that isn't listed names nobody.
        tenants: TenantMap,
    },
}

/// Tenants by a claim's value.
pub type TenantMap = BTreeMap<String, TenantName>;

impl TenantFromClaims {
    pub(super) fn tenant(&self, claims: &Claims) -> Result<TenantName, Reason> {
        match self {
            Self::Fixed(tenant) => Ok(tenant.clone()),
            Self::Claim { claim, tenants } => {
                single(claims.strings(claim).filter_map(|value| tenants.get(value)))
            }
        }
    }
}

/// The one tenant that all matches agree on.
pub(super) fn single<'a>(mut matches: impl Iterator<Item = &'a TenantName>) -> Result<TenantName, Reason> {
    let first = matches.next().ok_or(Reason::NoTenant)?;
    if matches.all(|other| other == first) {
        Ok(first.clone())
    } else {
        Err(Reason::AmbiguousTenant)
    }
}

/// A JSON object whose names are unique: where parsers disagree about which of two equal names counts, a token could mean one thing to its
/// issuer and another to us.
#[derive(Debug)]
pub(super) struct Claims(BTreeMap<String, Value>);

impl Claims {
    /// A claim that must be a string.
    pub(super) fn string(&self, claim: &str) -> Option<&str> {
        self.0.get(claim)?.as_str()
    }

    /// The strings of a claim that is a string or a list; what isn't a string names nothing.
    pub(super) fn strings(&self, claim: &str) -> impl Iterator<Item = &str> {
        let values = match self.0.get(claim) {
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
            None => &[],
        };
        values.iter().filter_map(Value::as_str)
    }

    /// A time in seconds, rounded down; `None` if the claim is absent.
    ///
    /// # Errors
    /// The claim isn't a number.
    pub(super) fn seconds(&self, claim: &str) -> Result<Option<i64>, Reason> {
        let Some(value) = self.0.get(claim) else {
            return Ok(None);
        };
        if let Some(seconds) = value.as_i64() {
            return Ok(Some(seconds));
        }
        // `as` saturates, so a time beyond the range is the end of time.
        let seconds = value.as_f64().ok_or(Reason::MalformedToken)?.floor() as i64;
        Ok(Some(seconds))
    }
}

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueNames)
    }
}

struct UniqueNames;

impl<'de> Visitor<'de> for UniqueNames {
    type Value = Claims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with unique names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Claims, A::Error> {
        let mut claims = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if claims.len() == MAX_CLAIMS || claims.insert(name, value).is_some() {
                return Err(de::Error::custom("a name twice, or too many names"));
            }
        }
        Ok(Claims(claims))
    }
}
