//! From PEM files to keys and authorities.

use std::path::Path;
use std::sync::Arc;

use kvasir_files::Limit;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::error::TlsError;
use crate::provider;

/// A bundle of all public authorities has a quarter of this.
const LIMIT: Limit = Limit {
    max_bytes: 1 << 20,
    advice: "it should hold PEM certificates or a key",
};

/// The content of some files at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents(Vec<Vec<u8>>);

impl Contents {
    /// Reads the files, in order.
    pub(crate) fn read(paths: &[&Path]) -> Result<Self, TlsError> {
        paths
            .iter()
            .map(|path| Ok(kvasir_files::read(path, LIMIT)?))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The content of one of them.
    pub(crate) fn get(&self, place: usize) -> &[u8] {
        self.0.get(place).map_or(&[], Vec::as_slice)
    }

    /// Tells contents apart.
    pub(crate) fn digest(&self) -> [u8; 32] {
        use sha2::{Digest, Sha256};
        let mut hasher = Sha256::new();
        for content in &self.0 {
            hasher.update((content.len() as u64).to_le_bytes());
            hasher.update(content);
        }
        hasher.finalize().into()
    }
}

/// The chain and its key, which must belong together.
pub(crate) fn certified_key(
    (certificate_path, certificate): (&Path, &[u8]),
    (key_path, key): (&Path, &[u8]),
) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificates(certificate_path, certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|source| TlsError::Pem {
        path: key_path.to_owned(),
        source,
    })?;
    let key = provider()
        .key_provider
        .load_private_key(key)
        .map_err(|source| TlsError::Key {
            path: key_path.to_owned(),
            source,
        })?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Ok(Arc::new(certified)),
        Err(rustls::Error::InconsistentKeys(_)) => Err(TlsError::KeyMismatch {
            certificate: certificate_path.to_owned(),
            key: key_path.to_owned(),
        }),
        Err(source) => Err(TlsError::Certificate {
            path: certificate_path.to_owned(),
            reason: source.to_string(),
        }),
    }
}

/// The authorities of a bundle. All of them must be usable: a bundle that is half understood would lock some peers out.
pub(crate) fn authorities(path: &Path, bundle: &[u8]) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, bundle)? {
        roots.add(certificate).map_err(|error| TlsError::Certificate {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
    }
    Ok(Arc::new(roots))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(|source| TlsError::Pem {
        path: path.to_owned(),
        source,
    })?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(certificates)
}
