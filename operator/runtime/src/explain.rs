//! Reads what an explanation needs. Reads nothing but the service, its pods, and their nodes where that is allowed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, ListParams};
use kvasir_operator_api::names::Names;
use kvasir_operator_api::{InferenceService, labels};
use kvasir_operator_core::explain::explain as put_into_words;
use kvasir_operator_core::observed::{NodeView, PodView};

use crate::watch::chain;

/// Nothing can be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// No cluster is known.
    #[error("no cluster is known: set KUBECONFIG: {}", chain(.0))]
    Client(#[source] kube::Error),
    /// There is no such service.
    #[error("there is no InferenceService {namespace}/{name}")]
    NoService {
        /// Where it was looked for.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Something can't be read.
    #[error("can't read {what}: {}", chain(source))]
    Read {
        /// What.
        what: &'static str,
        /// Why.
        source: kube::Error,
    },
}

/// Why a service is as it is, from its pods up to Ready.
///
/// # Errors
/// The cluster can't be asked, or there is no such service.
pub async fn explain(namespace: &str, name: &str) -> Result<String, ExplainError> {
    let client = Client::try_default().await.map_err(ExplainError::Client)?;
    let services: Api<InferenceService> = Api::namespaced(client.clone(), namespace);
    let found = services.get_opt(name).await;
    let found = found.map_err(|source| ExplainError::Read {
        what: "the service",
        source,
    })?;
    let service = found.ok_or_else(|| ExplainError::NoService {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })?;
    let selector = format!("{}={}", labels::SERVICE, Names::new(name).service());
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let listed = pods.list(&ListParams::default().labels(&selector)).await;
    let listed = listed.map_err(|source| ExplainError::Read {
        what: "its pods",
        source,
    })?;
    let pods: Vec<PodView> = listed.items.iter().map(PodView::new).collect();
    let nodes = nodes(client, &pods).await;
    Ok(put_into_words(&service, &pods, &nodes, Timestamp::now()))
}

/// Nodes are beyond what many people may read; then nothing is said about them.
async fn nodes(client: Client, pods: &[PodView]) -> BTreeMap<String, NodeView> {
    let api: Api<Node> = Api::all(client);
    let mut nodes = BTreeMap::new();
    for name in pods.iter().filter_map(|pod| pod.node.as_ref()) {
        if !nodes.contains_key(name)
            && let Ok(Some(node)) = api.get_opt(name).await
        {
            nodes.insert(name.clone(), NodeView::new(&node));
        }
    }
    nodes
}
