//! An entrance from outside through the Gateway API.
//!
//! The gateway's pods speak TLS with a certificate that only the service's own authority vouches for, and whoever implements Gateways speaks
//! clear text to them unless told otherwise. So beside the HTTPRoute there is a BackendTLSPolicy, and the ConfigMap with the authorities that
//! it names, because that is the one kind of reference that every implementation must support.

use k8s_openapi::api::core::v1::ConfigMap;
use kvasir_operator_api::TlsMode;
use serde_json::{Value, json};

use super::{meta, services};
use crate::certificates::Subject;
use crate::child::{Child, Kind, Live};
use crate::identity;
use crate::observed::Observed;
use crate::settings::Settings;
use crate::validate::Validated;

/// How much longer the route waits than the gateway: an answer that takes too long ends with the gateway's own error.
const PATIENCE_SECONDS: i32 = 10;

/// The HTTPRoute and what belongs to it, where one is wanted and the cluster knows the kinds.
pub fn children(service: &Validated, observed: &Observed, settings: &Settings) -> Vec<Child> {
    let known = |kind: Kind| settings.known_kinds.contains(&kind);
    let wanted = service.spec.gateway.route.is_some() && known(Kind::HTTPRoute);
    if !wanted {
        return Vec::new();
    }
    let mut all: Vec<Child> = route(service).into_iter().collect();
    if service.spec.tls.mode != TlsMode::Off && known(Kind::BackendTLSPolicy) {
        all.extend(observed.trust.as_deref().map(|trust| authorities(service, trust)));
        all.push(policy(service, settings));
    }
    all
}

fn route(service: &Validated) -> Option<Child> {
    let spec = service.spec.gateway.route.as_ref()?;
    let seconds = service.spec.gateway.limits.request_timeout_seconds + PATIENCE_SECONDS;
    let mut route = json!({
        "parentRefs": spec.parent_refs,
        "rules": [{
            "backendRefs": [{ "name": service.names.gateway(), "port": services::gateway_port(service) }],
            // What implementations do by themselves is far too short for a model.
            "timeouts": { "request": format!("{seconds}s") },
        }],
    });
    if !spec.hostnames.is_empty() {
        route["hostnames"] = json!(spec.hostnames);
    }
    Some(child(service, Kind::HTTPRoute, &route))
}

fn policy(service: &Validated, settings: &Settings) -> Child {
    let names = identity::names(service, &Subject::Gateway, &settings.cluster_domain);
    let policy = json!({
        "targetRefs": [{ "group": "", "kind": "Service", "name": service.names.gateway() }],
        "validation": {
            "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": service.names.trust_bundle() }],
            "hostname": names.dns.first(),
        },
    });
    child(service, Kind::BackendTLSPolicy, &policy)
}

fn authorities(service: &Validated, trust: &str) -> Child {
    let name = service.names.trust_bundle();
    let object = ConfigMap {
        metadata: meta::of_service(service, &name),
        data: Some([(identity::TRUST_KEY.to_owned(), trust.to_owned())].into()),
        ..ConfigMap::default()
    };
    Child::new(Kind::ConfigMap, &name, &object)
}

fn child(service: &Validated, kind: Kind, spec: &Value) -> Child {
    let metadata = meta::of_service(service, &service.names.gateway());
    Child::of_spec(kind, &metadata, spec)
}

/// What Gateways say about the service's route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// One serves it, or there is none.
    Yes,
    /// None has said anything yet.
    Unknown,
    /// None serves it, and this is why.
    No(String),
}

/// What Gateways say about the service's route and about the policy for its certificate.
pub fn taken(service: &Validated, observed: &Observed) -> Taken {
    if service.spec.gateway.route.is_none() {
        return Taken::Yes;
    }
    let name = service.names.gateway();
    let said = |kind: Kind, key: &str| match observed.own_child(service, kind, &name) {
        Some(live) => verdicts(live, key),
        None => Vec::new(),
    };
    let route = said(Kind::HTTPRoute, "parents");
    let policy = said(Kind::BackendTLSPolicy, "ancestors");
    // A Gateway that doesn't report on policies is one that may follow them.
    let refusal = |verdicts: &[Option<String>]| verdicts.iter().flatten().next().cloned();
    let fine = |verdicts: &[Option<String>]| verdicts.iter().any(Option::is_none);
    match (fine(&route), fine(&policy), refusal(&route), refusal(&policy)) {
        (false, _, Some(why), _) | (_, false, _, Some(why)) => Taken::No(why),
        (true, ..) => Taken::Yes,
        _ => Taken::Unknown,
    }
}

/// For each Gateway nothing where it takes the object, and otherwise why it doesn't.
fn verdicts(live: &Live, key: &str) -> Vec<Option<String>> {
    let all = live.object["status"][key].as_array().into_iter().flatten();
    let conditions = all.map(|gateway| gateway["conditions"].as_array().into_iter().flatten());
    conditions
        .filter_map(|mut conditions| {
            let mut seen = false;
            let refused = conditions.find(|condition| {
                seen = true;
                let decides = condition["type"] == "Accepted" || condition["type"] == "ResolvedRefs";
                decides && condition["status"] == "False"
            });
            let text = |refused: &Value| {
                let part = |key: &str| refused[key].as_str().unwrap_or_default();
                format!("{}: {}: {}", live.reference, part("reason"), part("message"))
            };
            seen.then(|| refused.map(text))
        })
        .collect()
}
