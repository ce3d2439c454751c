//! Network policies: who may connect to what.
//!
//! Policies only add: a pod that any policy selects in a direction is closed in that direction but for what some policy
//! allows. So the first policy that selects a pod closes it, and the order matters: what must work comes first, the policy
//! that closes everything last, and they go in the reverse order. Otherwise adding "metrics" alone would end inference
//! (opendatahub-io/kserve#1904).
//!
//! Ports are numbers of the pods' own ports, because that is what policies see after a Service has been translated. A peer
//! with two selectors is one element: as two elements they would mean "or".
//!
//! | Policy | Selects | Allows |
//! |---|---|---|
//! | `from-gateway` | engines | gateway pods of this service, and of the one that `gatewayRef` names, to grpc |
//! | `g<id>` | engines of one group | the same group, both ways: rendezvous, collective |
//! | `dns` | all pods | out to the DNS pods and the node's cache |
//! | `egress-model` | engines that load | out to the listed addresses |
//! | `metrics`, `gateway-metrics` | engines, gateway | the monitoring peers to the metrics port |
//! | `clients` | gateway | the allowed clients to the entrance |
//! | `gateway-out` | gateway | out to engines, to those of services that it serves too, to the listed addresses, and in mode TokenReview to the API server's ports |
//! | `operator` | engines | the operator's pods to the admin port |
//! | `deny` | all pods | nothing |
//!
//! Engines and gateway have policies of their own: a user chooses the engines' ports, and the gateway's metrics port could
//! be the engines' grpc port.
//!
//! The kubelet's probes need no policy: traffic from a pod's own node is always allowed.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kvasir_operator_api::{AuthMode, EgressRule, NetworkMode, labels, names::Names};

use super::gateway::{GATEWAY_PORT, METRICS_PORT};
use super::meta;
use crate::child::{Child, Kind};
use crate::settings::Settings;
use crate::sharing;
use crate::validate::Validated;

/// Label that the chart puts on the operator's own pods.
const OPERATOR_LABEL: &str = labels::NAME;

/// The order in which policies are written, by what their names end in. A group's policy comes where `g` stands.
const ORDER: [&str; 10] = [
    "from-gateway",
    "clients",
    "gateway-out",
    "dns",
    "egress-model",
    "g",
    "metrics",
    "operator",
    "gateway-metrics",
    "deny",
];

/// Where a policy of that name stands in the order of writing. Deletion goes the other way.
pub fn rank(service: &Validated, name: &str) -> usize {
    let position = |what: &str| ORDER.iter().position(|other| *other == what);
    let own = ORDER.iter().position(|what| service.names.policy(what) == name);
    own.or_else(|| position("g")).unwrap_or(0)
}

/// Whether a policy of that name is about gateway pods alone.
pub fn is_gateways(service: &Validated, name: &str) -> bool {
    ["clients", "gateway-out", "gateway-metrics"]
        .iter()
        .any(|what| service.names.policy(what) == name)
}

/// All policies of the service in the order in which they are written. None in mode Open.
pub fn policies(service: &Validated, groups: &[i32], settings: &Settings) -> Vec<Child> {
    if service.spec.network.mode == NetworkMode::Open {
        return Vec::new();
    }
    let engine = &service.spec.engine.ports;
    let mut all = vec![from_gateway(service)];
    if service.spec.gateway.enabled {
        all.push(clients(service));
        all.push(gateway_out(service, settings));
    }
    all.push(dns(service));
    all.extend(model_egress(service));
    all.extend(groups.iter().map(|id| ranks(service, *id)));
    all.extend(metrics(service, "metrics", engines(service), engine.metrics));
    all.push(operator(
        service,
        settings,
        "operator",
        engines(service),
        engine.admin,
    ));
    if service.spec.gateway.enabled {
        all.extend(metrics(
            service,
            "gateway-metrics",
            gateways(service),
            METRICS_PORT,
        ));
    }
    all.push(deny(service));
    all
}

/// A group's ranks reach each other and no other group's.
fn ranks(service: &Validated, id: i32) -> Child {
    let name = service.names.group(id);
    let own = labels::of_group(service.names.service(), id);
    let engine = &service.spec.engine.ports;
    let open = ports("TCP", &[engine.rendezvous, engine.collective]);
    let spec = NetworkPolicySpec {
        pod_selector: Some(meta::selector(own.clone())),
        policy_types: Some(types(true, true)),
        ingress: Some(vec![ingress(vec![pods(own.clone())], open.clone())]),
        egress: Some(vec![egress(vec![pods(own)], open)]),
    };
    let object = NetworkPolicy {
        metadata: meta::of_group(service, id, &name),
        spec: Some(spec),
    };
    Child::new(Kind::NetworkPolicy, &name, &object)
}

fn from_gateway(service: &Validated) -> Child {
    let open = ports("TCP", &[service.spec.engine.ports.grpc]);
    // Pods of an own gateway that was given up still end their streams. The other one is named by the spec alone: that it is refused for a
    // while, or not there yet, cuts nobody off.
    let mut from = vec![pods(gateways(service))];
    let host = sharing::reference(&service.spec).map(Names::new);
    from.extend(host.map(|host| pods(labels::of_component(host.service(), labels::GATEWAY))));
    inward(
        service,
        "from-gateway",
        engines(service),
        vec![ingress(from, open)],
    )
}

fn dns(service: &Validated) -> Child {
    let dns = &service.spec.network.dns;
    let mut open = ports("UDP", &dns.ports);
    open.extend(ports("TCP", &dns.ports));
    let mut rules = vec![egress(
        vec![NetworkPolicyPeer {
            namespace_selector: Some(meta::user_selector(&dns.namespace_selector)),
            pod_selector: Some(meta::user_selector(&dns.pod_selector)),
            ip_block: None,
        }],
        open,
    )];
    if let Ok(address) = dns.node_local_address.parse::<std::net::IpAddr>() {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        // The node's cache listens on the Service's port, whatever port the DNS pods have.
        let mut open = ports("UDP", &[53]);
        open.extend(ports("TCP", &[53]));
        rules.push(egress(vec![range(&format!("{address}/{bits}"), &[])], open));
    }
    outward(service, "dns", everything(service), rules)
}

/// Only pods with the label of loading, and only where something is fetched.
fn model_egress(service: &Validated) -> Option<Child> {
    let rules = &service.spec.network.model_egress;
    let mut loading = labels::of_component(service.names.service(), labels::ENGINE);
    loading.insert(labels::LOADING.to_owned(), "true".to_owned());
    let fetches = service.spec.model.source.is_fetched() && !rules.is_empty();
    fetches.then(|| {
        outward(
            service,
            "egress-model",
            loading,
            rules.iter().map(listed).collect(),
        )
    })
}

fn metrics(service: &Validated, what: &str, to: BTreeMap<String, String>, port: i32) -> Option<Child> {
    let peer = service.spec.network.monitoring.as_ref()?;
    let from = NetworkPolicyPeer {
        namespace_selector: peer.namespace_selector.as_ref().map(meta::user_selector),
        pod_selector: Some(
            peer.pod_selector
                .as_ref()
                .map(meta::user_selector)
                .unwrap_or_default(),
        ),
        ip_block: None,
    };
    let rules = vec![ingress(vec![from], ports("TCP", &[port]))];
    Some(inward(service, what, to, rules))
}

fn clients(service: &Validated) -> Child {
    let peers = &service.spec.network.allowed_clients;
    let from: Vec<_> = peers
        .iter()
        .map(|peer| match &peer.ip_block {
            Some(block) => range(&block.cidr, &block.except),
            None => NetworkPolicyPeer {
                namespace_selector: peer.namespace_selector.as_ref().map(meta::user_selector),
                pod_selector: Some(
                    peer.pod_selector
                        .as_ref()
                        .map(meta::user_selector)
                        .unwrap_or_default(),
                ),
                ip_block: None,
            },
        })
        .collect();
    // An empty list of peers would mean everybody: without a list it is the service's own namespace.
    let from = if from.is_empty() {
        vec![pods(BTreeMap::new())]
    } else {
        from
    };
    inward(
        service,
        "clients",
        gateways(service),
        vec![ingress(from, ports("TCP", &[GATEWAY_PORT]))],
    )
}

/// The API server isn't a pod, so no selector matches it, and nobody knows its addresses for long: its certificate is what is trusted.
fn api_server(settings: &Settings) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule {
        to: None,
        ports: Some(ports("TCP", &settings.api_server_ports)),
    }
}

fn gateway_out(service: &Validated, settings: &Settings) -> Child {
    let guests = service.sharing.guests.iter().map(|guest| &guest.service);
    let to_engines = |service: &Validated| {
        let open = ports("TCP", &[service.spec.engine.ports.grpc]);
        egress(vec![pods(engines(service))], open)
    };
    let mut rules: Vec<_> = std::iter::once(service).chain(guests).map(to_engines).collect();
    rules.extend(service.spec.network.gateway_egress.iter().map(listed));
    if service.spec.gateway.auth.mode == AuthMode::TokenReview {
        rules.push(api_server(settings));
    }
    outward(service, "gateway-out", gateways(service), rules)
}

fn operator(
    service: &Validated,
    settings: &Settings,
    what: &str,
    to: BTreeMap<String, String>,
    port: i32,
) -> Child {
    let own = |key: &str, value: &str| Some(meta::selector([(key.to_owned(), value.to_owned())].into()));
    let from = NetworkPolicyPeer {
        namespace_selector: own(labels::NAMESPACE_NAME, &settings.operator_namespace),
        pod_selector: own(OPERATOR_LABEL, &settings.operator_name),
        ip_block: None,
    };
    inward(
        service,
        what,
        to,
        vec![ingress(vec![from], ports("TCP", &[port]))],
    )
}

fn deny(service: &Validated) -> Child {
    let spec = NetworkPolicySpec {
        pod_selector: Some(meta::selector(everything(service))),
        policy_types: Some(types(true, true)),
        ingress: None,
        egress: None,
    };
    child(service, "deny", spec)
}

fn engines(service: &Validated) -> BTreeMap<String, String> {
    labels::of_component(service.names.service(), labels::ENGINE)
}

fn gateways(service: &Validated) -> BTreeMap<String, String> {
    labels::of_component(service.names.service(), labels::GATEWAY)
}

fn everything(service: &Validated) -> BTreeMap<String, String> {
    [(labels::SERVICE.to_owned(), service.names.service().to_owned())].into()
}

fn inward(
    service: &Validated,
    what: &str,
    to: BTreeMap<String, String>,
    rules: Vec<NetworkPolicyIngressRule>,
) -> Child {
    let spec = NetworkPolicySpec {
        pod_selector: Some(meta::selector(to)),
        policy_types: Some(types(true, false)),
        ingress: Some(rules),
        egress: None,
    };
    child(service, what, spec)
}

fn outward(
    service: &Validated,
    what: &str,
    from: BTreeMap<String, String>,
    rules: Vec<NetworkPolicyEgressRule>,
) -> Child {
    let spec = NetworkPolicySpec {
        pod_selector: Some(meta::selector(from)),
        policy_types: Some(types(false, true)),
        ingress: None,
        egress: Some(rules),
    };
    child(service, what, spec)
}

fn child(service: &Validated, what: &str, spec: NetworkPolicySpec) -> Child {
    let name = service.names.policy(what);
    let object = NetworkPolicy {
        metadata: meta::of_service(service, &name),
        spec: Some(spec),
    };
    Child::new(Kind::NetworkPolicy, &name, &object)
}

fn types(inward: bool, outward: bool) -> Vec<String> {
    let all = [(inward, "Ingress"), (outward, "Egress")];
    all.iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| (*name).to_owned())
        .collect()
}

fn ingress(from: Vec<NetworkPolicyPeer>, ports: Vec<NetworkPolicyPort>) -> NetworkPolicyIngressRule {
    NetworkPolicyIngressRule {
        from: Some(from),
        ports: Some(ports),
    }
}

fn egress(to: Vec<NetworkPolicyPeer>, ports: Vec<NetworkPolicyPort>) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule {
        to: Some(to),
        ports: Some(ports),
    }
}

fn listed(rule: &EgressRule) -> NetworkPolicyEgressRule {
    egress(vec![range(&rule.cidr, &rule.except)], ports("TCP", &rule.ports))
}

/// Pods of the service's own namespace with these labels.
fn pods(labels: BTreeMap<String, String>) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        pod_selector: Some(if labels.is_empty() {
            LabelSelector::default()
        } else {
            meta::selector(labels)
        }),
        ..NetworkPolicyPeer::default()
    }
}

fn range(cidr: &str, except: &[String]) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        ip_block: Some(IPBlock {
            cidr: cidr.to_owned(),
            except: (!except.is_empty()).then(|| except.to_vec()),
        }),
        ..NetworkPolicyPeer::default()
    }
}

fn ports(protocol: &str, numbers: &[i32]) -> Vec<NetworkPolicyPort> {
    let one = |number: &i32| NetworkPolicyPort {
        port: Some(IntOrString::Int(*number)),
        protocol: Some(protocol.to_owned()),
        end_port: None,
    };
    numbers.iter().map(one).collect()
}
