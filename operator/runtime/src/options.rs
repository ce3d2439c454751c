//! What the operator is told when it starts.

use std::net::SocketAddr;
use std::time::Duration;

use kvasir_operator_core::Settings;

/// Which services the operator looks after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of the cluster.
    Cluster,
    /// Those of one namespace. Nothing outside of it is read, so nodes aren't either.
    Namespace(String),
}

/// Options of `kvasir-operator run`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which services.
    pub scope: Scope,
    /// What decisions depend on.
    pub settings: Settings,
    /// Who this replica is among others: its pod's name.
    pub identity: String,
    /// Name of the Lease.
    pub lease_name: String,
    /// How long a lease holds without renewal.
    pub lease_duration: Duration,
    /// How long renewing may fail before the lease counts as lost.
    pub lease_deadline: Duration,
    /// Pause between renewals.
    pub lease_retry: Duration,
    /// Services that are worked on at the same time.
    pub concurrency: u16,
    /// Whether this process is a pod of the cluster, so that what it reaches says something about the cluster's policies.
    pub is_pod: bool,
    /// Where health and metrics are served.
    pub listen: SocketAddr,
    /// Longest time for rounds in progress to end at shutdown.
    pub shutdown_timeout: Duration,
}
