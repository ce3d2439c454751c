//! One question to one engine, on its admin port.
//!
//! Over mutual TLS where the service has certificates: the engine must carry the service's engine name, and the operator
//! presents its own. The address that is dialled is the pod's.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use kvasir_operator_core::observed::GroupLoad;
use kvasir_operator_core::outcomes::Outcomes;
use kvasir_proto::engine::MODEL_BYTES;
use kvasir_proto::engine::v1::engine_client::EngineClient;
use kvasir_proto::engine::v1::{DrainRequest, GetLoadRequest, GetModelInfoRequest, LoadReport, ModelInfo};
use kvasir_tls::{Name, NameRule, client_from_memory};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::certificates::OwnIdentity;

/// Longest time for one question, connecting included.
const ANSWER: Duration = Duration::from_secs(2);

/// An engine gave no answer. That is an observation: it may be starting, gone, or of a service without certificates.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// Certificates can't be used.
    #[error("the certificates can't be used: {0}")]
    Tls(#[from] kvasir_tls::TlsError),
    /// No connection.
    #[error("can't connect to {address}: {source}")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: tonic::transport::Error,
    },
    /// It refused.
    #[error("{address} answered: {}", status.message())]
    Refused {
        /// Who.
        address: SocketAddr,
        /// What it said.
        status: Box<tonic::Status>,
    },
    /// It takes too long.
    #[error("{address} didn't answer within {} s", ANSWER.as_secs())]
    Silent {
        /// Who.
        address: SocketAddr,
    },
}

/// How a service's engines are reached.
#[derive(Clone)]
pub(crate) struct Link {
    tls: Option<Arc<ClientConfig>>,
}

impl Link {
    /// Without TLS, for services that have none.
    pub(crate) fn plain() -> Self {
        Self { tls: None }
    }

    /// With what the operator presents, to engines that are called `engine`.
    pub(crate) fn secured(own: &OwnIdentity, engine: String) -> Result<Self, LinkError> {
        let names = NameRule::any_of([Name::Uri(engine)])?;
        let identity = Some((own.made.certificate.as_str(), own.made.key.as_str()));
        let config = client_from_memory(&own.trust, identity, names, Path::new("memory"))?;
        Ok(Self {
            tls: Some(Arc::new(config)),
        })
    }

    /// Load of the engine at `address`.
    pub(crate) async fn load(&self, address: SocketAddr) -> Result<Answer, LinkError> {
        let ask = async {
            let mut client = EngineClient::new(self.connect(address).await?);
            let load = client.get_load(GetLoadRequest {}).await;
            let load = load.map_err(|status| refused(address, status))?;
            let info = client.get_model_info(GetModelInfoRequest {}).await;
            let info = info.map_err(|status| refused(address, status))?;
            Ok((load.into_inner(), info.into_inner()))
        };
        let (load, info) = timed(address, ask).await?;
        Ok(summary(&load, &info))
    }

    /// Tells the engine at `address` to take no new requests.
    pub(crate) async fn drain(&self, address: SocketAddr) -> Result<(), LinkError> {
        let ask = async {
            let mut client = EngineClient::new(self.connect(address).await?);
            let answer = client.drain(DrainRequest { deadline_ms: 0 }).await;
            answer.map(drop).map_err(|status| refused(address, status))
        };
        timed(address, ask).await
    }

    async fn connect(&self, address: SocketAddr) -> Result<Channel, LinkError> {
        let tls = self.tls.clone();
        let connector = tower::service_fn(move |_| {
            let tls = tls.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok::<_, std::io::Error>(TokioIo::new(match tls {
                    None => Stream::Plain(stream),
                    Some(config) => {
                        let name = ServerName::IpAddress(address.ip().into());
                        let secured = TlsConnector::from(config).connect(name, stream).await?;
                        Stream::Secured(Box::new(secured))
                    }
                }))
            }
        });
        Endpoint::from_static("http://engine.invalid")
            .connect_with_connector(connector)
            .await
            .map_err(|source| LinkError::Connect { address, source })
    }
}

fn refused(address: SocketAddr, status: tonic::Status) -> LinkError {
    LinkError::Refused {
        address,
        status: Box::new(status),
    }
}

async fn timed<T>(
    address: SocketAddr,
    ask: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    match tokio::time::timeout(ANSWER, ask).await {
        Ok(answer) => answer,
        Err(_) => Err(LinkError::Silent { address }),
    }
}

/// What an engine says about its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Its load, without how requests ended lately: an engine counts from its start on.
    pub(crate) load: GroupLoad,
    /// How requests ended since it started.
    pub(crate) counted: Outcomes,
}

/// What decisions read of an engine's answers.
fn summary(report: &LoadReport, info: &ModelInfo) -> Answer {
    let model_bytes = info.details.get(MODEL_BYTES).and_then(|bytes| bytes.parse().ok());
    Answer {
        load: GroupLoad {
            running: report.num_running,
            waiting: report.num_waiting,
            kv_usage_permille: (report.kv_cache_usage.clamp(0.0, 1.0) * 1000.0).round() as u16,
            model_bytes: model_bytes.unwrap_or_default(),
            recent: Outcomes::default(),
        },
        counted: Outcomes {
            finished: report.num_finished_seqs,
            failed: report.num_failed_seqs.min(report.num_finished_seqs),
        },
    }
}

/// A connection with or without TLS.
enum Stream {
    Plain(TcpStream),
    Secured(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

mod transport {
    //! Reading and writing go to whichever connection it is.

    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::Stream;

    impl AsyncRead for Stream {
        fn poll_read(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
                Self::Secured(stream) => Pin::new(stream).poll_read(context, buffer),
            }
        }
    }

    impl AsyncWrite for Stream {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
                Self::Secured(stream) => Pin::new(stream).poll_write(context, bytes),
            }
        }

        fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_flush(context),
                Self::Secured(stream) => Pin::new(stream).poll_flush(context),
            }
        }

        fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
                Self::Secured(stream) => Pin::new(stream).poll_shutdown(context),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_rounded_to_permille_and_kept_in_range() {
        let usage = |kv_cache_usage| {
            let report = LoadReport {
                kv_cache_usage,
                ..LoadReport::default()
            };
            summary(&report, &ModelInfo::default()).load.kv_usage_permille
        };
        assert_eq!(usage(0.1234), 123);
        assert_eq!(usage(7.0), 1000);
        assert_eq!(usage(-1.0), 0);
        assert_eq!(usage(f64::NAN), 0);
    }

    #[test]
    fn an_engine_that_does_not_say_how_large_its_model_is_has_said_nothing() {
        let said = |bytes: Option<&str>| {
            let details = bytes.map(|bytes| (MODEL_BYTES.to_owned(), bytes.to_owned()));
            let info = ModelInfo {
                details: details.into_iter().collect(),
                ..ModelInfo::default()
            };
            summary(&LoadReport::default(), &info).load.model_bytes
        };
        assert_eq!(said(Some("98765")), 98765);
        assert_eq!(said(Some("much")), 0);
        assert_eq!(said(None), 0);
    }

    #[tokio::test]
    async fn an_engine_that_is_not_there_is_an_answer_too() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = Link::plain().load(address).await.unwrap_err();
        assert!(matches!(error, LinkError::Connect { .. }), "{error}");
    }
}
