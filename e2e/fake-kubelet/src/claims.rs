//! Volumes for claims: each claim gets one at once.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::{Controller, watcher};
use kube::{Client, Error};
use serde_json::json;
use std::sync::Arc;

/// Serves claims and takes volumes back, for ever.
pub(crate) async fn bind(client: Client) {
    let context = Arc::new(client.clone());
    let claims = Controller::new(
        Api::<PersistentVolumeClaim>::all(client.clone()),
        watcher::Config::default(),
    )
    .run(serve, again, context.clone())
    .for_each(|_| async {});
    let volumes = Controller::new(Api::<PersistentVolume>::all(client), watcher::Config::default())
        .run(take_back, again, context)
        .for_each(|_| async {});
    futures::join!(claims, volumes);
}

async fn serve(claim: Arc<PersistentVolumeClaim>, client: Arc<Client>) -> Result<Action, Error> {
    let pending = claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound");
    let (Some(uid), Some(spec), true) = (&claim.metadata.uid, &claim.spec, pending) else {
        return Ok(Action::await_change());
    };
    if claim.metadata.deletion_timestamp.is_some() || spec.volume_name.is_some() {
        return Ok(Action::await_change());
    }
    let name = format!("fake-{uid}");
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"fake-kubelet.kvasir.dev/volume": "true"}},
        "spec": {
            "capacity": spec.resources.as_ref().and_then(|r| r.requests.clone()),
            "accessModes": spec.access_modes,
            "storageClassName": spec.storage_class_name.clone().unwrap_or_default(),
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": format!("/tmp/{name}")},
            "claimRef": {"namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": uid},
        },
    });
    let volumes: Api<PersistentVolume> = Api::all((*client).clone());
    let parameters = PatchParams::apply("fake-kubelet").force();
    volumes.patch(&name, &parameters, &Patch::Apply(&volume)).await?;
    Ok(Action::await_change())
}

async fn take_back(volume: Arc<PersistentVolume>, client: Arc<Client>) -> Result<Action, Error> {
    let released = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released");
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    if released && name.starts_with("fake-") && volume.metadata.deletion_timestamp.is_none() {
        let volumes: Api<PersistentVolume> = Api::all((*client).clone());
        volumes.delete(name, &DeleteParams::default()).await?;
    }
    Ok(Action::await_change())
}

fn again<K>(_: Arc<K>, error: &Error, _: Arc<Client>) -> Action {
    tracing::warn!("volumes: {error}");
    Action::requeue(Duration::from_secs(1))
}
