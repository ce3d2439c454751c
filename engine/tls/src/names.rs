//! Rules for the names that a peer's certificate must carry.

use std::fmt;

use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, Error, OtherError};

use crate::error::TlsError;

/// A subject alternative name.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Name {
    /// A DNS name; compared without regard to case, and a wildcard stands only for itself.
    Dns(String),
    /// A URI, for example a SPIFFE id; compared exactly.
    Uri(String),
}

/// The names of which a peer's certificate must carry at least one. Who is called what is decided by the operator, which issues the
/// certificates: for example only the gateway of a service carries the name that the service's engines expect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NameRule(Vec<Name>);

/// The peer is somebody else.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "the peer's certificate is for {}, and one for {} was expected",
    listed(presented),
    listed(expected)
)]
pub struct NameMismatch {
    /// The names that it carries.
    pub presented: Vec<Name>,
    /// The names of which it should carry one.
    pub expected: Vec<Name>,
}

impl NameRule {
    /// Any of these names.
    ///
    /// # Errors
    /// There is none, so nobody could pass.
    pub fn any_of(names: impl IntoIterator<Item = Name>) -> Result<Self, TlsError> {
        let names: Vec<Name> = names.into_iter().collect();
        if names.is_empty() {
            return Err(TlsError::EmptyRule);
        }
        Ok(Self(names))
    }

    /// Whether names that a certificate carries satisfy the rule.
    ///
    /// # Errors
    /// They don't.
    pub fn check(&self, presented: &[Name]) -> Result<(), NameMismatch> {
        let is_expected = |name: &Name| self.0.iter().any(|expected| expected.matches(name));
        if presented.iter().any(is_expected) {
            return Ok(());
        }
        Err(NameMismatch {
            presented: presented.to_vec(),
            expected: self.0.clone(),
        })
    }

    /// The rule as a step of a handshake.
    pub(crate) fn verify(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let names = names_of(certificate)?;
        self.check(&names).map_err(|mismatch| {
            Error::InvalidCertificate(CertificateError::Other(OtherError(std::sync::Arc::new(mismatch))))
        })
    }
}

impl Name {
    fn matches(&self, presented: &Self) -> bool {
        match (self, presented) {
            (Self::Dns(expected), Self::Dns(presented)) => expected.eq_ignore_ascii_case(presented),
            (Self::Uri(expected), Self::Uri(presented)) => expected == presented,
            _ => false,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => write!(f, "DNS:{name}"),
            Self::Uri(uri) => write!(f, "URI:{uri}"),
        }
    }
}

/// The DNS names and URIs of a certificate.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Result<Vec<Name>, Error> {
    let parsed = webpki::EndEntityCert::try_from(certificate).map_err(|error| {
        Error::InvalidCertificate(CertificateError::Other(OtherError(std::sync::Arc::new(error))))
    })?;
    let dns = parsed.valid_dns_names().map(|name| Name::Dns(name.to_owned()));
    let uris = parsed.valid_uri_names().map(|uri| Name::Uri(uri.to_owned()));
    Ok(dns.chain(uris).collect())
}

fn listed(names: &[Name]) -> String {
    if names.is_empty() {
        return "no name at all".to_owned();
    }
    let names: Vec<String> = names.iter().map(Name::to_string).collect();
    names.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dns(name: &str) -> Name {
        Name::Dns(name.to_owned())
    }

    fn uri(uri: &str) -> Name {
        Name::Uri(uri.to_owned())
    }

    #[test]
    fn one_of_the_expected_names_of_the_same_kind_is_enough() {
        let rule = NameRule::any_of([dns("gateway.a.svc"), uri("spiffe://k/a/gateway")]).unwrap();
        for good in [
            vec![dns("gateway.a.svc")],
            vec![dns("x"), dns("Gateway.A.svc")],
            vec![uri("spiffe://k/a/gateway")],
        ] {
            assert_eq!(rule.check(&good), Ok(()), "{good:?}");
        }
        for bad in [
            vec![],
            vec![dns("*.a.svc")],
            vec![dns("gateway.a.svc.evil")],
            vec![uri("gateway.a.svc")],
            vec![dns("spiffe://k/a/gateway")],
            vec![uri("spiffe://K/a/gateway")],
            vec![uri("spiffe://k/a/gateway/x")],
        ] {
            assert!(rule.check(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_wildcard_in_a_rule_stands_for_itself() {
        let rule = NameRule::any_of([dns("*.a.svc")]).unwrap();
        assert!(rule.check(&[dns("gateway.a.svc")]).is_err());
        assert!(rule.check(&[dns("*.a.svc")]).is_ok());
    }

    #[test]
    fn a_rule_without_names_cannot_be_made() {
        assert!(matches!(NameRule::any_of([]), Err(TlsError::EmptyRule)));
    }

    #[test]
    fn a_mismatch_says_what_was_presented_and_what_was_expected() {
        let rule = NameRule::any_of([dns("a"), uri("b:c")]).unwrap();
        let text = rule.check(&[dns("x")]).unwrap_err().to_string();
        assert_eq!(
            text,
            "the peer's certificate is for DNS:x, and one for DNS:a or URI:b:c was expected"
        );
        let text = rule.check(&[]).unwrap_err().to_string();
        assert_eq!(
            text,
            "the peer's certificate is for no name at all, and one for DNS:a or URI:b:c was expected"
        );
    }
}
