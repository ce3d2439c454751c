//! The gateways that may ask the API server who a token belongs to.
//!
//! That right exists only for a whole cluster, and an object of the cluster can't be owned by one of a namespace: a binding per service would
//! stay behind. So there is one binding, which the chart makes, and its subjects are always the gateways of the services that need it. The
//! operator may change this binding and no other, and a binding's role can't be changed.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Subject};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::Store;
use kvasir_operator_api::InferenceService;
use kvasir_operator_core::build::rights;
use serde_json::json;
use tokio::time::Instant;

use crate::watch::{MANAGER, chain};

/// Pause between two looks at the services.
const PAUSE: Duration = Duration::from_secs(2);
/// Pause after a failure, and between two looks at the binding itself: somebody may have changed it.
const AGAIN: Duration = Duration::from_mins(1);

/// Keeps the subjects of the binding called `name` until it is dropped. `services` must know all services from the start.
pub(crate) async fn keep(services: Store<InferenceService>, client: Client, name: String) {
    let api: Api<ClusterRoleBinding> = Api::all(client);
    let mut known: Option<Vec<Subject>> = None;
    let mut look_at = Instant::now();
    loop {
        tokio::time::sleep(PAUSE).await;
        let services = services.state();
        let wanted = rights::token_reviewers(services.iter().map(AsRef::as_ref));
        if known.as_ref() == Some(&wanted) && Instant::now() < look_at {
            continue;
        }
        match ensure(&api, &name, &wanted).await {
            Ok(()) => known = Some(wanted),
            Err(error) => {
                tracing::warn!(binding = %name, error = %chain(&error), "gateways can't be given the right to review tokens");
                tokio::time::sleep(AGAIN).await;
            }
        }
        look_at = Instant::now() + AGAIN;
    }
}

/// Writes only what differs.
async fn ensure(api: &Api<ClusterRoleBinding>, name: &str, wanted: &[Subject]) -> Result<(), kube::Error> {
    let live = api.get(name).await?;
    if live.subjects.unwrap_or_default() == wanted {
        return Ok(());
    }
    let patch = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        // Not one that was made anew under this name meanwhile: it may bind another role.
        "metadata": { "name": name, "uid": live.metadata.uid },
        "roleRef": live.role_ref,
        "subjects": wanted,
    });
    let params = PatchParams::apply(MANAGER).force();
    api.patch(name, &params, &Patch::Apply(&patch)).await.map(drop)
}
