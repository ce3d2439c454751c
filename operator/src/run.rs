//! Runs the controller.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use kvasir_operator_core::Settings;
use kvasir_operator_runtime::{Options, RunError, Scope, run};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Options of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Look after the services of this namespace only; without it, of the whole cluster
    #[arg(long, value_name = "NAMESPACE", env = "KVASIR_WATCH_NAMESPACE")]
    watch_namespace: Option<String>,
    /// Namespace of the operator's own pods and of its lease
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "POD_NAMESPACE",
        default_value = "kvasir-system"
    )]
    operator_namespace: String,
    /// Value of the label app.kubernetes.io/name on the operator's own pods, and name of the lease
    #[arg(long, value_name = "NAME", default_value = "kvasir-operator")]
    operator_name: String,
    /// Name of this replica's pod
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAME",
        default_value = "kvasir-operator"
    )]
    pod_name: String,
    /// Engine image of services that name none
    #[arg(long, value_name = "IMAGE", env = "KVASIR_ENGINE_IMAGE", default_value_t = Settings::default().engine_image)]
    engine_image: String,
    /// Gateway image of services that name none
    #[arg(long, value_name = "IMAGE", env = "KVASIR_GATEWAY_IMAGE", default_value_t = Settings::default().gateway_image)]
    gateway_image: String,
    /// Domain of the cluster's names
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// `ClusterRoleBinding` whose subjects are the gateways that may review tokens; without it mode TokenReview is refused
    #[arg(long, value_name = "NAME")]
    token_reviewers: Option<String>,
    /// Ports of the API server, for the policies of gateways that review tokens
    #[arg(long, value_name = "PORTS", value_delimiter = ',', default_value = "443,6443", value_parser = clap::value_parser!(i32).range(1..=65535))]
    api_server_ports: Vec<i32>,
    /// Build groups of more than one rank
    #[arg(long)]
    alpha_topology: bool,
    /// Allow spec.model.source.local
    #[arg(long)]
    allow_local_sources: bool,
    /// How long a new group serves beside old ones before they may go: as long as the cluster's DNS may give old answers, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 35, value_parser = clap::value_parser!(u32).range(0..=600))]
    join_time: u32,
    /// How long an authority is trusted before anything that it signed is shown: as long as kubelets may take to bring a Secret to its pods, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1200, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    trust_time: u32,
    /// Services that are worked on at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Longest time between two looks at a service, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=3600))]
    resync: u32,
    /// How long the lease holds without renewal, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=600))]
    lease_duration: u32,
    /// Longest time for rounds in progress to end at shutdown, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    shutdown_timeout: u32,
    /// Least severe messages to log
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "KVASIR_LOG_LEVEL")]
    log_level: tracing::Level,
    /// Log as JSON
    #[arg(long)]
    json: bool,
}

/// Why the operator stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// There is no thread to run on.
    #[error("can't start: {0}")]
    Start(#[source] std::io::Error),
    /// It can't run or lost its lease.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Error {
    /// 75 if another try will help: another replica has the lease.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Run(RunError::Lease(_)) => 75,
            _ => 1,
        }
    }
}

/// Runs until SIGTERM or SIGINT; a second one ends the process at once.
pub(crate) fn start(arguments: RunArguments) -> Result<(), Error> {
    crate::logging::start(arguments.log_level, arguments.json);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::Start)?;
    let stop = CancellationToken::new();
    let result = runtime.block_on(async {
        listen_for_signals(stop.clone()).map_err(Error::Start)?;
        run(options(arguments), stop).await.map_err(Error::Run)
    });
    // Requests that nobody waits for any more end with the process.
    runtime.shutdown_background();
    result
}

#[expect(
    clippy::disallowed_methods,
    reason = "whoever asks twice wants no orderly end"
)]
fn listen_for_signals(stop: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        for again in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if again {
                tracing::warn!("a second signal: ending at once");
                std::process::exit(1);
            }
            tracing::info!("stopping");
            stop.cancel();
        }
    });
    Ok(())
}

fn options(arguments: RunArguments) -> Options {
    let settings = Settings {
        engine_image: arguments.engine_image,
        gateway_image: arguments.gateway_image,
        operator_namespace: arguments.operator_namespace,
        operator_name: arguments.operator_name.clone(),
        cluster_domain: arguments.cluster_domain,
        token_reviewers: arguments.token_reviewers,
        api_server_ports: arguments.api_server_ports,
        alpha_topology: arguments.alpha_topology,
        allow_local_sources: arguments.allow_local_sources,
        join_time: jiff::SignedDuration::from_secs(arguments.join_time.into()),
        trust_time: jiff::SignedDuration::from_secs(arguments.trust_time.into()),
        resync: jiff::SignedDuration::from_secs(arguments.resync.into()),
        ..Settings::default()
    };
    let duration = Duration::from_secs(arguments.lease_duration.into());
    Options {
        scope: arguments.watch_namespace.map_or(Scope::Cluster, Scope::Namespace),
        settings,
        // No two processes are the same replica, not even two lives of one pod's container.
        identity: format!("{}_{}", arguments.pod_name, uuid::Uuid::new_v4()),
        lease_name: arguments.operator_name,
        lease_duration: duration,
        // A third of the lease is left for what is on its way when renewing fails.
        lease_deadline: duration * 2 / 3,
        lease_retry: (duration / 7).min(Duration::from_secs(2)),
        concurrency: arguments.concurrency,
        // The kubelet tells every pod where the API server is.
        is_pod: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        listen: arguments.listen,
        shutdown_timeout: Duration::from_secs(arguments.shutdown_timeout.into()),
    }
}
