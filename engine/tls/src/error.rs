//! What can be wrong with files.

use std::path::PathBuf;

use kvasir_files::FileError;
use rustls::{CertificateError, Error, OtherError};

use crate::names::NameMismatch;

/// What to log about a connection that didn't come about: rustls' words, or, for a peer of another name, which names it has and which were
/// expected.
pub fn explain(error: &std::io::Error) -> String {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let of_names = match of_tls {
        Some(Error::InvalidCertificate(CertificateError::Other(OtherError(inner)))) => {
            inner.downcast_ref::<NameMismatch>()
        }
        _ => None,
    };
    of_names.map_or_else(|| error.to_string(), NameMismatch::to_string)
}

/// Why files make no configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read, or is larger than any certificate or key.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file isn't PEM.
    #[error("{} is no PEM file: {source}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::pki_types::pem::Error,
    },
    /// A file has no certificate.
    #[error("{} holds no certificate: it should begin with -----BEGIN CERTIFICATE-----", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A certificate can't be understood.
    #[error("a certificate in {} can't be used: {reason}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The key can't be used.
    #[error("the key in {} can't be used: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Error,
    },
    /// The certificate has another key.
    #[error("the certificate in {} doesn't belong to the key in {}", certificate.display(), key.display())]
    KeyMismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The system trusts nobody.
    #[error("the system has no list of authorities: install ca-certificates, or name a PEM file")]
    NoSystemAuthorities,
    /// A rule allows nobody.
    #[error("a rule for peers' names needs at least one name")]
    EmptyRule,
    /// rustls refuses the configuration.
    #[error("the configuration can't be used: {0}")]
    Config(#[source] Error),
    /// The verifier refuses the authorities.
    #[error("the authorities in {} can't be used: {reason}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}
