//! Client certificates: the names that a verified certificate carries become a tenant.

use std::collections::BTreeMap;

use super::claims::single;
use super::{Method, Principal, Reason};
use crate::names::TenantName;
use crate::time::UnixSeconds;

/// A subject alternative name, compared exactly; there are no wildcards for clients.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum San {
    /// A DNS name, in lower case.
    Dns(String),
    /// A URI, for example a SPIFFE id.
    Uri(String),
}

impl San {
    fn text(&self) -> &str {
        match self {
            Self::Dns(text) | Self::Uri(text) => text,
        }
    }
}

/// What the TLS layer established about a client's certificate: the chain is good.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateFacts {
    /// Its subject alternative names.
    pub names: Vec<San>,
    /// The last second in which it's valid. Connections live longer than certificates may, so each request is checked.
    pub not_after: UnixSeconds,
}

/// Tenants by name. The default knows nobody.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CertificateRules(pub BTreeMap<San, TenantName>);

impl CertificateRules {
    pub(super) fn principal(&self, facts: &CertificateFacts, now: UnixSeconds) -> Result<Principal, Reason> {
        if now > facts.not_after {
            return Err(Reason::Expired);
        }
        let matches = || {
            facts
                .names
                .iter()
                .filter_map(|name| Some((name, self.0.get(name)?)))
        };
        let tenant = single(matches().map(|(_, tenant)| tenant))?;
        let subject = matches()
            .map(|(name, _)| name.text().to_owned())
            .next()
            .unwrap_or_default();
        Ok(Principal {
            tenant,
            method: Method::Certificate,
            subject,
        })
    }
}
