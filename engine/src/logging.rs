//! Log lines on standard error.

use std::io::IsTerminal;

use kvasir_config::{LogLevel, ProcessConfig};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging. Libraries of others speak from `warn` upwards only. A second call has no effect.
pub(crate) fn start(config: &ProcessConfig) {
    start_at(config.log_level.value, config.json.value);
}

/// As `start`, of this level, with one JSON object per line or as text.
pub(crate) fn start_at(level: LogLevel, json: bool) {
    let level = match level {
        LogLevel::Trace => Level::TRACE,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warn => Level::WARN,
        LogLevel::Error => Level::ERROR,
    };
    let filter = Targets::new()
        .with_default(level.min(Level::WARN))
        .with_target("kvasir", level);
    let registry = tracing_subscriber::registry().with(filter);
    let started = if json {
        registry
            .with(
                fmt::layer()
                    .json()
                    .flatten_event(true)
                    .with_writer(std::io::stderr),
            )
            .try_init()
    } else {
        let layer = fmt::layer()
            .with_target(false)
            .with_ansi(has_colours(&std::io::stderr()));
        registry.with(layer.with_writer(std::io::stderr)).try_init()
    };
    if started.is_err() {
        tracing::debug!("logging was already started");
    }
}

/// Whether to colour what goes to `stream`: on a terminal, unless `NO_COLOR` is set (no-color.org).
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
