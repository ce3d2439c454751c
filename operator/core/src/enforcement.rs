//! Whether the cluster's network enforces the policies, judged by what the operator's own pod reaches.
//!
//! The operator is a stranger to every service: policies admit it to the engines' admin port and to nothing else. So it knocks at every
//! port of every ready pod ([`doors`]), and [`judge`] compares what it found with what the policies say:
//!
//! - The admin port is the positive control: it must connect. Otherwise refusals elsewhere say nothing about policies, because some networks
//!   refuse as if nobody listened, and others drop.
//! - A port of a ready pod has a listener: engine and gateway end when they can't have one of their ports. Ranks of a group of one have no
//!   listeners on the ranks' ports, so a refusal there proves nothing, and neither does any answer where the spec may admit the operator
//!   itself. Such ports are named as not verified.
//!
//! Policies take a moment to reach a new pod, so a port that connects is knocked at again before the network is blamed: [`Suspicion`].

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use kvasir_operator_api::{LabelSelector, NetworkMode, Peer, labels};

use crate::build::gateway::{GATEWAY_PORT, METRICS_PORT};
use crate::observed::PodView;
use crate::settings::Settings;
use crate::validate::Validated;

/// A port that the operator tries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// Where.
    pub address: SocketAddr,
    /// The pod.
    pub pod: String,
    /// The port's name.
    pub name: &'static str,
    /// What the policies say of the operator.
    pub expected: Expected,
}

/// What must happen at a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It opens: the positive control.
    Open,
    /// It stays closed, and somebody listens behind it.
    Closed,
    /// It stays closed, and nobody need listen behind it: a refusal proves nothing.
    ClosedOrEmpty,
    /// The spec may admit the operator: nothing follows from what happens.
    Either,
}

/// What the operator found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Every port that could be verified was refused.
    Enforced {
        /// Names of ports of which a refusal proves nothing.
        unverified: BTreeSet<&'static str>,
    },
    /// Ports connected that policies close.
    Ignored {
        /// Pod and port of the first few.
        reached: Vec<String>,
    },
    /// It can't be said.
    Unknown {
        /// Why.
        why: String,
    },
}

/// Most ports that a message names.
const MOST_NAMED: usize = 3;

/// The ports of all ready pods. None in mode Open.
pub fn doors(service: &Validated, pods: &[(PodView, Option<String>)], settings: &Settings) -> Vec<Door> {
    if service.spec.network.mode == NetworkMode::Open {
        return Vec::new();
    }
    let ready = pods.iter().filter(|(pod, _)| pod.ready && !pod.deleting);
    let reachable = ready.filter_map(|(pod, address)| Some((pod, address.as_ref()?.parse().ok()?)));
    let mut doors: Vec<Door> = reachable
        .flat_map(|(pod, address)| of_pod(service, pod, address, settings))
        .collect();
    doors.sort_by(|a, b| (&a.pod, a.address.port()).cmp(&(&b.pod, b.address.port())));
    doors
}

fn of_pod(service: &Validated, pod: &PodView, address: IpAddr, settings: &Settings) -> Vec<Door> {
    let may_measure = service.spec.network.monitoring.as_ref().is_some_and(|peer| {
        may_select(
            peer.namespace_selector.as_ref(),
            peer.pod_selector.as_ref(),
            service,
            settings,
        )
    });
    let metrics = unless(may_measure);
    let door = |(name, port, expected): (&'static str, i32, Expected)| {
        let port = u16::try_from(port).ok()?;
        Some(Door {
            address: SocketAddr::new(address, port),
            pod: pod.name.clone(),
            name,
            expected,
        })
    };
    let ports = &service.spec.engine.ports;
    let all = if pod.is_gateway {
        vec![
            ("https", GATEWAY_PORT, unless(may_be_client(service, settings))),
            ("gateway metrics", METRICS_PORT, metrics),
        ]
    } else if pod.group.is_some() {
        let ranks = if service.shape.pods() > 1 {
            Expected::Closed
        } else {
            Expected::ClosedOrEmpty
        };
        vec![
            ("admin", ports.admin, Expected::Open),
            ("grpc", ports.grpc, Expected::Closed),
            ("rendezvous", ports.rendezvous, ranks),
            ("collective", ports.collective, ranks),
            ("metrics", ports.metrics, metrics),
        ]
    } else {
        Vec::new()
    };
    all.into_iter().filter_map(door).collect()
}

fn unless(may_enter: bool) -> Expected {
    if may_enter {
        Expected::Either
    } else {
        Expected::Closed
    }
}

fn may_be_client(service: &Validated, settings: &Settings) -> bool {
    let peers = &service.spec.network.allowed_clients;
    let may_enter = |peer: &Peer| {
        // A range of addresses may contain the operator's.
        peer.ip_block.is_some()
            || may_select(
                peer.namespace_selector.as_ref(),
                peer.pod_selector.as_ref(),
                service,
                settings,
            )
    };
    if peers.is_empty() {
        service.namespace == settings.operator_namespace
    } else {
        peers.iter().any(may_enter)
    }
}

/// Whether the selectors may be about the operator's pod, of which two labels are known.
fn may_select(
    namespaces: Option<&LabelSelector>,
    pods: Option<&LabelSelector>,
    service: &Validated,
    settings: &Settings,
) -> bool {
    let fits = |selector: &LabelSelector, key: &str, value: &str| {
        selector
            .match_labels
            .get(key)
            .is_none_or(|wanted| wanted == value)
    };
    let namespace = match namespaces {
        None => service.namespace == settings.operator_namespace,
        Some(selector) => fits(selector, labels::NAMESPACE_NAME, &settings.operator_namespace),
    };
    namespace && pods.is_none_or(|selector| fits(selector, labels::NAME, &settings.operator_name))
}

/// What follows from which doors opened.
pub fn judge(found: &[(Door, bool)]) -> Enforcement {
    let reached: Vec<String> = found
        .iter()
        .filter(|(door, opened)| {
            *opened && matches!(door.expected, Expected::Closed | Expected::ClosedOrEmpty)
        })
        .map(|(door, _)| format!("port {} ({}) of {}", door.address.port(), door.name, door.pod))
        .collect();
    if !reached.is_empty() {
        let mut named: Vec<String> = reached.iter().take(MOST_NAMED).cloned().collect();
        if reached.len() > MOST_NAMED {
            named.push(format!("{} more", reached.len() - MOST_NAMED));
        }
        return Enforcement::Ignored { reached: named };
    }
    let controls = || found.iter().filter(|(door, _)| door.expected == Expected::Open);
    if controls().next().is_none() {
        return unknown("no engine is ready yet".to_owned());
    }
    if let Some((door, _)) = controls().find(|(_, opened)| !opened) {
        return unknown(format!(
            "the operator can't reach its own port {} of {}, so refusals of other ports prove nothing",
            door.address.port(),
            door.pod
        ));
    }
    let proves_nothing = |door: &Door| matches!(door.expected, Expected::ClosedOrEmpty | Expected::Either);
    let unverified = found.iter().filter(|(door, _)| proves_nothing(door));
    Enforcement::Enforced {
        unverified: unverified.map(|(door, _)| door.name).collect(),
    }
}

fn unknown(why: String) -> Enforcement {
    Enforcement::Unknown { why }
}

/// Blames the network only when two visits in a row say the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspicion {
    is_doubtful: bool,
}

impl Suspicion {
    /// What of a visit counts; nothing if it must be repeated first.
    pub fn weigh(&mut self, found: Enforcement) -> Option<Enforcement> {
        let is_bad = matches!(found, Enforcement::Ignored { .. });
        let counts = !is_bad || self.is_doubtful;
        self.is_doubtful = is_bad;
        counts.then_some(found)
    }

    /// Whether the next visit should come soon.
    pub fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }
}
