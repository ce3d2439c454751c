//! A model in an image: two containers that run before the engine and bring its files into a volume of the pod.
//!
//! Mounting an image needs Kubernetes 1.35 and containerd 2.1 (or a feature gate); this needs neither. Images of models are mostly
//! built from nothing, without a shell and without `cp`. So the first container, of the engine's image, puts the engine's program
//! and what it is linked to into a volume, and the second, of the model's image, runs it to copy the model.

use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};
use kvasir_operator_api::ImageSource;

use super::{engine_pod, pod};
use crate::observed::{COPIER_CONTAINER, MODEL_CONTAINER};
use crate::revision::Revision;

/// Name of the volume that the engine sees the model in.
pub const MODEL_VOLUME: &str = "model";
/// Name of the volume with the program that copies.
const TOOLS_VOLUME: &str = "copier";
/// Where that program appears: where no image of a model has files.
const TOOLS_PATH: &str = "/.kvasir/copier";
/// Where the model goes, in the containers that copy.
const TARGET_PATH: &str = "/.kvasir/model";
/// Where images hold their model unless they say otherwise, as in KServe's.
const DEFAULT_PATH: &str = "models";

/// The containers that run before the engine, where its model is in an image.
pub fn containers(revision: &Revision) -> Option<Vec<Container>> {
    let source = revision.spec.source.image.as_ref()?;
    Some(vec![copier(revision), model(revision, source)])
}

/// The volume that only these containers see.
pub fn tools(revision: &Revision) -> Option<Volume> {
    let source = revision.spec.source.image.as_ref();
    source.map(|_| pod::scratch(TOOLS_VOLUME))
}

fn copier(revision: &Revision) -> Container {
    let engine = &revision.spec.engine;
    let mut container = pod::container(COPIER_CONTAINER, &revision.image, &engine.resources);
    container.image_pull_policy = Some(engine_pod::pull_policy(engine.image_pull_policy).to_owned());
    container.args = Some(["models", "install-copier", TOOLS_PATH].map(str::to_owned).into());
    container.volume_mounts = Some(vec![pod::mount(TOOLS_VOLUME, TOOLS_PATH, false)]);
    container
}

/// It has as much as the engine: a pod needs the most that one of these containers asks for, so that it costs nothing.
fn model(revision: &Revision, source: &ImageSource) -> Container {
    let mut container = pod::container(
        MODEL_CONTAINER,
        &source.reference,
        &revision.spec.engine.resources,
    );
    container.image_pull_policy = Some(engine_pod::pull_policy(source.pull_policy).to_owned());
    let path = source.path.as_deref().unwrap_or(DEFAULT_PATH);
    let program = format!("{TOOLS_PATH}/kvasir");
    let from = format!("/{path}");
    container.command = Some(vec![
        format!("{TOOLS_PATH}/loader"),
        "--library-path".to_owned(),
        TOOLS_PATH.to_owned(),
        program,
    ]);
    container.args = Some(["models", "copy", &from, TARGET_PATH].map(str::to_owned).into());
    let mounts: [VolumeMount; 2] = [
        pod::mount(TOOLS_VOLUME, TOOLS_PATH, true),
        pod::mount(MODEL_VOLUME, TARGET_PATH, false),
    ];
    container.volume_mounts = Some(mounts.into());
    container
}
