//! The side that opens connections to servers of others: key sets of issuers, the cluster's API server, a Redis server.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

use crate::error::TlsError;
use crate::files::{Contents, authorities};
use crate::{VERSIONS, provider};

/// A configuration for servers that are known by the name or address that was dialled, as browsers do it. Their certificates come from the
/// authorities of a PEM file, or from those that the system trusts. It offers no protocol by ALPN, so that HTTP/1.1 is spoken. Make it anew
/// for each connection where the file may change.
///
/// # Errors
/// The file can't be used, or the system trusts nobody.
pub fn web_client(bundle: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = match bundle {
        Some(path) => authorities(path, Contents::read(&[path])?.get(0))?,
        None => system_authorities()?,
    };
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(TlsError::Config)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn system_authorities() -> Result<Arc<RootCertStore>, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Systems carry a few certificates that can't be used; the others do.
    let (num_usable, _) = roots.add_parsable_certificates(found.certs);
    if num_usable == 0 {
        return Err(TlsError::NoSystemAuthorities);
    }
    Ok(Arc::new(roots))
}
