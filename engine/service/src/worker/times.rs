//! Where the time of steps goes, as histograms.

use std::time::Duration;

use kvasir_client::DURATION_BOUNDS_US;
use kvasir_client::types::{Durations, StepTimes};

/// How long one step spent where; the wire's `StepTimes` says what each means.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct StepTime {
    pub(crate) schedule: Duration,
    pub(crate) launch: Duration,
    pub(crate) execute: Duration,
    pub(crate) wait: Duration,
    pub(crate) complete: Duration,
    pub(crate) deliver: Duration,
}

/// One histogram for each part.
#[derive(Clone, Debug, Default)]
pub(super) struct Histograms {
    schedule: Histogram,
    launch: Histogram,
    execute: Histogram,
    wait: Histogram,
    complete: Histogram,
    deliver: Histogram,
}

#[derive(Clone, Debug, Default)]
struct Histogram {
    /// Not cumulative.
    counts: [u64; DURATION_BOUNDS_US.len() + 1],
    sum_ns: u64,
}

impl Histograms {
    pub(super) fn observe(&mut self, time: &StepTime) {
        let StepTime {
            schedule,
            launch,
            execute,
            wait,
            complete,
            deliver,
        } = *time;
        self.schedule.observe(schedule);
        self.launch.observe(launch);
        self.execute.observe(execute);
        self.wait.observe(wait);
        self.complete.observe(complete);
        self.deliver.observe(deliver);
    }

    pub(super) fn to_wire(&self) -> StepTimes {
        let Self {
            schedule,
            launch,
            execute,
            wait,
            complete,
            deliver,
        } = self;
        let wire = |histogram: &Histogram| Some(histogram.to_wire());
        StepTimes {
            schedule: wire(schedule),
            launch: wire(launch),
            execute: wire(execute),
            wait: wire(wait),
            complete: wire(complete),
            deliver: wire(deliver),
        }
    }
}

impl Histogram {
    fn observe(&mut self, duration: Duration) {
        // A bound counts as inside; what is a little longer is not, though it has the same number of whole microseconds.
        let within = |&bound: &u64| Duration::from_micros(bound) < duration;
        self.counts[DURATION_BOUNDS_US.partition_point(within)] += 1;
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    fn to_wire(&self) -> Durations {
        let mut cumulative = 0;
        let bucket = self.counts.iter().map(|count| {
            cumulative += count;
            cumulative
        });
        Durations {
            bucket: bucket.collect(),
            sum_ns: self.sum_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_the_first_bucket_that_holds_it() {
        let mut histogram = Histogram::default();
        for ns in [0, 5_000, 5_001, 10_000_000_000, 10_000_000_001] {
            histogram.observe(Duration::from_nanos(ns));
        }
        let wire = histogram.to_wire();
        assert_eq!(wire.bucket[..2], [2, 3]);
        assert_eq!(wire.bucket[18..], [3, 4, 5]);
        assert_eq!(wire.sum_ns, 20_000_010_002);
    }

    #[test]
    fn each_part_has_its_histogram() {
        let mut histograms = Histograms::default();
        let part = |us| Duration::from_micros(us);
        histograms.observe(&StepTime {
            schedule: part(1),
            launch: part(2),
            execute: part(3),
            wait: part(4),
            complete: part(5),
            deliver: part(6),
        });
        let StepTimes {
            schedule,
            launch,
            execute,
            wait,
            complete,
            deliver,
        } = histograms.to_wire();
        let sums = [schedule, launch, execute, wait, complete, deliver].map(|part| part.unwrap().sum_ns);
        assert_eq!(sums, [1_000, 2_000, 3_000, 4_000, 5_000, 6_000]);
    }
}
