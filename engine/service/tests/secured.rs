//! The engine's ports with mutual TLS: who gets in, and what they find there.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use kvasir_client::types::{
    DrainRequest, GenerateRequest, GetLoadRequest, GetModelInfoRequest, SessionRequest,
};
use kvasir_proto::engine::v1::engine_client::EngineClient as Stub;
use kvasir_service::ServiceError;
use kvasir_service::grpc::{GrpcServer, Listener};
use kvasir_tls::{ClientAuth, ClientFiles, ClientTls, Name, NameRule, ServerFiles, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use support::{DEADLINE, Fixture, Kind, Options, prompt, request};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

const ENGINE: &str = "engine.chat.svc";
const GATEWAY: &str = "gateway.chat.svc";
const OPERATOR: &str = "operator.kvasir.svc";

struct Pki {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        let pki = Self { folder, authority };
        for name in [ENGINE, GATEWAY, OPERATOR, "stranger.svc"] {
            pki.issue(name);
        }
        pki
    }

    fn issue(&self, name: &str) {
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec![name.to_owned()])
            .unwrap()
            .signed_by(&key, &self.authority)
            .unwrap();
        std::fs::write(self.path(name, "pem"), leaf.pem()).unwrap();
        std::fs::write(self.path(name, "key"), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str, kind: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.{kind}"))
    }

    fn authorities(&self) -> PathBuf {
        Path::join(self.folder.path(), "ca.pem")
    }

    fn server(&self, client: &str) -> Arc<ServerTls> {
        Arc::new(self.load(ClientAuth::Required {
            authorities: self.authorities(),
            names: NameRule::any_of([Name::Dns(client.to_owned())]).unwrap(),
        }))
    }

    fn load(&self, client_auth: ClientAuth) -> ServerTls {
        ServerTls::load(ServerFiles {
            certificate: self.path(ENGINE, "pem"),
            key: self.path(ENGINE, "key"),
            client_auth,
        })
        .unwrap()
    }

    fn client(&self, name: Option<&str>) -> ClientTls {
        ClientTls::load(ClientFiles {
            authorities: self.authorities(),
            identity: name.map(|name| (self.path(name, "pem"), self.path(name, "key"))),
            names: NameRule::any_of([Name::Dns(ENGINE.to_owned())]).unwrap(),
        })
        .unwrap()
    }
}

async fn bind(tls: Arc<ServerTls>) -> GrpcServer {
    let address = "0.0.0.0:0".parse().unwrap();
    Listener::Tls { address, tls }.bind().await.unwrap()
}

fn port(server: &GrpcServer) -> u16 {
    server.target().rsplit(':').next().unwrap().parse().unwrap()
}

async fn gateway_port(pki: &Pki, fixture: &Fixture) -> (u16, CancellationToken) {
    let server = bind(pki.server(GATEWAY)).await;
    let (port, stop, engine) = (
        port(&server),
        CancellationToken::new(),
        Arc::clone(&fixture.engine),
    );
    let stopped = stop.clone();
    tokio::spawn(async move { server.serve(&engine, stopped).await });
    (port, stop)
}

async fn channel(port: u16, tls: ClientTls) -> Result<Channel, tonic::transport::Error> {
    let config = tls.config();
    Endpoint::from_static("http://engine.invalid")
        .connect_with_connector(tower::service_fn(move |_| {
            let connector = TlsConnector::from(Arc::clone(&config));
            async move {
                let stream = TcpStream::connect(("127.0.0.1", port)).await?;
                let name = "engine.invalid".try_into().map_err(std::io::Error::other)?;
                connector.connect(name, stream).await.map(TokioIo::new)
            }
        }))
        .await
}

/// Whether a call gets an answer. With TLS 1.3 a client learns that it was refused at its first read.
async fn is_served(port: u16, tls: ClientTls) -> bool {
    let call = async {
        let Ok(channel) = channel(port, tls).await else {
            return false;
        };
        Stub::new(channel).get_load(GetLoadRequest {}).await.is_ok()
    };
    tokio::time::timeout(DEADLINE, call).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_gateway_gets_in_from_outside() {
    let (pki, fixture) = (Pki::new(), Fixture::new(Kind::Local).await);
    let (port, _stop) = gateway_port(&pki, &fixture).await;
    assert!(is_served(port, pki.client(Some(GATEWAY))).await);
    assert!(!is_served(port, pki.client(Some(OPERATOR))).await);
    assert!(!is_served(port, pki.client(Some("stranger.svc"))).await);
    assert!(!is_served(port, pki.client(None)).await);
    let foreign = Pki::new();
    assert!(!is_served(port, foreign.client(Some(GATEWAY))).await);
    let plain = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let refused = match plain.connect().await {
        Ok(channel) => Stub::new(channel).get_load(GetLoadRequest {}).await.is_err(),
        Err(_) => true,
    };
    assert!(refused, "plain gRPC was served");
}

#[tokio::test]
async fn tls_without_named_clients_is_no_reason_to_listen() {
    let pki = Pki::new();
    let optional = ClientAuth::Optional {
        authorities: pki.authorities(),
    };
    for open in [ClientAuth::None, optional] {
        let listener = Listener::Tls {
            address: "0.0.0.0:0".parse().unwrap(),
            tls: Arc::new(pki.load(open)),
        };
        assert!(matches!(listener.bind().await, Err(ServiceError::OpenTls(_))));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_never_shake_hands_hold_up_nobody() {
    let (pki, fixture) = (Pki::new(), Fixture::new(Kind::Local).await);
    let (port, _stop) = gateway_port(&pki, &fixture).await;
    let mut silent = Vec::new();
    for place in 0..100 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        if place % 2 == 0 {
            // Garbage that is no record of TLS, and the beginning of one.
            let bytes: &[u8] = if place % 4 == 0 {
                b"GET / HTTP/1.1\r\n\r\n"
            } else {
                &[0x16, 3, 1, 2, 0, 1]
            };
            stream.write_all(bytes).await.unwrap();
        }
        silent.push(stream);
    }
    assert!(is_served(port, pki.client(Some(GATEWAY))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_certificates_are_taken_over_and_open_connections_stay() {
    let (pki, fixture) = (Pki::new(), Fixture::new(Kind::Local).await);
    let tls = pki.server(GATEWAY);
    let server = bind(Arc::clone(&tls)).await;
    let (port, stop, engine) = (
        port(&server),
        CancellationToken::new(),
        Arc::clone(&fixture.engine),
    );
    tokio::spawn(async move { server.serve(&engine, stop).await });
    let mut open = Stub::new(channel(port, pki.client(Some(GATEWAY))).await.unwrap());
    open.get_load(GetLoadRequest {}).await.unwrap();
    let foreign = Pki::new();
    std::fs::write(pki.authorities(), foreign.authority.pem()).unwrap();
    assert!(matches!(tls.poll(), kvasir_tls::Reload::Reloaded));
    assert!(!is_served(port, pki.client(Some(GATEWAY))).await);
    open.get_load(GetLoadRequest {}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_port_drains_and_reports_for_the_operator_and_nothing_else() {
    let (pki, fixture) = (Pki::new(), Fixture::new(Kind::Local).await);
    let server = bind(pki.server(OPERATOR)).await;
    let (port, stop, engine) = (
        port(&server),
        CancellationToken::new(),
        Arc::clone(&fixture.engine),
    );
    tokio::spawn(async move {
        let metrics = Arc::new(|| "figures 1\n".to_owned());
        server.serve_admin(&engine, metrics, stop).await
    });
    assert!(!is_served(port, pki.client(Some(GATEWAY))).await);
    let channel = channel(port, pki.client(Some(OPERATOR))).await.unwrap();
    let mut stub = Stub::new(channel);
    assert!(
        !stub
            .get_load(GetLoadRequest {})
            .await
            .unwrap()
            .into_inner()
            .draining
    );
    assert!(stub.get_model_info(GetModelInfoRequest {}).await.is_ok());
    let session = stub.session(futures::stream::pending::<SessionRequest>()).await;
    assert_eq!(session.unwrap_err().code(), Code::PermissionDenied);
    let dump = stub
        .get_dump(kvasir_client::types::GetDumpRequest::default())
        .await;
    assert_eq!(dump.unwrap_err().code(), Code::PermissionDenied);
    let watch = stub
        .watch_kv_cache(kvasir_client::types::WatchKvCacheRequest::default())
        .await;
    assert_eq!(watch.unwrap_err().code(), Code::PermissionDenied);
    let drained = stub
        .drain(DrainRequest { deadline_ms: 0 })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(drained.remaining, 0);
    assert_eq!(fixture.engine.condition(), kvasir_service::Condition::Draining);
}

#[tokio::test]
async fn an_engine_for_gateways_refuses_requests_without_a_salt() {
    let mut options = Options::default();
    options.limits.require_tenant_salt = true;
    for kind in [Kind::Local, Kind::Unix] {
        let fixture = Fixture::with(kind, options.clone()).await;
        let Err(refused) = fixture.client.generate(request("a", &prompt(4, 0), 1)).await else {
            panic!("it was admitted")
        };
        assert_eq!(refused.param, "tenant_salt", "{refused:?}");
        let salted = GenerateRequest {
            tenant_salt: vec![7; 32].into(),
            ..request("a", &prompt(4, 0), 1)
        };
        assert!(fixture.client.generate(salted).await.is_ok());
    }
}

#[tokio::test]
async fn a_unix_socket_takes_the_authority_that_grpcs_c_core_sends() {
    let fixture = Fixture::new(Kind::Unix).await;
    let path = fixture
        .server
        .as_ref()
        .unwrap()
        .target
        .strip_prefix("unix:")
        .unwrap()
        .to_owned();
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = (payload.len() as u32).to_be_bytes();
        [
            &[length[1], length[2], length[3], kind, flags, 0, 0, 0, stream][..],
            payload,
        ]
        .concat()
    };
    let literal = |name: &str, value: &str| {
        [
            &[0x40, name.len() as u8][..],
            name.as_bytes(),
            &[value.len() as u8],
            value.as_bytes(),
        ]
        .concat()
    };
    let block = [
        literal(":path", "/kvasir.engine.v1.Engine/GetLoad"),
        literal(":authority", "tmp%2Fengine.sock"),
        vec![0x83, 0x86],
        literal("content-type", "application/grpc"),
        literal("te", "trailers"),
    ];
    let bytes = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &block.concat()),
        frame(0, 1, 1, &[0; 5]),
    ];
    stream.write_all(&bytes.concat()).await.unwrap();
    let read_answer = async {
        loop {
            let mut header = [0; 9];
            stream.read_exact(&mut header).await.unwrap();
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let mut payload = vec![0; length];
            stream.read_exact(&mut payload).await.unwrap();
            match header[3] {
                // Headers: `:status: 200` is entry 8 of the static table.
                1 => return payload[0] == 0x88,
                3 | 7 => return false,
                _ => {}
            }
        }
    };
    assert!(tokio::time::timeout(DEADLINE, read_answer).await.unwrap());
}

#[tokio::test]
async fn pages_are_served_to_one_request_per_connection() {
    use http::StatusCode;
    use kvasir_service::pages::{Page, PagePort};

    let port = PagePort::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (address, stop) = (port.address().unwrap(), CancellationToken::new());
    let make: kvasir_service::pages::MakePage =
        Arc::new(|path| (path == "/health").then(|| Page::line(StatusCode::OK, "ok")));
    let server = tokio::spawn(port.serve(make, stop.clone()));
    let ask = |text: &'static str| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(DEADLINE, read).await.unwrap().unwrap();
        answer
    };
    let found = ask("GET /health?x=1 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(
        found.starts_with("HTTP/1.1 200") && found.ends_with("ok\n"),
        "{found}"
    );
    assert!(
        ask("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 404")
    );
    assert!(
        ask("POST /health HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 405")
    );
    assert!(!ask("nonsense\r\n\r\n").await.contains("200"));
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(10), server)
        .await
        .unwrap()
        .unwrap();
}
