//! Log lines on standard error.

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging. Libraries of others speak only when something is wrong. A second call has no effect.
pub(crate) fn start(level: Level, json: bool) {
    let filter = Targets::new()
        .with_default(level.min(Level::WARN))
        // The client reports each refused request as an error of its own; what matters of it is in our messages.
        .with_target(
            "kube_client::client::builder",
            tracing_subscriber::filter::LevelFilter::OFF,
        )
        .with_target("kvasir", level);
    let registry = tracing_subscriber::registry().with(filter);
    let started = if json {
        let layer = fmt::layer().json().flatten_event(true);
        registry.with(layer.with_writer(std::io::stderr)).try_init()
    } else {
        let layer = fmt::layer().with_target(false).with_ansi(false);
        registry.with(layer.with_writer(std::io::stderr)).try_init()
    };
    if started.is_err() {
        tracing::debug!("logging was already started");
    }
}
