//! All addresses of a name, as a headless service has them.
//!
//! A name server doesn't say which pods they are and whether they drain; an address that is gone from its answer is gone. A failure, which
//! is also what a name without addresses looks like, changes nothing: engines that are gone refuse connections, and that is noticed there.

use std::time::Duration;

use kvasir_config::gateway::DnsConfig;
use tokio::sync::watch;

use super::{Target, Targets};

/// Longest look-up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves the name again and again.
pub(super) async fn follow(config: DnsConfig, targets: watch::Sender<Targets>) {
    let interval = Duration::from_secs(config.interval_seconds.max(1).into());
    loop {
        let lookup = tokio::net::lookup_host((config.name.as_str(), config.port.get()));
        match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(Ok(addresses)) => super::publish(&targets, Targets::new(addresses.map(Target::at))),
            Ok(Err(error)) => {
                tracing::warn!(name = config.name, %error, "can't resolve engines; known ones stay");
            }
            Err(_) => tracing::warn!(
                name = config.name,
                "resolving engines took too long; known ones stay"
            ),
        }
        tokio::time::sleep(interval).await;
    }
}
