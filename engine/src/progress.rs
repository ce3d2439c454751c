//! What a person sees while they wait: bars on standard error, or log lines where that is no terminal.

use std::io::IsTerminal;
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressStyle};

use crate::fetch::FetchEvent;

/// Is told how far fetching and loading are.
pub(crate) trait Watcher: Send + Sync {
    /// Something happened while fetching.
    fn on_fetch(&self, event: &FetchEvent<'_>);
    /// So many bytes of the weights are loaded.
    fn on_weights(&self, model: &str, done_bytes: u64, total_bytes: u64);
}

/// Shows nothing: for the library.
pub(crate) struct Silent;

impl Watcher for Silent {
    fn on_fetch(&self, _event: &FetchEvent<'_>) {}
    fn on_weights(&self, _model: &str, _done_bytes: u64, _total_bytes: u64) {}
}

/// Bars, or lines.
#[derive(Default)]
pub(crate) struct Bars {
    bar: Mutex<Option<ProgressBar>>,
}

impl Bars {
    fn update(&self, name: &str, done: u64, total: u64) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let Ok(mut bar) = self.bar.lock() else { return };
        let bar = bar.get_or_insert_with(|| bytes_bar(name, total));
        bar.set_position(done);
    }

    fn finish(&self) {
        if let Ok(mut bar) = self.bar.lock()
            && let Some(bar) = bar.take()
        {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Bars {
    fn on_fetch(&self, event: &FetchEvent<'_>) {
        match *event {
            FetchEvent::Started {
                file,
                total_bytes,
                resumed_bytes,
            } => {
                self.finish();
                let total = kvasir_config::ByteCount(total_bytes).to_string();
                tracing::info!(file, %total, resumed_bytes, "fetching");
                self.update(file, resumed_bytes, total_bytes);
            }
            FetchEvent::Advanced {
                file,
                done_bytes,
                total_bytes,
                ..
            } => self.update(file, done_bytes, total_bytes),
            FetchEvent::Finished { file } => {
                self.finish();
                tracing::info!(file, "fetched");
            }
            FetchEvent::Waiting { file } => tracing::info!(file, "another process fetches it; waiting"),
            FetchEvent::Note(text) => tracing::info!("{text}"),
        }
    }

    fn on_weights(&self, model: &str, done_bytes: u64, total_bytes: u64) {
        self.update(model, done_bytes, total_bytes);
        if done_bytes >= total_bytes {
            self.finish();
        }
    }
}

/// A bar over bytes: `name [=====>    ] 61.20 MiB/93.81 MiB 45.00 MiB/s 1s`.
fn bytes_bar(name: &str, total_bytes: u64) -> ProgressBar {
    bar(
        name,
        total_bytes,
        "{prefix} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
    )
}

/// A bar over rows: `generate [=====>    ] 12/100 rows 3.1/s 28s 410 tokens/s`.
pub(crate) fn rows_bar(total: Option<u64>) -> ProgressBar {
    if let Some(total) = total {
        return bar(
            "generate",
            total,
            "{prefix} [{bar:30}] {pos}/{len} rows {per_sec} {eta} {msg}",
        );
    }
    let bar = ProgressBar::new_spinner();
    bar.set_style(style("{spinner} {pos} rows {per_sec} {msg}"));
    bar
}

fn bar(name: &str, total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    bar.set_style(style(template));
    bar.set_prefix(name.to_owned());
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}
