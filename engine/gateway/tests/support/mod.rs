//! A server that answers by a script and remembers what it was asked.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(
    clippy::unwrap_used,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

pub const DEADLINE: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(of, _)| of.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// What the server says.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
    /// Whether the connection ends before the body is whole.
    pub is_cut_off: bool,
    /// Whether nothing is said at all.
    pub is_stuck: bool,
}

impl Reply {
    pub fn json(body: &str) -> Self {
        Self {
            status: 200,
            headers: Vec::new(),
            body: body.to_owned(),
            is_cut_off: false,
            is_stuck: false,
        }
    }

    pub fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::json("")
        }
    }

    pub fn cut_off() -> Self {
        Self {
            is_cut_off: true,
            ..Self::json("{\"keys\": [")
        }
    }

    pub fn stuck() -> Self {
        Self {
            is_stuck: true,
            ..Self::json("")
        }
    }
}

type Script = dyn Fn(usize, &Asked) -> Reply + Send + Sync;

pub struct Scripted {
    address: SocketAddr,
    scheme: &'static str,
    asked: Arc<Mutex<Vec<Asked>>>,
    _task: AbortOnDropHandle<()>,
}

impl Scripted {
    /// The script is given the number of the request, from 1, and the request.
    pub async fn start(script: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::run(Arc::new(script), None).await
    }

    /// With TLS; also gives the PEM of the authority of its certificate.
    pub async fn start_tls(
        script: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static,
    ) -> (Self, String) {
        let (pem, issuer) = authority();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let folder = TempDir::new().unwrap();
        let (certificate, key_file) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
        std::fs::write(&certificate, leaf.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        let tls = kvasir_tls::ServerTls::load(kvasir_tls::ServerFiles {
            certificate,
            key: key_file,
            client_auth: kvasir_tls::ClientAuth::None,
        });
        let acceptor = TlsAcceptor::from(tls.unwrap().config());
        (Self::run(Arc::new(script), Some(acceptor)).await, pem)
    }

    async fn run(script: Arc<Script>, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let asked = Arc::new(Mutex::new(Vec::new()));
        let remembered = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (script, asked, tls) = (Arc::clone(&script), Arc::clone(&remembered), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => answer(stream, &*script, &asked).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                answer(stream, &*script, &asked).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            address,
            scheme,
            asked,
            _task: AbortOnDropHandle::new(task),
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    pub fn requests(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub fn num_requests(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

/// An authority, and its PEM.
pub fn authority() -> (String, CertifiedIssuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    (issuer.pem(), issuer)
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, script: &Script, asked: &Mutex<Vec<Asked>>) {
    let Some(request) = read_request(&mut stream).await else {
        return;
    };
    let number = {
        let mut asked = asked.lock().unwrap();
        asked.push(request.clone());
        asked.len()
    };
    let reply = script(number, &request);
    if reply.is_stuck {
        std::future::pending::<()>().await;
    }
    let length = reply.body.len() + usize::from(reply.is_cut_off);
    let mut text = format!(
        "HTTP/1.1 {} Said\r\ncontent-length: {length}\r\nconnection: close\r\n",
        reply.status
    );
    for (name, value) in &reply.headers {
        for part in [name, ": ", value.as_str(), "\r\n"] {
            text.push_str(part);
        }
    }
    text.push_str("\r\n");
    text.push_str(&reply.body);
    // Whoever hung up has seen enough.
    if stream.write_all(text.as_bytes()).await.is_ok() {
        stream.shutdown().await.ok();
    }
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Asked> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        stream
            .read_buf(&mut bytes)
            .await
            .ok()
            .filter(|num_read| *num_read > 0)?;
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut asked = Asked {
        method,
        path,
        headers,
        body: bytes[head_end + 4..].to_vec(),
    };
    let length = asked
        .header("content-length")
        .map_or(0, |length| length.parse().unwrap());
    while asked.body.len() < length {
        stream
            .read_buf(&mut asked.body)
            .await
            .ok()
            .filter(|num_read| *num_read > 0)?;
    }
    Some(asked)
}
