//! A hub in this process: HTTP/1.1 on a loopback port, one thread per connection, every answer made by the test.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use sha2::{Digest, Sha256};

/// The commit that `main` stands for.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request, as far as tests look at it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// First byte of the `Range` header.
    pub(crate) range: Option<usize>,
    pub(crate) authorization: Option<String>,
}

impl Request {
    pub(crate) fn is_get(&self, file: &str) -> bool {
        self.method == "GET" && self.path.contains("/resolve/") && self.path.ends_with(file)
    }
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Close the connection after this many bytes of the body.
    pub(crate) cut_after: Option<usize>,
    /// Send as many bytes, then wait for the gate before the rest.
    pub(crate) hold: Option<(usize, Gate)>,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &(impl ToString + ?Sized)) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut_after = Some(bytes);
        self
    }
}

/// Closed until somebody opens it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }
}

/// A running server. Its threads end with the test process.
pub(crate) struct Stub {
    pub(crate) endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Stub {
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                // A client that goes away in the middle is what some tests are about.
                thread::spawn(move || serve(&stream.unwrap(), &log, &*answer).ok());
            }
        });
        Self { endpoint, requests }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// First bytes of the requests for a file's content, in order.
    pub(crate) fn ranges(&self, file: &str) -> Vec<Option<usize>> {
        self.requests()
            .iter()
            .filter(|request| request.is_get(file))
            .map(|request| request.range)
            .collect()
    }
}

fn serve(
    mut stream: &TcpStream,
    log: &Mutex<Vec<Request>>,
    answer: &dyn Fn(&Request) -> Reply,
) -> std::io::Result<()> {
    let request = read_request(stream)?;
    log.lock().unwrap().push(request.clone());
    let reply = answer(&request);
    write!(stream, "HTTP/1.1 {} Stub\r\nConnection: close\r\n", reply.status)?;
    let states_length = reply
        .headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    if !states_length {
        write!(stream, "Content-Length: {}\r\n", reply.body.len())?;
    }
    for (name, value) in &reply.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "\r\n")?;
    if request.method == "HEAD" {
        return Ok(());
    }
    let body = &reply.body[..reply.cut_after.unwrap_or(reply.body.len()).min(reply.body.len())];
    let (first, rest) = body.split_at(reply.hold.as_ref().map_or(body.len(), |(bytes, _)| *bytes));
    stream.write_all(first)?;
    if let Some((_, gate)) = &reply.hold {
        gate.wait();
    }
    stream.write_all(rest)
}

fn read_request(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().ok_or(std::io::ErrorKind::UnexpectedEof)??;
    let mut words = first.split(' ');
    let mut request = Request {
        method: words.next().unwrap_or_default().to_owned(),
        path: words.next().unwrap_or_default().to_owned(),
        range: None,
        authorization: None,
    };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else {
            return Ok(request);
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let start = value.trim_start_matches("bytes=").trim_end_matches('-');
                request.range = Some(start.parse().unwrap());
            }
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    Ok(request)
}

/// The files of the repository `o/n`.
#[derive(Clone)]
pub(crate) struct Repo(pub(crate) Vec<(&'static str, Vec<u8>)>);

impl Repo {
    /// What a hub answers that keeps large files itself.
    pub(crate) fn answer(&self, request: &Request) -> Reply {
        if request.path.starts_with("/api/models/o/n/revision/") {
            let files = self
                .0
                .iter()
                .map(|(name, _)| format!(r#"{{"rfilename":"{name}"}}"#));
            let files = files.collect::<Vec<_>>().join(",");
            let body = format!(r#"{{"sha":"{COMMIT}","siblings":[{files}],"gated":false}}"#).into_bytes();
            return Reply {
                status: 200,
                body,
                ..Reply::default()
            };
        }
        let Some(file) = request.path.strip_prefix(&format!("/o/n/resolve/{COMMIT}/")) else {
            return Reply::status(404).with("X-Error-Code", "RepoNotFound");
        };
        match self.0.iter().find(|(name, _)| *name == file) {
            Some((name, bytes)) => file_reply(name, bytes, request.range),
            None => Reply::status(404).with("X-Error-Code", "EntryNotFound"),
        }
    }
}

/// A file's content from a byte on, with the head that the hub gives it.
pub(crate) fn file_reply(name: &str, bytes: &[u8], range: Option<usize>) -> Reply {
    let reply = match range {
        None => Reply {
            status: 200,
            body: bytes.to_vec(),
            ..Reply::default()
        },
        Some(start) if start >= bytes.len() => return Reply::status(416),
        Some(start) => Reply {
            status: 206,
            body: bytes[start..].to_vec(),
            ..Reply::default()
        }
        .with(
            "Content-Range",
            &format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len()),
        ),
    };
    let etag = etag(name, bytes);
    let reply = reply
        .with("ETag", &format!("\"{etag}\""))
        .with("X-Repo-Commit", COMMIT);
    if etag.len() == 64 {
        return reply
            .with("X-Linked-Etag", &format!("\"{etag}\""))
            .with("X-Linked-Size", &bytes.len());
    }
    reply
}

/// The SHA-256 of large files; something as long as a git object's name for the others.
pub(crate) fn etag(name: &str, bytes: &[u8]) -> String {
    let digest = kvasir_weights::Digest::new(Sha256::digest(bytes).into()).to_string();
    let is_large = name.ends_with("gguf") || name.ends_with("safetensors");
    if is_large { digest } else { digest[..40].to_owned() }
}

/// Bytes without a period that a transfer could fall into.
pub(crate) fn content(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}
