//! Who the peer of a connection is.

use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, Error};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::names::{Name, names_of};

/// What a verified certificate says of its holder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PeerIdentity {
    /// Its names.
    pub names: Vec<Name>,
    /// The last second in which it's valid, since 1970-01-01 UTC.
    pub not_after: i64,
}

/// The identity in a peer's chain, as rustls hands it out after a handshake; `None` for a peer without a certificate. The chain has been
/// verified by then.
///
/// # Errors
/// The certificate can't be read, which a verified one always can.
pub fn peer_identity(chain: Option<&[CertificateDer<'_>]>) -> Result<Option<PeerIdentity>, Error> {
    let Some(certificate) = chain.and_then(<[_]>::first) else {
        return Ok(None);
    };
    let names = names_of(certificate)?;
    let not_after = not_after(certificate).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
    Ok(Some(PeerIdentity { names, not_after }))
}

/// The last second in which a certificate is valid.
pub(crate) fn not_after(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}
