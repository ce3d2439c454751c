//! The ports of an engine: gRPC for gateways, gRPC for the operator, pages for probes and Prometheus.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use kvasir_config::gateway::CertificateName;
use kvasir_config::{AccessConfig, ListenAddress};
use kvasir_edge::EngineMetrics;
use kvasir_service::grpc::{GrpcServer, Listener, Render};
use kvasir_service::pages::{METRICS_TYPE, MakePage, Page, PagePort, StatusCode};
use kvasir_service::{Condition, Engine};
use kvasir_tls::{ClientAuth, Name, NameRule, ServerFiles, ServerTls};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::exit::Failure;

/// Where gRPC for gateways will be served, with the files of its TLS read.
///
/// # Errors
/// If the files can't be used.
pub(super) fn listener(access: &AccessConfig, address: &ListenAddress) -> Result<Listener, Failure> {
    match address {
        ListenAddress::Unix(path) => Ok(Listener::Unix(path.clone())),
        ListenAddress::Tcp(address) => Ok(match tls(access, &access.tls_client_name.value)? {
            None => Listener::Tcp(*address),
            Some(tls) => Listener::Tls {
                address: *address,
                tls,
            },
        }),
    }
}

/// The ports beside it. They answer as soon as they are open, and close when this is dropped.
pub(super) struct Ports {
    admin: Option<GrpcServer>,
    engine: Arc<OnceLock<Running>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// What the pages are about.
struct Running {
    engine: Arc<Engine>,
    metrics: EngineMetrics,
}

impl Ports {
    /// Opens those that the configuration names. Probes are answered from now on.
    ///
    /// # Errors
    /// If an address can't be listened on, or the files of TLS can't be used.
    pub(super) async fn open(access: &AccessConfig) -> Result<Self, Failure> {
        let mut ports = Self {
            admin: None,
            engine: Arc::default(),
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
        };
        for (address, name, page) in [
            (access.health_listen.value, "health", health_page as MakeOne),
            (access.metrics_listen.value, "metrics", metrics_page),
        ] {
            let Some(address) = address else { continue };
            let port = PagePort::bind(address)
                .await
                .map_err(|error| Failure::failed(&error))?;
            if let Ok(address) = port.address() {
                tracing::info!(%address, "{name} port is open");
            }
            let engine = Arc::clone(&ports.engine);
            let make: MakePage = Arc::new(move |path| page(path, engine.get()));
            ports.tasks.spawn(port.serve(make, ports.stop.clone()));
        }
        if let Some(address) = access.admin_listen.value
            && let Some(tls) = tls(access, &access.tls_admin_name.value)?
        {
            let listener = Listener::Tls { address, tls };
            let server = listener.bind().await.map_err(|error| Failure::failed(&error))?;
            tracing::info!(target = server.target(), "admin port is open");
            ports.admin = Some(server);
        }
        Ok(ports)
    }

    /// The engine is there. Figures call its model as clients do, where that is said.
    pub(super) fn serve(mut self, engine: &Arc<Engine>, served_name: Option<&str>) -> ServedPorts {
        let info = engine.model_info();
        let running = Running {
            engine: Arc::clone(engine),
            metrics: EngineMetrics::new(served_name.unwrap_or(&info.model), info),
        };
        // It was empty: only this, which takes the ports, fills it.
        drop(self.engine.set(running));
        if let Some(admin) = self.admin.take() {
            let (engine, state, stop) = (Arc::clone(engine), Arc::clone(&self.engine), self.stop.clone());
            let metrics: Render = Arc::new(move || state.get().map(Running::figures).unwrap_or_default());
            self.tasks.spawn(async move {
                if let Err(error) = admin.serve_admin(&engine, metrics, stop).await {
                    tracing::error!(%error, "the admin port is lost");
                }
            });
        }
        ServedPorts { _tasks: self.tasks }
    }
}

/// Ports that are served until this is dropped.
pub(super) struct ServedPorts {
    _tasks: JoinSet<()>,
}

impl Running {
    fn figures(&self) -> String {
        self.metrics.render(self.engine.load())
    }
}

type MakeOne = fn(&str, Option<&Running>) -> Option<Page>;

fn health_page(path: &str, running: Option<&Running>) -> Option<Page> {
    let condition = running.map(|running| running.engine.condition());
    match (path, condition) {
        ("/health" | "/ready", Some(Condition::Broken(reason))) => {
            Some(Page::line(StatusCode::SERVICE_UNAVAILABLE, reason))
        }
        ("/health", _) => Some(Page::line(StatusCode::OK, "ok")),
        ("/ready", None) => Some(Page::line(
            StatusCode::SERVICE_UNAVAILABLE,
            "the model is being loaded",
        )),
        ("/ready", Some(Condition::Draining)) => {
            Some(Page::line(StatusCode::SERVICE_UNAVAILABLE, "draining"))
        }
        ("/ready", Some(Condition::Ready)) => Some(Page::line(StatusCode::OK, "ready")),
        _ => None,
    }
}

fn metrics_page(path: &str, running: Option<&Running>) -> Option<Page> {
    (path == "/metrics").then(|| match running {
        None => Page::line(StatusCode::SERVICE_UNAVAILABLE, "the model is being loaded"),
        Some(running) => Page {
            status: StatusCode::OK,
            content_type: METRICS_TYPE,
            text: running.figures(),
        },
    })
}

/// TLS that lets in who carries one of these names; `None` where it's off.
fn tls(access: &AccessConfig, names: &[CertificateName]) -> Result<Option<Arc<ServerTls>>, Failure> {
    let Some(files) = access.tls_files()? else {
        return Ok(None);
    };
    let name = |name: &CertificateName| match name {
        CertificateName::Dns(name) => Name::Dns(name.clone()),
        CertificateName::Uri(uri) => Name::Uri(uri.clone()),
    };
    let usage = |error: kvasir_tls::TlsError| Failure::Usage(error.to_string());
    let names = NameRule::any_of(names.iter().map(name)).map_err(usage)?;
    let files = ServerFiles {
        certificate: Path::to_owned(files.certificate),
        key: Path::to_owned(files.key),
        client_auth: ClientAuth::Required {
            authorities: Path::to_owned(files.client_authorities),
            names,
        },
    };
    ServerTls::load(files).map(Arc::new).map(Some).map_err(usage)
}
