//! TLS between a client's connection and its first request.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use http::Extensions;
use kvasir_edge::{ConnectionIo, Handshake};
use kvasir_gateway_core::auth::{CertificateFacts, San};
use kvasir_gateway_core::time::UnixSeconds;
use kvasir_tls::{Name, PeerIdentity, ServerTls, explain, peer_identity};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// Takes TLS connections, and tells who their clients are as far as certificates say.
pub(crate) struct Secure(pub(crate) Arc<ServerTls>);

#[async_trait]
impl Handshake for Secure {
    async fn shake(&self, stream: TcpStream, facts: &mut Extensions) -> io::Result<Box<dyn ConnectionIo>> {
        let acceptor = TlsAcceptor::from(self.0.config());
        let stream = acceptor
            .accept(stream)
            .await
            .map_err(|error| io::Error::new(error.kind(), explain(&error)))?;
        let (_, session) = stream.get_ref();
        let identity = peer_identity(session.peer_certificates()).map_err(io::Error::other)?;
        if let Some(identity) = identity {
            facts.insert(certificate(identity));
        }
        Ok(Box::new(stream))
    }
}

fn certificate(identity: PeerIdentity) -> CertificateFacts {
    let name = |name: Name| match name {
        Name::Dns(name) => San::Dns(name.to_ascii_lowercase()),
        Name::Uri(uri) => San::Uri(uri),
    };
    CertificateFacts {
        names: identity.names.into_iter().map(name).collect(),
        not_after: UnixSeconds(identity.not_after),
    }
}
