//! How the API server calls each kind of child.

use kube::core::{ApiResource, GroupVersionKind};
use kvasir_operator_core::child::Kind;

/// Where objects of `kind` are found.
pub(crate) fn resource(kind: Kind) -> ApiResource {
    let (group, version) = kind.api_version().rsplit_once('/').unwrap_or(("", "v1"));
    let kind_name = kind.to_string();
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, &kind_name), plural(kind))
}

const fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::ServiceAccount => "serviceaccounts",
        Kind::Role => "roles",
        Kind::RoleBinding => "rolebindings",
        Kind::ConfigMap => "configmaps",
        Kind::Secret => "secrets",
        Kind::Certificate => "certificates",
        Kind::Service => "services",
        Kind::NetworkPolicy => "networkpolicies",
        Kind::PodDisruptionBudget => "poddisruptionbudgets",
        Kind::ControllerRevision => "controllerrevisions",
        Kind::StatefulSet => "statefulsets",
        Kind::Deployment => "deployments",
        Kind::Ingress => "ingresses",
        Kind::BackendTLSPolicy => "backendtlspolicies",
        Kind::HTTPRoute => "httproutes",
        Kind::PodMonitor => "podmonitors",
        Kind::ServiceMonitor => "servicemonitors",
        Kind::PrometheusRule => "prometheusrules",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_versions_are_taken_apart() {
        let core = resource(Kind::ConfigMap);
        assert_eq!((core.group.as_str(), core.version.as_str()), ("", "v1"));
        assert_eq!(core.api_version, "v1");
        let rights = resource(Kind::Role);
        assert_eq!(rights.group, "rbac.authorization.k8s.io");
        assert_eq!(rights.api_version, "rbac.authorization.k8s.io/v1");
    }

    #[test]
    fn plurals_are_kinds_in_small_letters_with_an_ending() {
        for kind in Kind::ALL {
            let word = kind.to_string().to_lowercase();
            let plural = plural(kind);
            assert!(plural.starts_with(&word[..word.len() - 1]), "{plural}");
            assert!(plural.ends_with('s'), "{plural}");
        }
    }
}
