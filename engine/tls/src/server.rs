//! The side that accepts connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme};

use crate::error::TlsError;
use crate::files::{Contents, authorities, certified_key};
use crate::identity::not_after;
use crate::names::NameRule;
use crate::reload::{ReadFiles, Reloadable, Source};
use crate::{VERSIONS, alpn, provider};

/// A server's configuration that follows its files.
pub type ServerTls = Reloadable<ServerFiles>;

/// What a server's TLS is made from.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// PEM file of the certificate and the authorities between it and the root, in this order.
    pub certificate: PathBuf,
    /// PEM file of its key.
    pub key: PathBuf,
    /// What is asked of clients.
    pub client_auth: ClientAuth,
}

/// What is asked of clients.
#[derive(Clone, Debug)]
pub enum ClientAuth {
    /// Nothing.
    None,
    /// A client may present a certificate; a bad one ends the connection.
    Optional {
        /// PEM file of the authorities that clients' certificates come from; during a rotation the old one and the new one.
        authorities: PathBuf,
    },
    /// A client must present a certificate that carries an expected name.
    Required {
        /// As for optional ones.
        authorities: PathBuf,
        /// The names.
        names: NameRule,
    },
}

impl ClientAuth {
    fn authorities(&self) -> Option<&Path> {
        match self {
            Self::None => None,
            Self::Optional { authorities } | Self::Required { authorities, .. } => Some(authorities),
        }
    }
}

impl ServerTls {
    /// Whether every client must present a certificate with an expected name.
    pub fn requires_named_clients(&self) -> bool {
        matches!(self.source().client_auth, ClientAuth::Required { .. })
    }
}

impl Source for ServerFiles {
    type Config = ServerConfig;

    fn read(&self) -> Result<ReadFiles, TlsError> {
        let mut paths = vec![self.certificate.as_path(), self.key.as_path()];
        paths.extend(self.client_auth.authorities());
        Contents::read(&paths).map(ReadFiles)
    }

    fn make(&self, files: &ReadFiles) -> Result<(ServerConfig, Option<i64>), TlsError> {
        let identity = certified_key((&self.certificate, files.0.get(0)), (&self.key, files.0.get(1)))?;
        let not_after = identity.cert.first().and_then(not_after);
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(TlsError::Config)?;
        let builder = match self.verifier(files.0.get(2))? {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        config.alpn_protocols = alpn();
        Ok((config, not_after))
    }
}

impl ServerFiles {
    fn verifier(&self, bundle: &[u8]) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        let Some(path) = self.client_auth.authorities() else {
            return Ok(None);
        };
        let builder = WebPkiClientVerifier::builder_with_provider(authorities(path, bundle)?, provider());
        let builder = match self.client_auth {
            ClientAuth::Optional { .. } => builder.allow_unauthenticated(),
            ClientAuth::None | ClientAuth::Required { .. } => builder,
        };
        let chain = builder.build().map_err(|error| TlsError::Authorities {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Some(match &self.client_auth {
            ClientAuth::Required { names, .. } => Arc::new(NamedClient {
                chain,
                names: names.clone(),
            }),
            ClientAuth::None | ClientAuth::Optional { .. } => chain,
        }))
    }
}

/// Accepts clients whose chain is good and who carry an expected name.
#[derive(Debug)]
struct NamedClient {
    chain: Arc<dyn ClientCertVerifier>,
    names: NameRule,
}

impl ClientCertVerifier for NamedClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        self.names.verify(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
