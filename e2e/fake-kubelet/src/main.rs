//! Plays nodes and pods on a control plane that has no nodes.
//!
//! The real scheduler binds pods to the nodes that this program registers; it then writes what a kubelet would: addresses,
//! running and ready containers, restarts with their exit codes and last words, images that can't be pulled. What goes wrong
//! is written down in ConfigMaps ([`rules`]); a node with the annotation `fake-kubelet.kvasir.dev/lost` falls silent. Claims
//! get volumes. Nothing runs.

mod address;
mod claims;
mod nodes;
mod play;
mod pods;
mod references;
mod rules;
mod status;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Plays nodes and pods on a Kubernetes control plane that has no nodes
#[derive(Debug, Parser)]
#[command(name = "kvasir-fake-kubelet", version)]
struct Arguments {
    /// How to reach the API server, as an administrator
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Number of nodes
    #[arg(long, default_value_t = 3)]
    nodes: u32,
    /// Pods that fit on a node
    #[arg(long, default_value_t = 2000)]
    pods_per_node: u32,
    /// First address for pods; each takes the next one that is free
    #[arg(long, default_value = "198.18.0.0")]
    pod_addresses: Ipv4Addr,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("can't use the kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("can't make a client: {0}")]
    Client(#[source] kube::Error),
    #[error("can't register nodes: {0}")]
    Register(#[source] kube::Error),
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match Box::pin(run(Arguments::parse())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Error> {
    let options = KubeConfigOptions::default();
    let kubeconfig = Kubeconfig::read_from(&arguments.kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    let client = Client::try_from(config).map_err(Error::Client)?;
    let fleet = nodes::Fleet::new(client.clone(), arguments.nodes, arguments.pods_per_node);
    fleet.register().await.map_err(Error::Register)?;
    tracing::info!("{} nodes registered", arguments.nodes);
    tokio::select! {
        () = fleet.keep_alive() => {}
        () = pods::play(client.clone(), arguments.pod_addresses) => {}
        () = claims::bind(client) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}
