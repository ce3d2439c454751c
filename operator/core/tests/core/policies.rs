//! What the generated network policies allow, proven for every pair of endpoints and every port by an evaluator that
//! follows the rules of NetworkPolicy: a pod that no policy selects in a direction is open there; otherwise what some policy
//! allows is allowed; a connection needs both sides.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kvasir_operator_core::build::policy::policies;
use kvasir_operator_core::{Settings, sharing, validate};
use serde_json::{Value, json};

use crate::fake;

/// Somebody who connects or is connected to.
#[derive(Clone, Debug)]
struct Endpoint {
    name: &'static str,
    /// Nothing for addresses outside the cluster.
    namespace: Option<&'static str>,
    labels: BTreeMap<String, String>,
    address: IpAddr,
}

fn pod(name: &'static str, namespace: &'static str, address: &str, labels: &[(&str, &str)]) -> Endpoint {
    Endpoint {
        name,
        namespace: Some(namespace),
        labels: labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        address: address.parse().unwrap(),
    }
}

fn outside(name: &'static str, address: &str) -> Endpoint {
    Endpoint {
        name,
        namespace: None,
        labels: BTreeMap::new(),
        address: address.parse().unwrap(),
    }
}

fn engine(name: &'static str, address: &str, group: &str, loading: bool) -> Endpoint {
    let mut labels = vec![
        ("kvasir.dev/service", "chat"),
        ("kvasir.dev/component", "engine"),
        ("kvasir.dev/group", group),
    ];
    if loading {
        labels.push(("kvasir.dev/loading", "true"));
    }
    pod(name, "team", address, &labels)
}

#[expect(clippy::too_many_lines, reason = "one table, a row per endpoint")]
fn endpoints() -> Vec<Endpoint> {
    vec![
        engine("engine g0-0", "10.1.0.1", "0", false),
        engine("engine g0-1", "10.1.0.2", "0", false),
        engine("engine g1-0 loading", "10.1.0.3", "1", true),
        pod(
            "gateway",
            "team",
            "10.1.0.4",
            &[
                ("kvasir.dev/service", "chat"),
                ("kvasir.dev/component", "gateway"),
            ],
        ),
        pod("client", "team", "10.1.0.5", &[("app", "client")]),
        pod("client elsewhere", "other", "10.1.0.6", &[("app", "client")]),
        pod("prometheus", "monitoring", "10.1.0.7", &[("app", "prometheus")]),
        pod(
            "prometheus elsewhere",
            "other",
            "10.1.0.8",
            &[("app", "prometheus")],
        ),
        pod(
            "operator",
            "kvasir-system",
            "10.1.0.9",
            &[("app.kubernetes.io/name", "kvasir-operator")],
        ),
        pod(
            "operator's neighbour",
            "kvasir-system",
            "10.1.0.10",
            &[("app", "other")],
        ),
        pod(
            "false operator",
            "team",
            "10.1.0.11",
            &[("app.kubernetes.io/name", "kvasir-operator")],
        ),
        pod("dns", "kube-system", "10.1.0.12", &[("k8s-app", "kube-dns")]),
        pod("false dns", "other", "10.1.0.13", &[("k8s-app", "kube-dns")]),
        pod(
            "engine of another service",
            "team",
            "10.1.0.14",
            &[
                ("kvasir.dev/service", "other"),
                ("kvasir.dev/component", "engine"),
                ("kvasir.dev/group", "0"),
            ],
        ),
        pod(
            "gateway of another service",
            "team",
            "10.1.0.15",
            &[
                ("kvasir.dev/service", "other"),
                ("kvasir.dev/component", "gateway"),
            ],
        ),
        pod(
            "engine of a namesake",
            "other",
            "10.1.0.16",
            &[
                ("kvasir.dev/service", "chat"),
                ("kvasir.dev/component", "engine"),
                ("kvasir.dev/group", "0"),
            ],
        ),
        pod(
            "gateway of a namesake",
            "other",
            "10.1.0.17",
            &[
                ("kvasir.dev/service", "chat"),
                ("kvasir.dev/component", "gateway"),
            ],
        ),
        outside("node's dns cache", "169.254.20.10"),
        outside("hub", "192.0.2.10"),
        outside("hub's closed part", "192.0.2.200"),
        outside("identity provider", "198.51.100.7"),
        outside("internet", "203.0.113.1"),
    ]
}

const PORTS: [i32; 9] = [50051, 29500, 29501, 9090, 8081, 8082, 8443, 53, 443];

fn generated(spec: Value) -> Vec<NetworkPolicy> {
    let service = fake::service(spec);
    let settings = Settings {
        alpha_topology: true,
        token_reviewers: Some("reviewers".to_owned()),
        ..Settings::default()
    };
    let validated = validate(&service, &settings).unwrap();
    let children = policies(&validated, &[0, 1], &settings);
    children
        .iter()
        .map(|child| serde_json::from_value(child.object.clone()).unwrap())
        .collect()
}

fn strict() -> Value {
    json!({
        "model": { "source": { "huggingFace": { "repo": "org/model" } } },
        "topology": { "tensor": 2 },
        "network": {
            "monitoring": { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "monitoring" } },
                            "podSelector": { "matchLabels": { "app": "prometheus" } } },
            "modelEgress": [{ "cidr": "192.0.2.0/24", "except": ["192.0.2.192/26"] }],
            "gatewayEgress": [{ "cidr": "198.51.100.7/32" }],
        },
    })
}

/// Peers and ports of one rule.
type Rule<'a> = (
    Option<&'a Vec<NetworkPolicyPeer>>,
    Option<&'a Vec<NetworkPolicyPort>>,
);

/// Whether the policies let `from` open a connection to that port of `to`.
fn allowed(policies: &[NetworkPolicy], from: &Endpoint, to: &Endpoint, port: i32, protocol: &str) -> bool {
    one_side(policies, from, to, port, protocol, "Egress")
        && one_side(policies, to, from, port, protocol, "Ingress")
}

fn one_side(
    policies: &[NetworkPolicy],
    own: &Endpoint,
    other: &Endpoint,
    port: i32,
    protocol: &str,
    direction: &str,
) -> bool {
    let mut closed = false;
    for policy in policies {
        let spec = policy.spec.as_ref().unwrap();
        let here = own.namespace == policy.metadata.namespace.as_deref();
        let types = spec.policy_types.as_ref().unwrap();
        if !here || !selects(spec.pod_selector.as_ref(), &own.labels) || !types.iter().any(|t| t == direction)
        {
            continue;
        }
        closed = true;
        let namespace = policy.metadata.namespace.as_deref().unwrap();
        let rules: Vec<Rule<'_>> = if direction == "Egress" {
            spec.egress
                .iter()
                .flatten()
                .map(|r| (r.to.as_ref(), r.ports.as_ref()))
                .collect()
        } else {
            spec.ingress
                .iter()
                .flatten()
                .map(|r| (r.from.as_ref(), r.ports.as_ref()))
                .collect()
        };
        if rules
            .iter()
            .any(|(peers, ports)| peer_fits(*peers, other, namespace) && port_fits(*ports, port, protocol))
        {
            return true;
        }
    }
    !closed
}

fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    let Some(selector) = selector else { return true };
    assert!(selector.match_expressions.is_none(), "policies use plain labels");
    selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value))
}

fn peer_fits(peers: Option<&Vec<NetworkPolicyPeer>>, other: &Endpoint, own_namespace: &str) -> bool {
    // No list and an empty list both mean everybody.
    let Some(peers) = peers.filter(|peers| !peers.is_empty()) else {
        return true;
    };
    peers.iter().any(|peer| {
        if let Some(block) = &peer.ip_block {
            let inside = |cidr: &str| in_range(cidr, other.address);
            return inside(&block.cidr) && !block.except.iter().flatten().any(|cidr| inside(cidr));
        }
        let Some(namespace) = other.namespace else {
            return false;
        };
        let namespace_fits = match &peer.namespace_selector {
            None => namespace == own_namespace,
            some => selects(
                some.as_ref(),
                &BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())]),
            ),
        };
        namespace_fits && selects(peer.pod_selector.as_ref(), &other.labels)
    })
}

fn in_range(cidr: &str, address: IpAddr) -> bool {
    let (network, bits) = cidr.split_once('/').unwrap();
    let (IpAddr::V4(network), IpAddr::V4(address)) = (network.parse().unwrap(), address) else {
        return false;
    };
    let shift = 32 - bits.parse::<u32>().unwrap();
    u64::from(network.to_bits()) >> shift == u64::from(address.to_bits()) >> shift
}

fn port_fits(ports: Option<&Vec<NetworkPolicyPort>>, port: i32, protocol: &str) -> bool {
    let Some(ports) = ports.filter(|ports| !ports.is_empty()) else {
        return true;
    };
    ports.iter().any(|p| {
        assert!(p.end_port.is_none());
        p.port == Some(IntOrString::Int(port)) && p.protocol.as_deref().unwrap_or("TCP") == protocol
    })
}

/// Every allowed connection that has a pod of the service on at least one side.
fn matrix(policies: &[NetworkPolicy]) -> Vec<String> {
    let all = endpoints();
    let ours = |e: &Endpoint| {
        e.namespace == Some("team") && e.labels.get("kvasir.dev/service").is_some_and(|s| s == "chat")
    };
    let mut lines = Vec::new();
    for from in &all {
        for to in all
            .iter()
            .filter(|to| to.name != from.name && (ours(from) || ours(to)))
        {
            for port in PORTS {
                for protocol in ["TCP", "UDP"] {
                    if allowed(policies, from, to, port, protocol) {
                        lines.push(format!("{} -> {} {port}/{protocol}", from.name, to.name));
                    }
                }
            }
        }
    }
    lines.sort();
    lines
}

#[test]
fn exactly_the_connections_of_the_table_are_allowed() {
    let mut expected: Vec<String> = Vec::new();
    let mut allow = |from: &str, to: &str, ports: &[&str]| {
        expected.extend(ports.iter().map(|port| format!("{from} -> {to} {port}")));
    };
    let engines = ["engine g0-0", "engine g0-1", "engine g1-0 loading"];
    for engine in engines {
        allow("gateway", engine, &["50051/TCP"]);
        allow("operator", engine, &["8082/TCP"]);
        allow("prometheus", engine, &["9090/TCP"]);
    }
    allow("engine g0-0", "engine g0-1", &["29500/TCP", "29501/TCP"]);
    allow("engine g0-1", "engine g0-0", &["29500/TCP", "29501/TCP"]);
    for own in engines.into_iter().chain(["gateway"]) {
        allow(own, "dns", &["53/TCP", "53/UDP"]);
        allow(own, "node's dns cache", &["53/TCP", "53/UDP"]);
    }
    allow("engine g1-0 loading", "hub", &["443/TCP"]);
    allow("prometheus", "gateway", &["9090/TCP"]);
    for client in [
        "client",
        "false operator",
        "engine of another service",
        "gateway of another service",
    ] {
        allow(client, "gateway", &["8443/TCP"]);
    }
    allow("gateway", "identity provider", &["443/TCP"]);
    expected.sort();
    assert_eq!(matrix(&generated(strict())), expected);
}

#[test]
fn a_gateway_reaches_the_api_servers_ports_where_it_reviews_tokens_and_nowhere_else() {
    let with = |mode: &str| matrix(&generated(json!({ "gateway": { "auth": { "mode": mode } } })));
    // No selector matches the API server, so its port is open wherever a peer doesn't forbid it.
    let reach = "gateway -> internet 443/TCP".to_owned();
    let lines = with("TokenReview");
    assert!(
        lines.contains(&reach) && lines.contains(&"gateway -> hub 443/TCP".to_owned()),
        "{lines:?}"
    );
    assert!(
        !lines
            .iter()
            .any(|line| line.starts_with("engine") && line.ends_with(" 443/TCP")),
        "{lines:?}"
    );
    assert!(!with("APIKey").contains(&reach));
}

#[test]
fn without_monitoring_nobody_reads_metrics() {
    let lines = matrix(&generated(json!({})));
    assert!(!lines.iter().any(|line| line.ends_with(" 9090/TCP")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("-> hub")), "{lines:?}");
}

#[test]
fn listed_clients_replace_the_namespace() {
    let spec = json!({ "network": { "allowedClients": [
        { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "other" } }, "podSelector": { "matchLabels": { "app": "client" } } },
        { "ipBlock": { "cidr": "203.0.113.0/24" } },
    ] } });
    let lines = matrix(&generated(spec));
    let clients: Vec<_> = lines
        .iter()
        .filter(|line| line.ends_with("gateway 8443/TCP"))
        .collect();
    assert_eq!(
        clients,
        [
            "client elsewhere -> gateway 8443/TCP",
            "internet -> gateway 8443/TCP"
        ]
    );
}

#[test]
fn other_ports_of_the_engines_open_no_port_of_the_gateway_and_the_reverse() {
    // The engines' grpc port is the gateway's metrics port here.
    let mut spec = strict();
    spec["engine"] = json!({ "ports": { "grpc": 9090, "metrics": 8443, "admin": 29999, "rendezvous": 29500, "collective": 29501, "health": 8081 } });
    let lines = matrix(&generated(spec));
    assert!(
        !lines.contains(&"prometheus -> engine g0-0 9090/TCP".to_owned()),
        "{lines:?}"
    );
    assert!(
        !lines.contains(&"prometheus -> gateway 8443/TCP".to_owned()),
        "{lines:?}"
    );
    assert!(
        lines.contains(&"prometheus -> engine g0-0 8443/TCP".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn open_mode_makes_no_policy() {
    assert!(generated(json!({ "network": { "mode": "Open" } })).is_empty());
}

#[test]
fn what_must_work_is_written_before_what_closes_everything() {
    let names: Vec<_> = generated(strict())
        .into_iter()
        .filter_map(|p| p.metadata.name)
        .collect();
    assert_eq!(names.first().map(String::as_str), Some("chat-from-gateway"));
    assert_eq!(names.last().map(String::as_str), Some("chat-deny"));
}

#[test]
fn the_order_of_writing_is_the_rank_and_deletion_keeps_inference_going() {
    let service = fake::service(strict());
    let settings = Settings {
        alpha_topology: true,
        ..Settings::default()
    };
    let validated = validate(&service, &settings).unwrap();
    let mut all = generated(strict());
    let rank = |p: &NetworkPolicy| {
        kvasir_operator_core::build::policy::rank(&validated, p.metadata.name.as_deref().unwrap())
    };
    assert!(all.is_sorted_by_key(rank));
    let find = |name: &str| endpoints().into_iter().find(|e| e.name == name).unwrap();
    while all.pop().is_some() {
        assert!(allowed(
            &all,
            &find("gateway"),
            &find("engine g0-0"),
            50051,
            "TCP"
        ));
        assert!(allowed(&all, &find("client"), &find("gateway"), 8443, "TCP"));
    }
}

#[test]
fn after_each_policy_written_in_order_inference_goes_on() {
    // While the policies are being written, a request on its way from a client to an engine is never cut off for good by a
    // policy whose counterpart isn't there yet: the gateway may be closed only by the policy that lets clients in.
    let all = generated(json!({}));
    let find = |name: &str| endpoints().into_iter().find(|e| e.name == name).unwrap();
    for written in 0..=all.len() {
        let now = &all[..written];
        assert!(
            allowed(now, &find("gateway"), &find("engine g0-0"), 50051, "TCP"),
            "after {written} policies"
        );
        assert!(
            allowed(now, &find("client"), &find("gateway"), 8443, "TCP"),
            "after {written} policies"
        );
    }
}

/// The policies of three services: `chat` has a gateway, `guest` uses it, `other` has its own.
fn of_three(guest: Value) -> Vec<NetworkPolicy> {
    let all = [
        fake::other("chat", 0, json!({})),
        fake::other("guest", 1, guest),
        fake::other("other", 2, json!({})),
    ];
    let settings = Settings::default();
    let children = all.iter().flat_map(|service| {
        let validated = validate(service, &settings).unwrap();
        let joined = sharing::join(service, validated, &all, &settings).unwrap();
        policies(&joined, &[0], &settings)
    });
    children
        .map(|child| serde_json::from_value(child.object).unwrap())
        .collect()
}

fn pods_of_three() -> Vec<Endpoint> {
    let part = |name: &'static str, address: &str, service: &str, component: &str| {
        pod(
            name,
            "team",
            address,
            &[
                ("kvasir.dev/service", service),
                ("kvasir.dev/component", component),
            ],
        )
    };
    vec![
        part("chat's gateway", "10.2.0.1", "chat", "gateway"),
        part("chat's engine", "10.2.0.2", "chat", "engine"),
        part("guest's engine", "10.2.0.3", "guest", "engine"),
        part("other's gateway", "10.2.0.4", "other", "gateway"),
        part("other's engine", "10.2.0.5", "other", "engine"),
        pod("client", "team", "10.2.0.6", &[("app", "client")]),
    ]
}

/// Who reaches which engine on that port.
fn reached(policies: &[NetworkPolicy], port: i32) -> Vec<String> {
    let all = pods_of_three();
    let engines = all.iter().filter(|to| to.name.ends_with("engine"));
    let pairs = engines.flat_map(|to| all.iter().map(move |from| (from, to)));
    let open = pairs.filter(|(from, to)| from.name != to.name && allowed(policies, from, to, port, "TCP"));
    let mut lines: Vec<_> = open
        .map(|(from, to)| format!("{} -> {}", from.name, to.name))
        .collect();
    lines.sort();
    lines
}

#[test]
fn a_shared_gateway_reaches_its_guests_engines_and_no_others_and_nobody_else_does() {
    let own = [
        "chat's gateway -> chat's engine",
        "other's gateway -> other's engine",
    ];
    let mut shared = own.to_vec();
    shared.insert(1, "chat's gateway -> guest's engine");
    assert_eq!(reached(&of_three(fake::behind("chat")), 50051), shared);
    // Without the reference neither side opens anything.
    let alone = json!({ "gateway": { "enabled": false } });
    assert_eq!(reached(&of_three(alone), 50051), own);
}

#[test]
fn a_guests_own_port_is_the_one_that_is_open() {
    let mut guest = fake::behind("chat");
    guest["engine"] = json!({ "ports": { "grpc": 50077 } });
    let all = of_three(guest);
    assert_eq!(reached(&all, 50077), ["chat's gateway -> guest's engine"]);
    assert!(!reached(&all, 50051).contains(&"chat's gateway -> guest's engine".to_owned()));
}

#[test]
fn a_guest_whose_host_is_not_there_yet_is_closed_to_everybody_else_and_open_to_it() {
    let guest = fake::other("guest", 1, fake::behind("chat"));
    let settings = Settings::default();
    let joined = sharing::join(&guest, validate(&guest, &settings).unwrap(), [], &settings).unwrap();
    let all: Vec<NetworkPolicy> = policies(&joined, &[0], &settings)
        .into_iter()
        .map(|child| serde_json::from_value(child.object).unwrap())
        .collect();
    let to_guest: Vec<_> = reached(&all, 50051)
        .into_iter()
        .filter(|line| line.ends_with("guest's engine"))
        .collect();
    assert_eq!(to_guest, ["chat's gateway -> guest's engine"]);
}
