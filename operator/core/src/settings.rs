//! What the operator itself was told: the same for all services.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use crate::certificates::TRUST_FIRST;
use crate::child::Kind;

/// The operator's configuration as far as decisions depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Version of this operator, for the status.
    pub version: String,
    /// Engine image of services that name none.
    pub engine_image: String,
    /// Gateway image of services that name none.
    pub gateway_image: String,
    /// Namespace of the operator's own pods: their policies' peers.
    pub operator_namespace: String,
    /// Value of `app.kubernetes.io/name` on the operator's own pods.
    pub operator_name: String,
    /// Domain of the cluster's names.
    pub cluster_domain: String,
    /// The binding of the chart that says which gateways may review tokens; without it none may.
    pub token_reviewers: Option<String>,
    /// Ports of the API server, as pods reach it: that of its Service and that of its endpoints.
    pub api_server_ports: Vec<i32>,
    /// Builds groups of more than one rank. Alpha.
    pub alpha_topology: bool,
    /// Allows `model.source.local`.
    pub allow_local_sources: bool,
    /// Kinds beyond Kubernetes' own that the cluster knows.
    pub known_kinds: BTreeSet<Kind>,
    /// How long an id rests after its group is gone. Longer than any cache of names or connections of the old group.
    pub id_rest: SignedDuration,
    /// How long a group that lost a rank may take to form again by itself before all its pods are replaced.
    pub reform_timeout: SignedDuration,
    /// How long a node may not answer before its groups are replaced.
    pub node_lost_after: SignedDuration,
    /// How long a group that reports no number of running requests stays after the gateway was told to leave it. Its pods
    /// then end by themselves: they drain on SIGTERM.
    pub drain_settle: SignedDuration,
    /// How long a group that became ready serves beside others before one of them may go for it. Gateways hear of it by name: whatever caches
    /// the cluster's names may give old answers that long.
    pub join_time: SignedDuration,
    /// How long Secrets take to reach every pod that mounts them: an authority is trusted that long before anything that it signed is shown.
    pub trust_time: SignedDuration,
    /// Longest time between two looks at a service.
    pub resync: SignedDuration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            engine_image: concat!("kvasir:", env!("CARGO_PKG_VERSION")).to_owned(),
            gateway_image: concat!("kvasir:", env!("CARGO_PKG_VERSION")).to_owned(),
            operator_namespace: "kvasir-system".to_owned(),
            operator_name: "kvasir-operator".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            token_reviewers: None,
            api_server_ports: vec![443, 6443],
            alpha_topology: false,
            allow_local_sources: false,
            known_kinds: BTreeSet::new(),
            id_rest: SignedDuration::from_mins(10),
            reform_timeout: SignedDuration::from_mins(2),
            node_lost_after: SignedDuration::from_mins(1),
            drain_settle: SignedDuration::from_secs(10),
            // kubeadm lets the cluster's DNS cache answers for 30 s; gateways ask every 2 s.
            join_time: SignedDuration::from_secs(35),
            trust_time: TRUST_FIRST,
            resync: SignedDuration::from_mins(5),
        }
    }
}
