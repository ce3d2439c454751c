//! Labels and annotations. Selectors of policies, budgets and services are made of these and nothing else.

use std::collections::BTreeMap;

/// What all labels and annotations of this operator begin with.
pub const PREFIX: &str = "kvasir.dev/";
/// Says that an object is made by this operator.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_VALUE: &str = "kvasir";
/// Name of the application, for dashboards.
pub const NAME: &str = "app.kubernetes.io/name";
/// Value of [`NAME`].
pub const NAME_VALUE: &str = "kvasir";
/// Name of the `InferenceService` that a child belongs to.
pub const SERVICE: &str = "kvasir.dev/service";
/// Which part a pod is: [`ENGINE`] or [`GATEWAY`].
pub const COMPONENT: &str = "kvasir.dev/component";
/// Value of [`COMPONENT`] for engine pods.
pub const ENGINE: &str = "engine";
/// Value of [`COMPONENT`] for gateway pods.
pub const GATEWAY: &str = "gateway";
/// Id of the group that a pod or a group's object belongs to.
pub const GROUP: &str = "kvasir.dev/group";
/// Revision of a group.
pub const REVISION: &str = "kvasir.dev/revision";
/// On a pod while it loads its model from the network: the egress policy selects it. The operator removes it afterwards.
pub const LOADING: &str = "kvasir.dev/loading";
/// Set by the StatefulSet controller on each pod: its ordinal.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// Set by the Deployment controller on each pod and in the name of its ReplicaSet: hash of what the pod is made from.
pub const TEMPLATE_HASH: &str = "pod-template-hash";
/// Set by the API server on each namespace: its name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Annotation of a child: hash of what the operator wanted when it last wrote it.
pub const DESIRED_HASH: &str = "kvasir.dev/desired-hash";
/// Annotation of a child: its generation after that write. Another one means that somebody else changed it.
pub const APPLIED_GENERATION: &str = "kvasir.dev/applied-generation";
/// Annotation of a gateway's configuration: names of other services whose models it lists, with commas between them.
pub const GUESTS: &str = "kvasir.dev/guests";
/// Annotation of a gateway's configuration that lists others' models, and of the gateway's pods: hash of the file. A kubelet brings changed
/// files to a pod within a minute or two, and at once where the pod itself changes.
pub const FILE_HASH: &str = "kvasir.dev/file-hash";
/// Annotation of an `InferenceService`: "true" allows `gateway.auth.mode: None`.
pub const ALLOW_ANONYMOUS: &str = "kvasir.dev/allow-anonymous";
/// Annotation of an `InferenceService`: the revision whose canary goes on, where `canary.pauseSeconds` is 0.
pub const PROMOTE: &str = "kvasir.dev/promote";

/// Labels of every child of `service`.
pub fn of_service(service: &str) -> BTreeMap<String, String> {
    [
        (MANAGED_BY, MANAGED_BY_VALUE),
        (NAME, NAME_VALUE),
        (SERVICE, service),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Labels that select all pods of one part of `service`.
pub fn of_component(service: &str, component: &str) -> BTreeMap<String, String> {
    [(SERVICE, service), (COMPONENT, component)]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Labels that select the pods of one group.
pub fn of_group(service: &str, id: i32) -> BTreeMap<String, String> {
    let mut labels = of_component(service, ENGINE);
    labels.insert(GROUP.to_owned(), id.to_string());
    labels
}

/// Selector of the groups' leading pods, as the scale subresource has it. One pod per group, so that averages over pods
/// are averages over groups.
pub fn leaders_selector(service: &str) -> String {
    format!("{SERVICE}={service},{COMPONENT}={ENGINE},{POD_INDEX}=0")
}
