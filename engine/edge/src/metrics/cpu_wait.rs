//! How long this process' threads were ready to run and had no CPU: the one figure that tells a busy machine from a slow program.
//!
//! Linux counts it for each thread: the second number of `/proc/PID/task/TID/schedstat`, in nanoseconds
//! (kernel documentation, `scheduler/sched-stats`). Elsewhere, and where the kernel doesn't count, the figure is absent.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// The figure. It goes back when threads end, whose time is not counted any more; few do.
#[derive(Debug)]
pub(super) struct CpuWait;

impl Collector for CpuWait {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(nanoseconds) = waited() else {
            return Ok(());
        };
        let help = "Time in which threads of this process were ready to run and had no CPU";
        let name = "kvasir_process_cpu_wait_seconds";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(nanoseconds as f64 / 1e9).encode(metric)
    }
}

/// Of all threads; none if no thread has the figure.
fn waited() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let of_task = |task: fs::DirEntry| nanoseconds(&fs::read_to_string(task.path().join("schedstat")).ok()?);
    tasks
        .filter_map(|task| of_task(task.ok()?))
        .reduce(u64::saturating_add)
}

/// `<time running> <time waiting> <time slices>`.
fn nanoseconds(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn waiting_is_the_second_number() {
        assert_eq!(nanoseconds("120000 345 6\n"), Some(345));
        assert_eq!(nanoseconds(""), None);
        assert_eq!(nanoseconds("12 x 3"), None);
    }
}
