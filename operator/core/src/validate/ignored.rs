//! Fields that nothing would read. Whoever sets one believes that it does something, so each is refused.

use kvasir_operator_api::{
    AcceleratorType, AuthMode, AutoscalingMode, Gang, InferenceServiceSpec, LimitsStoreType, Reason, TlsMode,
};

use crate::field_error::FieldError;

/// A field, whether it is set, and what is to be said of it.
type Field = (&'static str, bool, &'static str);

/// Refuses each such field that is set.
pub(super) fn check(spec: &InferenceServiceSpec, errors: &mut Vec<FieldError>) {
    let unsupported = unsupported(spec).map(|field| (Reason::Unsupported, "", field));
    let idle = idle(spec).map(|field| {
        let way_out = ": set that mode, or leave the field out";
        (Reason::InvalidSpec, way_out, field)
    });
    for (reason, way_out, (path, is_set, what)) in unsupported.into_iter().chain(idle) {
        if is_set {
            errors.push(FieldError::new(path, reason, format!("{what}{way_out}")));
        }
    }
}

/// Fields that this version knows and can't honour yet.
fn unsupported(spec: &InferenceServiceSpec) -> [Field; 10] {
    let scaled = spec
        .autoscaling
        .as_ref()
        .is_some_and(|a| a.mode != AutoscalingMode::Off);
    [
        (
            "spec.model.adapters",
            !spec.model.adapters.is_empty(),
            "LoRA adapters aren't built yet: leave the field out",
        ),
        (
            "spec.roles",
            spec.roles.is_some(),
            "separate prefill and decode groups aren't built yet: leave the field out",
        ),
        (
            "spec.engine.kv.cpuOffload",
            spec.engine.kv.cpu_offload.is_some(),
            "moving cold blocks to host memory isn't built yet: leave the field out",
        ),
        (
            "spec.model.source.s3",
            spec.model.source.s3.is_some(),
            "S3 isn't built yet: use pvc, image, huggingFace, or http with a signed address",
        ),
        (
            "spec.autoscaling",
            scaled,
            "autoscaling isn't built yet: leave the field out and set spec.replicas, or use mode Off",
        ),
        (
            "spec.accelerator.type",
            spec.accelerator.r#type == AcceleratorType::CUDA,
            "CUDA isn't built yet: use CPU",
        ),
        (
            "spec.topology.expertParallel",
            spec.topology.expert_parallel,
            "dividing experts among ranks isn't built yet: set it to false",
        ),
        (
            "spec.scheduling.gang",
            spec.scheduling.gang != Gang::None,
            "gang scheduling isn't built yet: use None",
        ),
        (
            "spec.tls.mode",
            spec.tls.mode == TlsMode::Off,
            "gateway and engines talk to others over mutual TLS only: use Internal or Provided",
        ),
        (
            "spec.gateway.stateStore",
            spec.gateway.state_store.is_some(),
            "the gateway has no routes for responses, files and batches yet, and nothing to store: leave the field out",
        ),
    ]
}

/// Fields that only another mode reads.
fn idle(spec: &InferenceServiceSpec) -> [Field; 6] {
    let (auth, store, tls) = (&spec.gateway.auth, &spec.gateway.limits.store, &spec.tls);
    let is_redis = store.r#type == LimitsStoreType::Redis;
    let is_provided = tls.mode == TlsMode::Provided;
    [
        (
            "spec.gateway.auth.jwt",
            auth.jwt.is_some() && auth.mode != AuthMode::JWT,
            "is read with auth.mode JWT only",
        ),
        (
            "spec.gateway.limits.store.url",
            store.url.is_some() && !is_redis,
            "is read with store.type Redis only",
        ),
        (
            "spec.gateway.limits.store.passwordSecretRef",
            store.password_secret_ref.is_some() && !is_redis,
            "is read with store.type Redis only",
        ),
        (
            "spec.tls.issuerRef",
            tls.issuer_ref.is_some() && tls.mode != TlsMode::CertManager,
            "is read with tls.mode CertManager only",
        ),
        (
            "spec.tls.secretName",
            tls.secret_name.is_some() && !is_provided,
            "is read with tls.mode Provided only",
        ),
        (
            "spec.tls.operatorSecretName",
            tls.operator_secret_name.is_some() && !is_provided,
            "is read with tls.mode Provided only",
        ),
    ]
}
