//! The side that opens connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::error::TlsError;
use crate::files::{Contents, authorities, certified_key};
use crate::identity::not_after;
use crate::names::NameRule;
use crate::reload::{ReadFiles, Reloadable, Source};
use crate::{VERSIONS, alpn, provider};

/// A client's configuration that follows its files.
pub type ClientTls = Reloadable<ClientFiles>;

/// What a client's TLS is made from. Servers are known by the names in their certificates and not by the address that was dialled, because
/// engines are dialled by the addresses of their pods.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// PEM file of the authorities that servers' certificates come from; during a rotation the old one and the new one.
    pub authorities: PathBuf,
    /// PEM files of our certificate (with the authorities between it and the root) and its key; `None` where servers ask for none.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The names of which a server must carry one.
    pub names: NameRule,
}

impl Source for ClientFiles {
    type Config = ClientConfig;

    fn read(&self) -> Result<ReadFiles, TlsError> {
        let mut paths = vec![self.authorities.as_path()];
        if let Some((certificate, key)) = &self.identity {
            paths.extend([certificate.as_path(), key.as_path()]);
        }
        Contents::read(&paths).map(ReadFiles)
    }

    fn make(&self, files: &ReadFiles) -> Result<(ClientConfig, Option<i64>), TlsError> {
        let identity = self.identity.as_ref().map(|(certificate, key)| {
            let certificate = (certificate.as_path(), files.0.get(1));
            (certificate, (key.as_path(), files.0.get(2)))
        });
        let authorities = (self.authorities.as_path(), files.0.get(0));
        configuration(authorities, identity, self.names.clone())
    }
}

/// A client's configuration from PEM in memory, for certificates that never lie in files. `origin` stands for a path in errors.
///
/// # Errors
/// The PEM can't be used.
pub fn client_from_memory(
    authorities: &str,
    identity: Option<(&str, &str)>,
    names: NameRule,
    origin: &Path,
) -> Result<ClientConfig, TlsError> {
    let identity =
        identity.map(|(certificate, key)| ((origin, certificate.as_bytes()), (origin, key.as_bytes())));
    configuration((origin, authorities.as_bytes()), identity, names).map(|(config, _)| config)
}

type Pem<'a> = (&'a Path, &'a [u8]);

/// The configuration and when our own certificate ends.
fn configuration(
    (path, bundle): Pem<'_>,
    identity: Option<(Pem<'_>, Pem<'_>)>,
    names: NameRule,
) -> Result<(ClientConfig, Option<i64>), TlsError> {
    let verifier = NamedServer {
        roots: authorities(path, bundle)?,
        names,
        provider: provider(),
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(TlsError::Config)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let (mut config, not_after) = match identity {
        None => (builder.with_no_client_auth(), None),
        Some((certificate, key)) => {
            let identity = certified_key(certificate, key)?;
            let not_after = identity.cert.first().and_then(not_after);
            let resolver = Arc::new(SingleCertAndKey::from(identity));
            (builder.with_client_cert_resolver(resolver), not_after)
        }
    };
    config.alpn_protocols = alpn();
    Ok((config, not_after))
}

/// Accepts servers whose chain is good and who carry an expected name.
#[derive(Debug)]
struct NamedServer {
    roots: Arc<RootCertStore>,
    names: NameRule,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NamedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        self.names.verify(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
