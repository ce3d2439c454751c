//! Fields that only another mode reads. Whoever sets one believes that it does something.

use kvasir_operator_api::{AuthMode, InferenceServiceSpec, LimitsStoreType, Reason, TlsMode};

use crate::field_error::FieldError;

/// Refuses each such field that is set.
pub(super) fn check(spec: &InferenceServiceSpec, errors: &mut Vec<FieldError>) {
    let (auth, store, tls) = (&spec.gateway.auth, &spec.gateway.limits.store, &spec.tls);
    let is_redis = store.r#type == LimitsStoreType::Redis;
    let is_provided = tls.mode == TlsMode::Provided;
    let fields = [
        (
            auth.jwt.is_some() && auth.mode != AuthMode::JWT,
            "spec.gateway.auth.jwt",
            "is read with auth.mode JWT only",
        ),
        (
            store.url.is_some() && !is_redis,
            "spec.gateway.limits.store.url",
            "is read with store.type Redis only",
        ),
        (
            store.password_secret_ref.is_some() && !is_redis,
            "spec.gateway.limits.store.passwordSecretRef",
            "is read with store.type Redis only",
        ),
        (
            tls.issuer_ref.is_some() && tls.mode != TlsMode::CertManager,
            "spec.tls.issuerRef",
            "is read with tls.mode CertManager only",
        ),
        (
            tls.secret_name.is_some() && !is_provided,
            "spec.tls.secretName",
            "is read with tls.mode Provided only",
        ),
        (
            tls.operator_secret_name.is_some() && !is_provided,
            "spec.tls.operatorSecretName",
            "is read with tls.mode Provided only",
        ),
    ];
    for (is_idle, path, what) in fields {
        if is_idle {
            let message = format!("{what}: set that mode, or leave the field out");
            errors.push(FieldError::new(path, Reason::InvalidSpec, message));
        }
    }
}
