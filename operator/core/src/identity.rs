//! Who is called what in certificates, and where certificates lie in Secrets.
//!
//! Each service has an authority of its own, so a name means something within one service only. Names are SPIFFE ids beside
//! DNS names: DNS names are for clients that check the address they dialled, SPIFFE ids for rules about peers.
//!
//! | Certificate | DNS names | SPIFFE id |
//! |---|---|---|
//! | group's ranks | engines' Service, `*.` ranks' Service | `.../engine` for the gateway's rule, `.../group/<id>/<uid>` for the ranks' |
//! | gateway | gateway's Service in all its forms; `localhost`, through a forwarded port, where the operator signs | `.../gateway`, which engines admit to their gRPC port; and that of each service that it serves too |
//! | operator | | `spiffe://kvasir.dev/operator`, which engines and gateway admit to their admin port |

use kvasir_operator_api::TlsMode;
use kvasir_operator_api::names::Names;

use crate::certificates::Subject;
use crate::validate::Validated;

/// Key of a certificate in its Secret, as `kubernetes.io/tls` has it.
pub const CERTIFICATE_KEY: &str = "tls.crt";
/// Key of the private key in its Secret.
pub const PRIVATE_KEY_KEY: &str = "tls.key";
/// Key of the authorities to trust, in each certificate's Secret and in the trust bundle.
pub const TRUST_KEY: &str = "ca.crt";
/// Key of the seed of the tenants' cache salts in the gateway's Secret: 32 random bytes.
pub const SALT_KEY: &str = "salt";
/// Part of the SPIFFE ids that only one group has.
pub const GROUP_PART: &str = "/group/";
/// Name of the operator in its certificates.
pub const OPERATOR: &str = "spiffe://kvasir.dev/operator";

/// The names in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// DNS names.
    pub dns: Vec<String>,
    /// URIs.
    pub uris: Vec<String>,
}

/// SPIFFE id that every engine of the service has: the gateway demands it of engines.
pub fn engine(service: &Validated) -> String {
    engine_of(&service.namespace, &service.name)
}

/// The same, by namespace and name.
pub fn engine_of(namespace: &str, service: &str) -> String {
    format!("spiffe://kvasir.dev/ns/{namespace}/service/{service}/engine")
}

/// SPIFFE id of the service's gateway: engines demand it on their gRPC port.
pub fn gateway(service: &Validated) -> String {
    format!("{}/gateway", of(service))
}

/// SPIFFE id of a group's ranks: ranks demand it of each other. Ids of groups are used again, uids never.
pub fn group(service: &Validated, id: i32, uid: &str) -> String {
    format!("{}{GROUP_PART}{id}/{uid}", of(service))
}

fn of(service: &Validated) -> String {
    format!(
        "spiffe://kvasir.dev/ns/{}/service/{}",
        service.namespace, service.name
    )
}

/// The names in the certificate of `subject`.
pub fn names(service: &Validated, subject: &Subject, cluster_domain: &str) -> Identity {
    let namespace = &service.namespace;
    match subject {
        Subject::Group { id, uid } => Identity {
            dns: vec![
                Names::dns(&service.names.engine_service(), namespace),
                format!("*.{}", Names::dns(&service.names.ranks_service(), namespace)),
            ],
            uris: vec![engine(service), group(service, *id, uid)],
        },
        Subject::Gateway => {
            let name = service.names.gateway();
            let full = Names::dns(&name, namespace);
            let domain = cluster_domain.trim_matches('.');
            let mut dns = vec![
                name.clone(),
                format!("{name}.{namespace}"),
                full.clone(),
                format!("{full}.{domain}"),
            ];
            dns.extend(
                service
                    .spec
                    .gateway
                    .ingress
                    .as_ref()
                    .map(|ingress| ingress.host.clone()),
            );
            // Issuers of others may refuse it.
            if service.spec.tls.mode == TlsMode::Internal {
                dns.push("localhost".to_owned());
            }
            // It is the gateway of its guests, so their engines need not know whose it is.
            let guests = service.sharing.guests.iter();
            let uris = std::iter::once(gateway(service)).chain(guests.map(|guest| gateway(&guest.service)));
            Identity {
                dns,
                uris: uris.collect(),
            }
        }
    }
}

/// The Secret that cert-manager writes for `subject`; the operator brings its content to the pods.
pub fn issued(names: &Names, subject: &Subject) -> String {
    match subject {
        Subject::Group { id, .. } => names.group_issued(*id),
        Subject::Gateway => names.gateway_issued(),
    }
}

/// The Secret that holds the certificate of `subject`, as its pods mount it.
pub fn secret(names: &Names, subject: &Subject) -> String {
    match subject {
        Subject::Group { id, .. } => names.group_certificate(*id),
        Subject::Gateway => names.gateway_certificate(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Settings, validate};

    fn service() -> Validated {
        let manifest = json!({
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": { "name": "chat", "namespace": "team", "uid": "u" },
            "spec": { "model": { "source": { "pvc": { "claimName": "models" } } } },
        });
        let service = serde_json::from_value(manifest).unwrap();
        validate(&service, &Settings::default()).unwrap()
    }

    #[test]
    fn two_lives_of_a_group_id_have_different_names_and_the_gateway_knows_both() {
        let life = |uid: &str| Subject::Group {
            id: 3,
            uid: uid.to_owned(),
        };
        let first = names(&service(), &life("a"), "cluster.local");
        let second = names(&service(), &life("b"), "cluster.local");
        assert_eq!(
            first.uris,
            [
                "spiffe://kvasir.dev/ns/team/service/chat/engine",
                "spiffe://kvasir.dev/ns/team/service/chat/group/3/a"
            ]
        );
        assert_eq!(first.uris[0], second.uris[0]);
        assert_ne!(first.uris[1], second.uris[1]);
    }

    #[test]
    fn the_gateway_is_found_under_every_form_of_its_name() {
        let found = names(&service(), &Subject::Gateway, "cluster.local.");
        assert_eq!(
            found.dns,
            [
                "chat-gateway",
                "chat-gateway.team",
                "chat-gateway.team.svc",
                "chat-gateway.team.svc.cluster.local",
                "localhost"
            ]
        );
        assert_eq!(found.uris, ["spiffe://kvasir.dev/ns/team/service/chat/gateway"]);
    }
}
