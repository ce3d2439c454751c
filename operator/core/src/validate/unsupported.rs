//! Fields that this version knows and can't honour yet.

use kvasir_operator_api::{AcceleratorType, AutoscalingMode, Gang, InferenceServiceSpec, Reason, TlsMode};

use crate::field_error::FieldError;

/// Refuses each such field that is set.
pub(super) fn check(spec: &InferenceServiceSpec, errors: &mut Vec<FieldError>) {
    let scaled = spec
        .autoscaling
        .as_ref()
        .is_some_and(|a| a.mode != AutoscalingMode::Off);
    let cuda = spec.accelerator.r#type == AcceleratorType::CUDA;
    let fields = [
        (
            !spec.model.adapters.is_empty(),
            "spec.model.adapters",
            "LoRA adapters aren't built yet: leave the field out",
        ),
        (
            spec.roles.is_some(),
            "spec.roles",
            "separate prefill and decode groups aren't built yet: leave the field out",
        ),
        (
            spec.engine.kv.cpu_offload.is_some(),
            "spec.engine.kv.cpuOffload",
            "moving cold blocks to host memory isn't built yet: leave the field out",
        ),
        (
            spec.model.source.s3.is_some(),
            "spec.model.source.s3",
            "S3 isn't built yet: use pvc, image, huggingFace, or http with a signed address",
        ),
        (
            scaled,
            "spec.autoscaling",
            "autoscaling isn't built yet: leave the field out and set spec.replicas, or use mode Off",
        ),
        (cuda, "spec.accelerator.type", "CUDA isn't built yet: use CPU"),
        (
            spec.topology.expert_parallel,
            "spec.topology.expertParallel",
            "dividing experts among ranks isn't built yet: set it to false",
        ),
        (
            spec.scheduling.gang != Gang::None,
            "spec.scheduling.gang",
            "gang scheduling isn't built yet: use None",
        ),
        (
            spec.tls.mode == TlsMode::Off,
            "spec.tls.mode",
            "gateway and engines talk to others over mutual TLS only: use Internal or Provided",
        ),
        (
            spec.gateway.state_store.is_some(),
            "spec.gateway.stateStore",
            "the gateway has no routes for responses, files and batches yet, and nothing to store: leave the field out",
        ),
    ];
    for (is_set, path, message) in fields {
        if is_set {
            errors.push(FieldError::new(path, Reason::Unsupported, message));
        }
    }
}
