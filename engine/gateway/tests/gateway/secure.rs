//! A gateway with TLS to its clients and mutual TLS to its engines, and clients of every kind.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use kvasir_edge::Shutdown;
use kvasir_gateway::Gateway;
use kvasir_service::Engine;
use kvasir_service::grpc::Listener;
use kvasir_tls::{ClientAuth, ClientFiles, ClientTls, Name, NameRule, ServerFiles, ServerTls};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::executor::Control;
use crate::scripted::authority;
use crate::support::*;

pub(crate) const ENGINE: &str = "engine.chat.svc";
pub(crate) const GATEWAY: &str = "gateway.chat.svc";
pub(crate) const OPERATOR: &str = "operator.kvasir.svc";
/// What clients call the gateway.
const PUBLIC: &str = "chat.example";

/// Certificates of one authority, by their names.
pub(crate) struct Pki {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let (pem, authority) = authority();
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("ca.pem"), pem).unwrap();
        let pki = Self { folder, authority };
        for name in [ENGINE, GATEWAY, OPERATOR, PUBLIC] {
            pki.issue(name, name);
        }
        pki
    }

    /// A certificate of that name in the files of another, or of its own.
    pub(crate) fn issue(&self, name: &str, files: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let leaf = params.signed_by(&key, &self.authority).unwrap();
        std::fs::write(self.path(files, "key"), key.serialize_pem()).unwrap();
        std::fs::write(self.path(files, "pem"), leaf.pem()).unwrap();
    }

    pub(crate) fn path(&self, name: &str, kind: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.{kind}"))
    }

    pub(crate) fn authorities(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A client of the gateway, with a certificate or without one.
    pub(crate) fn client(&self, name: Option<&str>) -> SecureClient {
        let tls = ClientTls::load(ClientFiles {
            authorities: self.authorities(),
            identity: name.map(|name| (self.path(name, "pem"), self.path(name, "key"))),
            names: NameRule::any_of([Name::Dns(PUBLIC.to_owned())]).unwrap(),
        });
        let mut config = ClientConfig::clone(&tls.unwrap().config());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        SecureClient(Arc::new(config))
    }
}

/// An engine whose port is for gateways alone.
pub(crate) struct SecureEngine {
    pub(crate) address: SocketAddr,
    pub(crate) control: Arc<Control>,
    stop: CancellationToken,
}

impl SecureEngine {
    pub(crate) async fn start(pki: &Pki) -> Self {
        Self::start_as(pki, ENGINE, &EngineOptions::default()).await
    }

    /// With the certificate of that name.
    pub(crate) async fn start_as(pki: &Pki, name: &str, options: &EngineOptions) -> Self {
        let control = Arc::new(Control::default());
        let engine = Engine::start(setup(&control, options)).unwrap();
        let tls = ServerTls::load(ServerFiles {
            certificate: pki.path(name, "pem"),
            key: pki.path(name, "key"),
            client_auth: ClientAuth::Required {
                authorities: pki.authorities(),
                names: NameRule::any_of([Name::Dns(GATEWAY.to_owned())]).unwrap(),
            },
        });
        let listener = Listener::Tls {
            address: "127.0.0.1:0".parse().unwrap(),
            tls: Arc::new(tls.unwrap()),
        };
        let server = listener.bind().await.unwrap();
        let port = server.target().rsplit(':').next().unwrap().parse().unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move { server.serve(&engine, stopped).await.unwrap() });
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            control,
            stop,
        }
    }
}

impl SecureEngine {
    /// Lets it make a step every few milliseconds from now on, until the task is dropped.
    pub(crate) fn pace(&self) -> AbortOnDropHandle<()> {
        pace(&self.control)
    }
}

impl Drop for SecureEngine {
    fn drop(&mut self) {
        // Steps that are held would keep the engine's threads.
        self.control.open();
        self.stop.cancel();
    }
}

/// How the gateway meets its engines.
pub(crate) struct Meeting<'a> {
    /// Whose certificate it shows.
    pub(crate) shown: &'a str,
    /// Whom it expects.
    pub(crate) expected: &'a str,
}

pub(crate) const RIGHT: Meeting<'static> = Meeting {
    shown: GATEWAY,
    expected: ENGINE,
};

pub(crate) struct SecureGateway {
    address: SocketAddr,
    operations: String,
    folder: TempDir,
    _task: AbortOnDropHandle<Shutdown>,
}

impl SecureGateway {
    /// `more` is YAML that says who may come, and the tenants.
    pub(crate) async fn start(pki: &Pki, engine: SocketAddr, meeting: &Meeting<'_>, more: &str) -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("salt"), [7; 32]).unwrap();
        let path = |name: &str, kind: &str| pki.path(name, kind).display().to_string();
        let authorities = pki.authorities().display().to_string();
        let here = folder.path().display();
        let text = format!(
            "listen: 127.0.0.1:0\noperationsListen: 127.0.0.2:0\nauditFile: {here}/audit\n\
             cacheSalt: {{secretFile: {here}/salt}}\n\
             tls: {{certificate: {}, key: {}, clientAuthorities: {authorities}}}\n\
             engines: {{static: [{{address: \"{engine}\"}}], tls: {{authorities: {authorities}, certificate: {}, key: {}, \
             names: [\"dns:{}\"]}}}}\n{more}\n",
            path(PUBLIC, "pem"),
            path(PUBLIC, "key"),
            path(meeting.shown, "pem"),
            path(meeting.shown, "key"),
            meeting.expected,
        );
        let file = folder.path().join("gateway.yaml");
        std::fs::write(&file, text).unwrap();
        let running = Gateway::start(&file).await.unwrap();
        let (address, operations) = (running.address(), running.operations_address());
        let serving = tokio::spawn(async move { running.serve(CancellationToken::new()).await.unwrap() });
        Self {
            address,
            operations: format!("http://{operations}/metrics"),
            folder,
            _task: AbortOnDropHandle::new(serving),
        }
    }

    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let answer = Client::new().get(&self.operations).send().await.unwrap();
        let text = answer.text().await.unwrap();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    pub(crate) async fn with_engine(self) -> Self {
        let usable = "kvasir_gateway_engines{state=\"usable\"}";
        eventually("a usable engine", async || self.metric(usable).await == 1.0).await;
        self
    }

    pub(crate) fn folder(&self) -> &TempDir {
        &self.folder
    }

    /// An answer's status and body; `Err` if there is no connection or no answer.
    pub(crate) async fn ask(
        &self,
        client: &SecureClient,
        request: Request<Full<Bytes>>,
    ) -> Result<(u16, String), String> {
        let (response, _) = self.begin(client, request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// An answer whose body hasn't been read, and the certificate that the gateway showed.
    pub(crate) async fn begin(
        &self,
        client: &SecureClient,
        request: Request<Full<Bytes>>,
    ) -> Result<(http::Response<hyper::body::Incoming>, Vec<u8>), String> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = TlsConnector::from(Arc::clone(&client.0));
        let stream = connector.connect(PUBLIC.try_into().unwrap(), stream).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await;
        Ok((response.map_err(|error| error.to_string())?, certificate))
    }
}

pub(crate) struct SecureClient(Arc<ClientConfig>);
