//! Progress bars on standard error. Where that is no terminal nothing is drawn: logs tell what matters.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over bytes, for loads and downloads: `name  [####  ] 61.2 MiB/93.8 MiB 45 MiB/s 1s`.
pub(crate) fn bytes_bar(name: &str, total_bytes: u64) -> ProgressBar {
    bar(name, total_bytes, "{prefix} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}")
}

/// A bar over rows: `generate [####  ] 12/100 rows 3.1/s 28s 410 tokens/s`.
pub(crate) fn rows_bar(total: Option<u64>) -> ProgressBar {
    match total {
        Some(total) => bar("generate", total, "{prefix} [{bar:30}] {pos}/{len} rows {per_sec} {eta} {msg}"),
        None => {
            let bar = ProgressBar::new_spinner();
            bar.set_style(style("{spinner} {pos} rows {per_sec} {msg}"));
            bar
        }
    }
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
