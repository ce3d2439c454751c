//! Test authorities, files in a folder, and connections over real sockets.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(
    clippy::unwrap_used,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvasir_tls::{
    ClientAuth, ClientFiles, ClientTls, Name, NameRule, PeerIdentity, ServerFiles, ServerTls, explain,
    peer_identity,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// An authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Leaf {
    pub certificate: String,
    pub key: String,
}

/// What a leaf is like.
#[derive(Clone)]
pub struct LeafSpec<'a> {
    pub names: &'a [Name],
    /// Days from today.
    pub begins: i64,
    pub ends: i64,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    pub fn issue(&self, spec: &LeafSpec<'_>) -> Leaf {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        for name in spec.names {
            params.subject_alt_names.push(match name {
                Name::Dns(name) => SanType::DnsName(name.as_str().try_into().unwrap()),
                Name::Uri(uri) => SanType::URI(uri.as_str().try_into().unwrap()),
            });
        }
        let today = OffsetDateTime::now_utc();
        params.not_before = today + Duration::days(spec.begins);
        params.not_after = today + Duration::days(spec.ends);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Leaf {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// A leaf that is valid today.
    pub fn valid(&self, names: &[Name]) -> Leaf {
        self.issue(&LeafSpec {
            names,
            begins: -1,
            ends: 1,
        })
    }
}

pub fn dns(name: &str) -> Name {
    Name::Dns(name.to_owned())
}

pub fn uri(uri: &str) -> Name {
    Name::Uri(uri.to_owned())
}

/// The names that a service's engines and its gateway carry.
pub fn engine() -> Name {
    dns("engine.chat.svc")
}

pub fn gateway() -> Name {
    uri("spiffe://kvasir/default/chat/gateway")
}

/// Files of a server and a client.
pub struct Files {
    folder: TempDir,
}

impl Files {
    /// All files good: one authority for both sides.
    pub fn good() -> (Self, Authority) {
        let authority = Authority::new("first");
        let files = Self {
            folder: TempDir::new().unwrap(),
        };
        files.write("server-ca.pem", &authority.pem());
        files.write("client-ca.pem", &authority.pem());
        files.write_leaf("server", &authority.valid(&[engine()]));
        files.write_leaf("client", &authority.valid(&[gateway()]));
        (files, authority)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    pub fn write_leaf(&self, side: &str, leaf: &Leaf) {
        self.write(&format!("{side}.pem"), &leaf.certificate);
        self.write(&format!("{side}.key"), &leaf.key);
    }

    pub fn server_files(&self, client_auth: ClientAuth) -> ServerFiles {
        ServerFiles {
            certificate: self.path("server.pem"),
            key: self.path("server.key"),
            client_auth,
        }
    }

    /// Clients must carry the gateway's name.
    pub fn required(&self) -> ClientAuth {
        ClientAuth::Required {
            authorities: self.path("client-ca.pem"),
            names: NameRule::any_of([gateway()]).unwrap(),
        }
    }

    pub fn server(&self) -> ServerTls {
        ServerTls::load(self.server_files(self.required())).unwrap()
    }

    pub fn client_files(&self) -> ClientFiles {
        ClientFiles {
            authorities: self.path("server-ca.pem"),
            identity: Some((self.path("client.pem"), self.path("client.key"))),
            names: NameRule::any_of([engine()]).unwrap(),
        }
    }

    pub fn client(&self) -> ClientTls {
        ClientTls::load(self.client_files()).unwrap()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Both ends of an open connection.
pub struct Connection {
    pub client: client::TlsStream<TcpStream>,
    pub server: server::TlsStream<TcpStream>,
}

/// What went wrong, by side.
#[derive(Debug)]
pub struct Failure {
    pub client: Option<String>,
    pub server: Option<String>,
}

/// A handshake, and a byte in each direction: a client of TLS 1.3 learns only then that its certificate was refused.
pub async fn connect(server: &ServerTls, client: &ClientTls) -> Result<Connection, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(server.config());
    let connector = TlsConnector::from(client.config());
    let accept = async {
        let (socket, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(socket).await?;
        echo_server(&mut stream).await?;
        Ok::<_, std::io::Error>(stream)
    };
    let dial = async {
        let socket = TcpStream::connect(address).await.unwrap();
        let name = ServerName::IpAddress(address.ip().into());
        let mut stream = connector.connect(name, socket).await?;
        echo_client(&mut stream).await?;
        Ok::<_, std::io::Error>(stream)
    };
    match tokio::join!(accept, dial) {
        (Ok(server), Ok(client)) => Ok(Connection { client, server }),
        (server, client) => Err(Failure {
            client: client.err().map(|error| explain(&error)),
            server: server.err().map(|error| explain(&error)),
        }),
    }
}

/// A connection that must come about.
pub async fn connected(server: &ServerTls, client: &ClientTls) -> Connection {
    connect(server, client).await.unwrap()
}

impl Connection {
    /// Whether bytes still go both ways.
    pub async fn is_alive(&mut self) -> bool {
        let (served, asked) = tokio::join!(echo_server(&mut self.server), echo_client(&mut self.client));
        served.is_ok() && asked.is_ok()
    }

    /// Who the server thinks its client is.
    pub fn client_identity(&self) -> Option<PeerIdentity> {
        peer_identity(self.server.get_ref().1.peer_certificates()).unwrap()
    }

    /// Who the client thinks its server is.
    pub fn server_identity(&self) -> PeerIdentity {
        peer_identity(self.client.get_ref().1.peer_certificates())
            .unwrap()
            .unwrap()
    }
}

async fn echo_server<S: AsyncReadExt + AsyncWriteExt + Unpin>(stream: &mut S) -> std::io::Result<()> {
    let byte = stream.read_u8().await?;
    stream.write_u8(byte).await?;
    stream.flush().await
}

async fn echo_client<S: AsyncReadExt + AsyncWriteExt + Unpin>(stream: &mut S) -> std::io::Result<()> {
    stream.write_u8(42).await?;
    stream.flush().await?;
    let echoed = stream.read_u8().await?;
    assert_eq!(echoed, 42);
    Ok(())
}

/// Sends raw bytes to a server and says whether it took them for a handshake.
pub async fn accepts_garbage(server: &ServerTls, bytes: &[u8]) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(server.config());
    let accept = async {
        let (socket, _) = listener.accept().await.unwrap();
        acceptor.accept(socket).await.is_ok()
    };
    let send = async {
        let mut socket = TcpStream::connect(address).await.unwrap();
        // The server may close before it has read everything.
        socket.write_all(bytes).await.ok();
        socket.shutdown().await.ok();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.ok();
    };
    tokio::join!(accept, send).0
}

/// The protocol that a client with these protocols gets; `None` if there is no connection.
pub async fn negotiated(files: &Files, protocols: &[&str]) -> Option<Option<Vec<u8>>> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(files.server().config());
    let connector = with_alpn(&files.client().config(), protocols);
    let accept = async {
        let (socket, _) = listener.accept().await.unwrap();
        acceptor.accept(socket).await
    };
    let dial = async {
        let socket = TcpStream::connect(address).await.unwrap();
        connector
            .connect(ServerName::IpAddress(address.ip().into()), socket)
            .await
    };
    let (Ok(server), Ok(_)) = tokio::join!(accept, dial) else {
        return None;
    };
    Some(server.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
}

/// The same configuration for other protocols.
fn with_alpn(config: &Arc<rustls::ClientConfig>, protocols: &[&str]) -> TlsConnector {
    let mut config = (**config).clone();
    config.alpn_protocols = protocols
        .iter()
        .map(|protocol| protocol.as_bytes().to_vec())
        .collect();
    TlsConnector::from(Arc::new(config))
}
