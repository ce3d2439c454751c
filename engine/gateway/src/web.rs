//! A small HTTP/1.1 client for the few servers that a gateway asks: a connection for each request, limits on time and size, no redirects.

use std::path::PathBuf;
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kvasir_tls::{TlsError, explain, web_client};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Longest time until a connection is usable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server, and how it is known.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    authority: Authority,
    /// Whose certificates are believed; `None` for plain HTTP.
    tls: Option<Trust>,
}

#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Authorities of a PEM file, read for each connection.
    File(PathBuf),
    /// The system's.
    System,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL has no host, or another scheme.
    #[error("{url:?} is no http or https URL with a host")]
    Url {
        /// The URL.
        url: String,
    },
    /// There is no connection.
    #[error("{authority} can't be reached: {reason}")]
    Connect {
        /// Host and port.
        authority: String,
        /// Why.
        reason: String,
    },
    /// The authorities can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The connection broke, or what came is no HTTP.
    #[error("{authority} didn't answer properly: {source}")]
    Protocol {
        /// Host and port.
        authority: String,
        /// Why.
        source: hyper::Error,
    },
    /// The request can't be made.
    #[error("the request can't be made: {0}")]
    Request(#[source] http::Error),
    /// The answer says something else than success. A redirect is one of these.
    #[error("{authority} answered {status}")]
    Status {
        /// Host and port.
        authority: String,
        /// What it said.
        status: StatusCode,
    },
    /// The answer is too long.
    #[error("{authority} answered with more than {limit} bytes")]
    TooLong {
        /// Host and port.
        authority: String,
        /// The limit.
        limit: usize,
    },
    /// It took too long.
    #[error("{authority} gave no answer within {} s", after.as_secs())]
    TimedOut {
        /// Host and port.
        authority: String,
        /// How long it was waited for.
        after: Duration,
    },
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Origin {
    /// The server of a URL.
    pub(crate) fn of(uri: &Uri, authorities: Option<PathBuf>) -> Result<Self, HttpError> {
        let refused = || HttpError::Url { url: uri.to_string() };
        let authority = uri.authority().ok_or_else(refused)?.clone();
        let trust = authorities.map_or(Trust::System, Trust::File);
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => Some(trust),
            Some(scheme) if *scheme == Scheme::HTTP => None,
            _ => return Err(refused()),
        };
        // A name and password in a URL would be sent to nobody.
        if authority.as_str().contains('@') {
            return Err(refused());
        }
        Ok(Self { authority, tls })
    }

    pub(crate) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// Sends a request and reads its whole answer, which must be a success.
    pub(crate) async fn ask(
        &self,
        request: Request<Full<Bytes>>,
        limit: usize,
        at_most: Duration,
    ) -> Result<Bytes, HttpError> {
        let answer = async {
            let body = self.open(request).await?;
            let authority = || self.authority.to_string();
            match Limited::new(body, limit).collect().await {
                Ok(collected) => Ok(collected.to_bytes()),
                Err(error) if error.is::<LengthLimitError>() => Err(HttpError::TooLong {
                    authority: authority(),
                    limit,
                }),
                Err(error) => Err(HttpError::Connect {
                    authority: authority(),
                    reason: error.to_string(),
                }),
            }
        };
        match tokio::time::timeout(at_most, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(HttpError::TimedOut {
                authority: self.authority.to_string(),
                after: at_most,
            }),
        }
    }

    /// Sends a request and gives the body of its answer, which must be a success. The connection ends with the body.
    pub(crate) async fn open(&self, mut request: Request<Full<Bytes>>) -> Result<Incoming, HttpError> {
        let host = self.authority.as_str().parse().map_err(|_| HttpError::Url {
            url: self.authority.to_string(),
        })?;
        request.headers_mut().insert(http::header::HOST, host);
        let response = match tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(stream) => self.send(stream?, request).await?,
            Err(_) => {
                return Err(HttpError::TimedOut {
                    authority: self.authority.to_string(),
                    after: CONNECT_TIMEOUT,
                });
            }
        };
        match response.status() {
            status if status.is_success() => Ok(response.into_body()),
            status => Err(HttpError::Status {
                authority: self.authority.to_string(),
                status,
            }),
        }
    }

    async fn send(
        &self,
        stream: Box<dyn Stream>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, HttpError> {
        let protocol = |source| HttpError::Protocol {
            authority: self.authority.to_string(),
            source,
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(protocol)?;
        // It ends when the answer has been read or dropped.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
        sender.send_request(request).await.map_err(protocol)
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, HttpError> {
        let failed = |error: std::io::Error| HttpError::Connect {
            authority: self.authority.to_string(),
            reason: explain(&error),
        };
        let host = self
            .authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let default_port = if self.tls.is_some() { 443 } else { 80 };
        let port = self.authority.port_u16().unwrap_or(default_port);
        let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
        let Some(trust) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let config = match trust {
            Trust::File(path) => web_client(Some(path))?,
            Trust::System => web_client(None)?,
        };
        let name = host
            .to_owned()
            .try_into()
            .map_err(|error| failed(std::io::Error::other(error)))?;
        let stream = TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(failed)?;
        Ok(Box::new(stream))
    }
}
