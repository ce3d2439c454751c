//! Identities and rights. Engine pods have none; the gateway may read what its mode needs, by name.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kvasir_operator_api::names::Names;
use kvasir_operator_api::{AuthMode, GatewaySpec, InferenceService};

use super::meta;
use crate::accepted;
use crate::child::{Child, Kind};
use crate::validate::Validated;

/// The engines' identity, where the user names none.
pub fn engine_account(service: &Validated) -> Option<Child> {
    let name = service.names.engine_account();
    service
        .spec
        .service_account_name
        .is_none()
        .then(|| account(service, &name))
}

/// The gateway's identity.
pub fn gateway_account(service: &Validated) -> Child {
    account(service, &service.names.gateway())
}

fn account(service: &Validated, name: &str) -> Child {
    let object = ServiceAccount {
        metadata: meta::of_service(service, name),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    Child::new(Kind::ServiceAccount, name, &object)
}

/// What the gateway may do: read the configuration that the operator writes for it, by name. Keys and certificates are
/// mounted and need no right.
pub fn gateway_role(service: &Validated) -> Child {
    let name = service.names.gateway();
    let object = Role {
        metadata: meta::of_service(service, &name),
        rules: Some(vec![PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec!["configmaps".to_owned()]),
            resource_names: Some(vec![service.names.gateway_config()]),
            verbs: vec!["get".to_owned(), "watch".to_owned()],
            ..PolicyRule::default()
        }]),
    };
    Child::new(Kind::Role, &name, &object)
}

/// The gateways that may ask the API server who a token belongs to: subjects of the chart's binding, in order and each once.
pub fn token_reviewers<'a>(services: impl IntoIterator<Item = &'a InferenceService>) -> Vec<Subject> {
    let needs = |service: &&InferenceService| {
        let reviews = |gateway: &GatewaySpec| gateway.enabled && gateway.auth.mode == AuthMode::TokenReview;
        accepted::spec(service).is_some_and(|spec| reviews(&spec.gateway))
            && service.metadata.deletion_timestamp.is_none()
    };
    let named = |service: &InferenceService| {
        Some((
            service.metadata.namespace.clone()?,
            Names::new(service.metadata.name.as_deref()?).gateway(),
        ))
    };
    let accounts: BTreeSet<_> = services.into_iter().filter(needs).filter_map(named).collect();
    accounts
        .into_iter()
        .map(|(namespace, name)| Subject {
            kind: "ServiceAccount".to_owned(),
            name,
            namespace: Some(namespace),
            api_group: None,
        })
        .collect()
}

/// Gives the gateway its role.
pub fn gateway_binding(service: &Validated) -> Child {
    let name = service.names.gateway();
    let object = RoleBinding {
        metadata: meta::of_service(service, &name),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "Role".to_owned(),
            name: name.clone(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: name.clone(),
            namespace: Some(service.namespace.clone()),
            api_group: None,
        }]),
    };
    Child::new(Kind::RoleBinding, &name, &object)
}
