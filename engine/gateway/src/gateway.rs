//! A running gateway: what it's made of, and how it starts, serves and ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use kvasir_config::gateway::{GatewayConfig, ServerTlsConfig};
use kvasir_edge::{Edge, EdgeConfig, EdgeError, Figures, Listener, Shutdown, Spans, SpansError};
use kvasir_tls::{ClientAuth, ServerFiles, ServerTls, TlsError};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::door::{Audit, DoorHost};
use crate::fleet::Fleet;
use crate::metrics::GatewayMetrics;
use crate::outside::{Outside, OutsideError};
use crate::probes::Probes;
use crate::reload::{ConfigFile, LoadError, Reloader};
use crate::secure::Secure;

/// How long a gateway that is a pod goes on after it was told to stop.
const LEAVE_SECONDS: u64 = 10;

/// How long settlements may take to reach the store at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A gateway that listens and hasn't answered anything yet.
pub struct Gateway {
    edge: Edge,
    probes: Edge,
    listener: Listener,
    probe_listener: TcpListener,
    address: SocketAddr,
    probe_address: SocketAddr,
    is_secure: bool,
    is_draining: Arc<AtomicBool>,
    /// How long everything goes on after the end was asked for.
    leave: Duration,
    host: Arc<DoorHost>,
    reloader: Reloader,
    spans: Option<Spans>,
}

/// The audit log of a running gateway.
#[derive(Clone, Debug)]
pub struct AuditLog(Audit);

impl AuditLog {
    /// Lines from now on go to a new file at the configured path; standard output stays what it is.
    pub fn reopen(&self) {
        self.0.reopen();
    }
}

/// Why a gateway can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration can't be used.
    #[error(transparent)]
    Config(LoadError),
    /// Certificates or keys can't be used.
    #[error(transparent)]
    Tls(TlsError),
    /// An address can't be listened on.
    #[error("can't listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A service that the gateway asks can't be used as configured.
    #[error(transparent)]
    Outside(OutsideError),
    /// Spans can't be sent.
    #[error(transparent)]
    Spans(SpansError),
    /// The audit log can't be written.
    #[error("can't write the audit log to {path}: {source}")]
    Audit {
        /// The file, or standard output.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

impl Gateway {
    /// Reads a configuration and listens. Call it within a runtime.
    ///
    /// # Errors
    /// The configuration can't be used, or an address is taken.
    pub async fn start(file: &Path) -> Result<Self, StartError> {
        let loaded = ConfigFile::read(file).map_err(StartError::Config)?;
        let config = &loaded.config;
        let server_tls = config.tls.as_ref().map(server_tls).transpose();
        let server_tls = server_tls.map_err(StartError::Tls)?;
        let (listener, address) = bind(config.listen).await?;
        let (probe_listener, probe_address) = bind(config.operations_listen).await?;
        let audit = open_audit(config)?;
        let mut outside = Outside::open(config).map_err(StartError::Outside)?;
        let spans = open_spans(config)?;
        let text = EdgeConfig {
            spans: spans.clone(),
            ..edge_config(config)
        };
        let fleet = Fleet::start(config, text, &mut outside)?;
        let host = Self::behind(&loaded, &fleet, &outside, audit);
        let leave = leave_time(&loaded.config);
        let is_draining = Arc::new(AtomicBool::new(false));
        let probes = Probes {
            door: Arc::clone(&host),
            is_draining: Arc::clone(&is_draining),
            figures: Figures::of_requests(1),
        };
        let is_secure = server_tls.is_some();
        let listener = match &server_tls {
            None => Listener::Tcp(listener),
            Some(tls) => Listener::Guarded(listener, Arc::new(Secure(Arc::clone(tls)))),
        };
        let edge = Edge::over(
            edge_config(config),
            Arc::clone(&host) as Arc<dyn kvasir_edge::Host>,
        );
        let reloader = Reloader {
            started: loaded.config.clone(),
            file: loaded,
            live: Arc::clone(&host.live),
            fleet,
            accounts: host.accounts.clone(),
            metrics: Arc::clone(&host.metrics),
            outside,
            server_tls,
            refused: BTreeMap::new(),
        };
        Ok(Self {
            edge,
            probes: Edge::over(EdgeConfig::default(), Arc::new(probes)),
            listener,
            probe_listener,
            address,
            probe_address,
            is_secure,
            is_draining,
            leave,
            host,
            reloader,
            spans,
        })
    }

    /// The door and what is behind it.
    fn behind(loaded: &ConfigFile, fleet: &Fleet, outside: &Outside, audit: Audit) -> Arc<DoorHost> {
        let live = loaded.live(outside, fleet.pools(&loaded.config));
        Arc::new(DoorHost {
            live: Arc::new(ArcSwap::from_pointee(live)),
            accounts: outside.accounts.clone(),
            figures: fleet.figures(),
            metrics: Arc::new(GatewayMetrics::new()),
            audit,
            review_trouble: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where probes and metrics are.
    pub fn operations_address(&self) -> SocketAddr {
        self.probe_address
    }

    /// What clients put before a route's path.
    pub fn url(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Opens the audit log's file anew whenever it's asked to, for whoever rotates logs.
    pub fn audit_log(&self) -> AuditLog {
        AuditLog(self.host.audit.clone())
    }

    /// Serves until `stop`; then readiness fails. When whoever sends requests here has had time to hear of it, new requests are refused, and
    /// running answers may end within the configured time.
    ///
    /// # Errors
    /// A listening socket fails.
    pub async fn serve(self, stop: CancellationToken) -> Result<Shutdown, EdgeError> {
        let Self {
            edge,
            probes,
            listener,
            probe_listener,
            is_draining,
            leave,
            host,
            reloader,
            spans,
            ..
        } = self;
        let ended = CancellationToken::new();
        let mut probing = tokio::spawn(probes.serve(probe_listener, ended.clone()));
        let reloading = AbortOnDropHandle::new(tokio::spawn(reloader.run()));
        let left = CancellationToken::new();
        let serving = edge.clone().serve(listener, left.clone());
        let draining = async {
            stop.cancelled().await;
            is_draining.store(true, Ordering::Release);
            edge.leave();
            tokio::time::sleep(leave).await;
            left.cancel();
            std::future::pending::<()>().await;
        };
        let result = tokio::select! {
            result = serving => result,
            () = draining => Ok(Shutdown::Clean),
            failed = &mut probing => match failed {
                Ok(result) => result,
                Err(error) => Err(EdgeError::LoadTask(error)),
            },
        };
        drop(reloading);
        host.accounts.flush(FLUSH_TIMEOUT).await;
        let audit = host.audit.clone();
        match tokio::task::spawn_blocking(move || audit.flush(FLUSH_TIMEOUT)).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::error!("the end of the audit log could not be written within {FLUSH_TIMEOUT:?}");
            }
            Err(error) => tracing::error!(%error, "the audit log could not be flushed"),
        }
        if let Some(spans) = spans {
            let closed = tokio::task::spawn_blocking(move || spans.close()).await;
            if let Err(error) = closed {
                tracing::error!(%error, "the last spans could not be sent");
            }
        }
        ended.cancel();
        probing.abort();
        result
    }
}

/// A pod is taken off a Service when it's told to stop, and every node's proxy hears of it a little later.
fn leave_time(config: &GatewayConfig) -> Duration {
    let is_pod = || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let seconds = config.leave_seconds;
    Duration::from_secs(seconds.map_or_else(|| if is_pod() { LEAVE_SECONDS } else { 0 }, Into::into))
}

/// What of the configuration the HTTP server reads.
fn edge_config(config: &GatewayConfig) -> EdgeConfig {
    EdgeConfig {
        shutdown_timeout: Duration::from_secs(config.shutdown_timeout_seconds.into()),
        max_body_bytes: config.max_body_bytes as usize,
        max_bodies_bytes: (config.max_body_bytes as usize).max(EdgeConfig::default().max_bodies_bytes),
        request_timeout: config
            .request_timeout_seconds
            .map(|seconds| Duration::from_secs(seconds.get().into())),
        enable_request_id_headers: true,
        enable_prompt_tokens_details: true,
        ..EdgeConfig::default()
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let listener = TcpListener::bind(address).await;
    let bound = listener.and_then(|listener| listener.local_addr().map(|bound| (listener, bound)));
    bound.map_err(|source| StartError::Bind { address, source })
}

/// Where spans go, if anywhere.
fn open_spans(config: &GatewayConfig) -> Result<Option<Spans>, StartError> {
    let open = config
        .tracing
        .as_ref()
        .map(|tracing| Spans::open(&tracing.endpoint, tracing.sample_percent));
    open.transpose().map_err(StartError::Spans)
}

fn open_audit(config: &GatewayConfig) -> Result<Audit, StartError> {
    let path: Option<&PathBuf> = config.audit_file.as_ref();
    Audit::open(path.map(PathBuf::as_path)).map_err(|source| StartError::Audit {
        path: path.map_or("standard output".to_owned(), |path| path.display().to_string()),
        source,
    })
}

fn server_tls(config: &ServerTlsConfig) -> Result<Arc<ServerTls>, TlsError> {
    let client_auth = match &config.client_authorities {
        None => ClientAuth::None,
        Some(authorities) => ClientAuth::Optional {
            authorities: authorities.clone(),
        },
    };
    ServerTls::load(ServerFiles {
        certificate: config.certificate.clone(),
        key: config.key.clone(),
        client_auth,
    })
    .map(Arc::new)
}
