//! Names of objects that a spec refers to.
//!
//! The operator asks for some of them, and a name stands in the path of the request: only one that can be a name may get there. Of the others
//! the API server would say the same, but about a field of a child, and after a part of the children was made.

use kvasir_operator_api::{InferenceServiceSpec, NameRef, Reason};

use crate::field_error::FieldError;

/// Refuses texts that no object can be called.
pub(super) fn check(spec: &InferenceServiceSpec, errors: &mut Vec<FieldError>) {
    for (path, name) in service(spec).into_iter().chain(engine(spec)).chain(gateway(spec)) {
        if !is_subdomain(name) {
            let message = format!(
                "{name:?} can't be the name of an object: names are parts of a-z, 0-9 and '-' that begin and end with a letter or digit, with dots between them"
            );
            errors.push(FieldError::new(path, Reason::InvalidSpec, message));
        }
    }
}

type Named<'a> = (String, &'a str);

fn service(spec: &InferenceServiceSpec) -> Vec<Named<'_>> {
    let source = &spec.model.source;
    let image = source.image.as_ref();
    let token = source
        .hugging_face
        .as_ref()
        .and_then(|hub| hub.token_secret_ref.as_ref());
    let storage = spec.storage.as_ref();
    let class = storage.and_then(|storage| storage.cache.as_ref()?.storage_class_name.as_deref());
    let one = [
        ("spec.tls.secretName", spec.tls.secret_name.as_deref()),
        (
            "spec.tls.operatorSecretName",
            spec.tls.operator_secret_name.as_deref(),
        ),
        ("spec.serviceAccountName", spec.service_account_name.as_deref()),
        (
            "spec.model.source.pvc.claimName",
            source.pvc.as_ref().map(|pvc| pvc.claim_name.as_str()),
        ),
        (
            "spec.model.source.huggingFace.tokenSecretRef.name",
            token.map(|token| token.name.as_str()),
        ),
        (
            "spec.scheduling.priorityClassName",
            spec.scheduling.priority_class_name.as_deref(),
        ),
        (
            "spec.scheduling.runtimeClassName",
            spec.scheduling.runtime_class_name.as_deref(),
        ),
        // An empty text is how Kubernetes spells "no class".
        (
            "spec.storage.cache.storageClassName",
            class.filter(|class| !class.is_empty()),
        ),
    ];
    let mut all = given(&one);
    if let Some(image) = image {
        all.extend(list("spec.model.source.image.pullSecrets", &image.pull_secrets));
    }
    all
}

fn engine(spec: &InferenceServiceSpec) -> Vec<Named<'_>> {
    let engine = &spec.engine;
    let mut all = list("spec.engine.imagePullSecrets", &engine.image_pull_secrets);
    for (i, variable) in engine.env.iter().enumerate() {
        let secret = variable.secret_key_ref.as_ref().map(|key| key.name.as_str());
        let map = variable.config_map_key_ref.as_ref().map(|key| key.name.as_str());
        let path = |source: &str| format!("spec.engine.env[{i}].{source}.name");
        all.extend(secret.map(|name| (path("secretKeyRef"), name)));
        all.extend(map.map(|name| (path("configMapKeyRef"), name)));
    }
    for (i, source) in engine.env_from.iter().enumerate() {
        let path = |kind: &str| format!("spec.engine.envFrom[{i}].{kind}.name");
        let secret = source.secret_ref.as_ref();
        let map = source.config_map_ref.as_ref();
        all.extend(secret.map(|secret| (path("secretRef"), secret.name.as_str())));
        all.extend(map.map(|map| (path("configMapRef"), map.name.as_str())));
    }
    all
}

fn gateway(spec: &InferenceServiceSpec) -> Vec<Named<'_>> {
    let gateway = &spec.gateway;
    let ingress = gateway.ingress.as_ref();
    let authorities = gateway
        .auth
        .jwt
        .as_ref()
        .and_then(|jwt| jwt.ca_bundle_ref.as_ref());
    let password = gateway.limits.store.password_secret_ref.as_ref();
    let one = [
        (
            "spec.gateway.gatewayRef.name",
            gateway.gateway_ref.as_ref().map(|host| host.name.as_str()),
        ),
        (
            "spec.gateway.ingress.className",
            ingress.and_then(|ingress| ingress.class_name.as_deref()),
        ),
        (
            "spec.gateway.ingress.tlsSecretName",
            ingress.and_then(|ingress| ingress.tls_secret_name.as_deref()),
        ),
        (
            "spec.gateway.auth.jwt.caBundleRef.name",
            authorities.map(|map| map.name.as_str()),
        ),
        (
            "spec.gateway.limits.store.passwordSecretRef.name",
            password.map(|key| key.name.as_str()),
        ),
    ];
    let mut all = given(&one);
    all.extend(list(
        "spec.gateway.auth.apiKeySecrets",
        &gateway.auth.api_key_secrets,
    ));
    all
}

fn given<'a>(one: &[(&str, Option<&'a str>)]) -> Vec<Named<'a>> {
    let named = one
        .iter()
        .filter_map(|(path, name)| Some(((*path).to_owned(), (*name)?)));
    named.collect()
}

fn list<'a>(path: &str, names: &'a [NameRef]) -> Vec<Named<'a>> {
    let path = |(i, name): (usize, &'a NameRef)| (format!("{path}[{i}].name"), name.name.as_str());
    names.iter().enumerate().map(path).collect()
}

/// RFC 1123, as Kubernetes has it for the names of most kinds.
fn is_subdomain(name: &str) -> bool {
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_part = |part: &str| {
        part.starts_with(is_edge) && part.ends_with(is_edge) && part.chars().all(|c| is_edge(c) || c == '-')
    };
    name.len() <= 253 && name.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_texts_that_would_be_more_than_one_part_of_a_path() {
        for name in ["a", "chat-keys", "0.a-b.c9"] {
            assert!(is_subdomain(name), "{name}");
        }
        for name in [
            "", "..", "../x", "a/b", "a?b=c", "a%2Fb", "A", "a_b", "-a", "a.", "a\n",
        ] {
            assert!(!is_subdomain(name), "{name:?}");
        }
    }
}
