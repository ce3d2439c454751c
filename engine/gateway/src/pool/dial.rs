//! The way to an engine: mutual TLS, or plain TCP on loopback.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kvasir_client::{ConnectError, Dial, Dialled, GrpcClient, GrpcClientOptions};
use kvasir_tls::{ClientTls, explain};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Patience;

/// Connects to an engine.
pub(super) async fn connect(
    patience: Patience,
    tls: Option<&Arc<ClientTls>>,
    address: SocketAddr,
) -> Result<GrpcClient, String> {
    let name = address.to_string();
    let options = GrpcClientOptions {
        max_live_requests: 65_536,
        ..GrpcClientOptions::default()
    };
    let way = Way {
        address,
        tls: tls.cloned(),
        timeout: patience.connection,
    };
    let connecting = GrpcClient::connect_through(&name, Arc::new(way), options);
    // Beside the connection itself an engine must answer twice.
    match tokio::time::timeout(patience.connection * 3, connecting).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(error @ (ConnectError::Unreachable { .. } | ConnectError::Target(_)))) => {
            Err(error.to_string())
        }
        Err(_) => Err(format!(
            "{name} didn't answer within {:?}",
            patience.connection * 3
        )),
    }
}

struct Way {
    address: SocketAddr,
    tls: Option<Arc<ClientTls>>,
    timeout: Duration,
}

#[async_trait]
impl Dial for Way {
    async fn dial(&self) -> io::Result<Box<dyn Dialled>> {
        let opened = tokio::time::timeout(self.timeout, self.open()).await;
        opened.unwrap_or_else(|_| {
            let message = format!("no connection within {:?}", self.timeout);
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

impl Way {
    async fn open(&self) -> io::Result<Box<dyn Dialled>> {
        if self.tls.is_none() && !self.address.ip().is_loopback() {
            let message = format!("{} isn't on loopback, and there is no TLS to it", self.address);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        // The address is only dialled; who is there is decided by the names in the certificate.
        let server = ServerName::IpAddress(self.address.ip().into());
        let connector = TlsConnector::from(tls.config());
        match connector.connect(server, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(io::Error::new(error.kind(), explain(&error))),
        }
    }
}
