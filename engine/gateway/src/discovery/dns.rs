//! All addresses of a name, as a headless service has them.
//!
//! A name server doesn't say which pods they are and whether they drain; an address that is gone from its answer is gone. A failure, which
//! is also what a name without addresses looks like, changes nothing: engines that are gone refuse connections, and that is noticed there.

use std::time::{Duration, Instant};

use kvasir_client::Recurring;
use kvasir_config::gateway::DnsConfig;
use tokio::sync::watch;

use super::{Target, Targets};

/// Longest look-up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves the name again and again.
pub(super) async fn follow(config: DnsConfig, targets: watch::Sender<Targets>) {
    let interval = Duration::from_secs(config.interval_seconds.max(1).into());
    let mut trouble = Recurring::default();
    let tell = |trouble: &mut Recurring, reason: &str| {
        if trouble.is_news(reason, Instant::now()) {
            tracing::warn!(
                name = config.name,
                reason,
                "can't resolve engines; known ones stay"
            );
        }
    };
    loop {
        let lookup = tokio::net::lookup_host((config.name.as_str(), config.port.get()));
        match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(Ok(addresses)) => {
                trouble.is_over();
                super::publish(&targets, Targets::new(addresses.map(Target::at)));
            }
            Ok(Err(error)) => tell(&mut trouble, &error.to_string()),
            Err(_) => tell(&mut trouble, &format!("no answer within {LOOKUP_TIMEOUT:?}")),
        }
        tokio::time::sleep(interval).await;
    }
}
