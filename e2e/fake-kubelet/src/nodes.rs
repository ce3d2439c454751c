//! Nodes that are registered and answer.

use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Error};
use serde_json::json;

/// Label of the nodes that this program plays.
pub(crate) const LABEL: &str = "fake-kubelet.kvasir.dev/node";
/// Annotation of a node that has fallen silent.
pub(crate) const LOST: &str = "fake-kubelet.kvasir.dev/lost";

const MANAGER: &str = "fake-kubelet";
/// Kubernetes' controller gives a node 20 s in our control plane.
const HEARTBEAT: Duration = Duration::from_secs(4);

/// The nodes.
pub(crate) struct Fleet {
    client: Client,
    count: u32,
    pods_per_node: u32,
}

/// Name of a node.
fn name(index: u32) -> String {
    format!("fake-{index}")
}

/// Address of a node, by its name.
pub(crate) fn address(name: &str) -> Ipv4Addr {
    let index: u32 = name
        .rsplit_once('-')
        .and_then(|(_, n)| n.parse().ok())
        .unwrap_or(0);
    Ipv4Addr::from_bits(Ipv4Addr::new(198, 19, 255, 0).to_bits() + index % 254 + 1)
}

/// Whether nothing is heard of the node.
pub(crate) fn is_lost(node: &Node) -> bool {
    node.metadata
        .annotations
        .iter()
        .flatten()
        .any(|(key, _)| key == LOST)
}

impl Fleet {
    /// That many nodes, each with room for that many pods.
    pub(crate) fn new(client: Client, count: u32, pods_per_node: u32) -> Self {
        Self {
            client,
            count,
            pods_per_node,
        }
    }

    /// Makes the nodes, ready.
    pub(crate) async fn register(&self) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let parameters = PatchParams::apply(MANAGER).force();
        for index in 0..self.count {
            let name = name(index);
            let node = json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {
                        LABEL: "true",
                        "kubernetes.io/hostname": name,
                        "kubernetes.io/os": "linux",
                        "kubernetes.io/arch": "amd64",
                        "topology.kubernetes.io/zone": format!("zone-{}", index % 3),
                    },
                },
            });
            nodes.patch(&name, &parameters, &Patch::Apply(&node)).await?;
            self.renew(&name).await?;
            self.answer(&name).await?;
        }
        Ok(())
    }

    /// Answers for every node that isn't lost, for ever.
    pub(crate) async fn keep_alive(&self) {
        let mut beats = tokio::time::interval(HEARTBEAT);
        loop {
            beats.tick().await;
            if let Err(error) = self.beat().await {
                tracing::warn!("no heartbeat: {error}");
            }
        }
    }

    async fn beat(&self) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        for node in nodes.list(&ListParams::default().labels(LABEL)).await? {
            let name = node.metadata.name.clone().unwrap_or_default();
            if is_lost(&node) {
                continue;
            }
            self.renew(&name).await?;
            if !is_ready(&node) {
                self.answer(&name).await?;
            }
        }
        Ok(())
    }

    async fn renew(&self, name: &str) -> Result<(), Error> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro(Timestamp::now())},
        });
        let parameters = PatchParams::apply(MANAGER).force();
        leases.patch(name, &parameters, &Patch::Apply(&lease)).await?;
        Ok(())
    }

    /// Says that a node is well.
    async fn answer(&self, name: &str) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let now = Timestamp::from_second(Timestamp::now().as_second())
            .unwrap_or_default()
            .to_string();
        let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "played", "lastHeartbeatTime": now, "lastTransitionTime": now});
        let room = json!({"cpu": "100k", "memory": "1000Ti", "ephemeral-storage": "1000Ti", "pods": self.pods_per_node.to_string()});
        let status = json!({
            "status": {
                "capacity": room,
                "allocatable": room,
                "conditions": [
                    condition("Ready", "True", "KubeletReady"),
                    condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                    condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                    condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                ],
                "addresses": [{"type": "InternalIP", "address": address(name).to_string()}, {"type": "Hostname", "address": name}],
                "nodeInfo": {
                    "machineID": name, "systemUUID": name, "bootID": name, "kernelVersion": "6.1.0", "osImage": "fake",
                    "containerRuntimeVersion": "fake://1", "kubeletVersion": "v1.34.4", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
                },
            },
        });
        nodes
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        Ok(())
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|c| c.type_ == "Ready" && c.status == "True")
}

/// A point in time with the six decimals that leases have.
fn micro(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_times_have_six_decimals() {
        assert_eq!(
            micro(Timestamp::new(1, 5_000).unwrap()),
            "1970-01-01T00:00:01.000005Z"
        );
    }

    #[test]
    fn nodes_have_addresses_of_their_own() {
        assert_eq!(address("fake-0").to_string(), "198.19.255.1");
        assert_eq!(address("fake-12").to_string(), "198.19.255.13");
    }
}
