//! What a configuration says of one model: how its engines are chosen, and how requests wait for them.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use kvasir_config::gateway::{ModelConfig, RoutingPolicyConfig};
use kvasir_gateway_core::routing::{CircuitConfig, RetryConfig, Revision, RouterConfig, RoutingPolicy};
use kvasir_gateway_core::waiting::{DoorConfig, RoomConfig};

/// How long a request waits before it may go out of turn, as a part of the longest wait.
const PATIENCE_PART: u32 = 6;

/// What the core decides by for one model.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// How engines are chosen.
    pub router: RouterConfig,
    /// Characters at a prompt's beginning that count for the choice; all if there is none.
    pub prefix_chars: Option<NonZeroU32>,
    /// The header that names a session.
    pub session_header: HeaderName,
    /// How failed requests are retried.
    pub retry: RetryConfig,
    /// Revisions with their weights.
    pub revisions: Vec<(Revision, u32)>,
    /// How long requests wait.
    pub door: DoorConfig,
    /// How many.
    pub room: RoomConfig,
}

impl ModelSettings {
    /// What a checked configuration means.
    pub fn of(config: &ModelConfig) -> Self {
        let ModelConfig {
            revisions,
            routing,
            waiting,
            ..
        } = config;
        let max_wait = Duration::from_secs(waiting.max_wait_seconds.into());
        Self {
            router: RouterConfig {
                policy: routing_policy(routing.policy),
                max_index_pairs: routing.max_index_blocks.get() as usize,
                circuit: CircuitConfig::default(),
            },
            prefix_chars: routing.prefix_chars,
            session_header: session_header(routing.session_header.as_deref()),
            retry: RetryConfig {
                max_attempts: routing.max_attempts,
                ..RetryConfig::default()
            },
            revisions: revisions
                .iter()
                .map(|of| (Revision(Arc::from(of.name.as_str())), of.weight))
                .collect(),
            door: DoorConfig {
                max_wait,
                hold: Duration::from_secs(waiting.hold_seconds.into()),
                ..DoorConfig::default()
            },
            room: RoomConfig {
                capacity: waiting.capacity.get() as usize,
                patience: max_wait / PATIENCE_PART,
            },
        }
    }
}

/// What isn't the name of a header was refused when the configuration was read.
fn session_header(given: Option<&str>) -> HeaderName {
    given
        .and_then(|name| HeaderName::try_from(name).ok())
        .unwrap_or(HeaderName::from_static("x-session-id"))
}

fn routing_policy(policy: RoutingPolicyConfig) -> RoutingPolicy {
    match policy {
        RoutingPolicyConfig::PrefixAware => RoutingPolicy::PrefixAware,
        RoutingPolicyConfig::LeastKV => RoutingPolicy::LeastKv,
        RoutingPolicyConfig::LeastRequests => RoutingPolicy::LeastRequests,
        RoutingPolicyConfig::PowerOfTwoChoices => RoutingPolicy::PowerOfTwoChoices,
        RoutingPolicyConfig::RoundRobin => RoutingPolicy::RoundRobin,
        RoutingPolicyConfig::Session => RoutingPolicy::Session,
    }
}
