//! Where engines are, kept up to date.
//!
//! [`Discovery`] follows one of the sources that a configuration can name and publishes what it found as a whole: a [`Targets`] value replaces
//! the one before, so that a reader that was busy misses steps and never a result. Whether an engine works is not decided here; the pool
//! connects, and an engine says itself which epoch and rank it is.
//!
//! A source that fails changes nothing: engines that were known stay known until the source answers again, because traffic to engines
//! that work must not stop for a name server's or an API server's sake.

mod dns;
mod slices;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;

use kvasir_config::gateway::EnginesConfig;
use kvasir_gateway_core::routing::Revision;
use tokio::sync::watch as channel;
use tokio_util::task::AbortOnDropHandle;

use crate::api_server::{ApiServer, ApiServerError};

/// An engine's gRPC port, and what the source says about the pod behind it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Target {
    /// The port.
    pub address: SocketAddr,
    /// The unique id of the pod; `None` where the source knows only addresses.
    pub pod_uid: Option<Arc<str>>,
    /// The pod's name, for logs.
    pub pod_name: Option<Arc<str>>,
    /// The group of ranks that it belongs to, from the source's labels.
    pub group: Option<Arc<str>>,
    /// The revision that it serves, from the source's labels; `None` where only the engine can tell. What part of the requests a revision
    /// takes is in the configuration.
    pub revision: Option<Revision>,
    /// Whether it may be given requests.
    pub state: TargetState,
}

/// What a source says of an engine's readiness. Whoever is no target any more is gone: its connection can be closed.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum TargetState {
    /// It takes requests, as far as the source knows.
    Ready,
    /// It takes no new requests for now; those that run there go on.
    NotReady,
    /// It is about to end and takes no new requests; those that run there may finish.
    Draining,
}

/// All engines that a source knows.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Targets {
    /// In the order of their addresses, each address once.
    pub all: Arc<[Target]>,
    /// Whether the source has answered at least once. Until then nobody knows whether there are engines.
    pub is_known: bool,
}

/// Follows a source until it is dropped.
#[derive(Debug)]
pub struct Discovery {
    targets: channel::Receiver<Targets>,
    /// Keeps the channel of a source that never changes open.
    _sender: Option<channel::Sender<Targets>>,
    _task: Option<AbortOnDropHandle<()>>,
}

impl Discovery {
    /// Starts to follow the source of a checked configuration. Call it within a runtime. `api_server` makes the way to the cluster's API
    /// server, where the source needs it.
    ///
    /// # Errors
    /// There is no way to the API server.
    pub fn start(
        config: &EnginesConfig,
        api_server: impl FnOnce() -> Result<ApiServer, ApiServerError>,
    ) -> Result<Self, ApiServerError> {
        if let Some(dns) = config.dns.clone() {
            return Ok(Self::of_task(|targets| dns::follow(dns, targets)));
        }
        if let Some(slices) = config.endpoint_slices.clone() {
            let server = api_server()?;
            return Ok(Self::of_task(|targets| watch::follow(server, slices, targets)));
        }
        Ok(Self::of_fixed(config.fixed.iter().map(|engine| engine.address)))
    }

    /// Engines that are always there.
    pub fn of_fixed(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let (sender, targets) = channel::channel(Targets::new(addresses.into_iter().map(Target::at)));
        Self {
            targets,
            _sender: Some(sender),
            _task: None,
        }
    }

    fn of_task<F>(follow: impl FnOnce(channel::Sender<Targets>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, targets) = channel::channel(Targets::default());
        Self {
            targets,
            _sender: None,
            _task: Some(AbortOnDropHandle::new(tokio::spawn(follow(sender)))),
        }
    }

    /// The engines, and how they change.
    pub fn targets(&self) -> channel::Receiver<Targets> {
        self.targets.clone()
    }
}

/// Publishes what a source answered, if it's something else than before.
fn publish(targets: &channel::Sender<Targets>, found: Targets) {
    targets.send_if_modified(|known| {
        let is_new = *known != found;
        if is_new {
            tracing::info!(num_engines = found.all.len(), "the engines have changed");
            *known = found;
        }
        is_new
    });
}

impl Target {
    /// A target of which nothing but the address is known.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            pod_uid: None,
            pod_name: None,
            group: None,
            revision: None,
            state: TargetState::Ready,
        }
    }
}

impl Targets {
    /// What a source answered. Where an address comes twice, as it does while endpoints move from one slice to another, the readiest one stays.
    pub fn new(all: impl IntoIterator<Item = Target>) -> Self {
        let mut all: Vec<Target> = all.into_iter().collect();
        all.sort_by(|a, b| (a.address, a.state, a).cmp(&(b.address, b.state, b)));
        all.dedup_by_key(|target| target.address);
        Self {
            all: all.into(),
            is_known: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn targets_are_sorted_and_an_address_that_comes_twice_keeps_its_readiest_form() {
        let draining = Target {
            state: TargetState::Draining,
            pod_uid: Some("a".into()),
            ..Target::at(address("10.0.0.2:1"))
        };
        let ready = Target {
            pod_uid: Some("b".into()),
            ..Target::at(address("10.0.0.2:1"))
        };
        let other = Target::at(address("10.0.0.1:1"));
        let targets = Targets::new([draining, ready.clone(), other.clone()]);
        assert_eq!(*targets.all, [other, ready]);
        assert!(targets.is_known);
    }

    #[test]
    fn a_fixed_list_is_known_at_once_and_its_channel_stays_open() {
        let discovery = Discovery::of_fixed([address("127.0.0.1:2"), address("127.0.0.1:1")]);
        let targets = discovery.targets();
        assert_eq!(targets.borrow().all.len(), 2);
        assert!(!targets.has_changed().unwrap());
    }
}
