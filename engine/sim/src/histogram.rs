//! Percentiles of any number of values in constant memory.

use serde::Serialize;

/// Buckets per power of two: 2^10, so that a percentile is at most 1/1024 above the exact one, and exact below 2048.
const SUB_BITS: u32 = 10;

/// Counts values in buckets whose width grows with the value. At most 430 KiB, whatever is counted.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        let index = bucket(value);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.min = if self.count == 0 {
            value
        } else {
            self.min.min(value)
        };
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value such that at least this share of the values, in `(0, 1]`, is not above it (nearest rank), or the end of its bucket.
    /// Nothing without values.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Some(bucket_end(index).clamp(self.min, self.max));
            }
        }
        None
    }

    /// Of values in microseconds. Nothing without values.
    pub fn summary_ms(&self) -> Option<Summary> {
        let ms = |share| Some(self.percentile(share)? as f64 / 1000.0);
        Some(Summary {
            count: self.count,
            mean: self.sum as f64 / self.count as f64 / 1000.0,
            p50: ms(0.5)?,
            p90: ms(0.9)?,
            p95: ms(0.95)?,
            p99: ms(0.99)?,
            max: self.max as f64 / 1000.0,
        })
    }
}

/// What is told of a distribution, in milliseconds. Percentiles are nearest ranks, at most 0.1 % above the exact ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Values.
    pub count: u64,
    /// Exact.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Exact.
    pub max: f64,
}

/// The first 2^11 buckets hold one value each; every later 2^10 buckets are one power of two.
fn bucket(value: u64) -> usize {
    let shift = value.max(1).ilog2().saturating_sub(SUB_BITS);
    ((u64::from(shift) << SUB_BITS) + (value >> shift)) as usize
}

/// The largest value of a bucket.
fn bucket_end(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index >> SUB_BITS).saturating_sub(1);
    let top = index - (shift << SUB_BITS);
    (u128::from(top + 1) << shift).saturating_sub(1) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_of_small_values_are_nearest_ranks() {
        let mut histogram = Histogram::default();
        for value in 1..=200 {
            histogram.add(value);
        }
        let found = [0.005, 0.5, 0.99, 0.991, 1.0].map(|share| histogram.percentile(share));
        assert_eq!(found, [1, 100, 198, 199, 200].map(Some));
    }

    #[test]
    fn nothing_has_no_percentile() {
        assert_eq!(Histogram::default().percentile(0.5), None);
        assert_eq!(Histogram::default().summary_ms(), None);
    }

    #[test]
    fn the_memory_is_bounded_for_any_value() {
        let mut histogram = Histogram::default();
        histogram.add(u64::MAX);
        assert_eq!(histogram.counts.len(), 55 << SUB_BITS);
        assert_eq!(histogram.percentile(0.5), Some(u64::MAX));
    }

    #[test]
    fn a_summary_is_in_milliseconds() {
        let mut histogram = Histogram::default();
        for value in [1000, 2000, 6000] {
            histogram.add(value);
        }
        let summary = histogram.summary_ms().unwrap();
        assert_eq!((summary.count, summary.mean, summary.max), (3, 3.0, 6.0));
        assert!((2.0..2.002).contains(&summary.p50));
    }

    proptest! {
        #[test]
        fn percentiles_are_at_most_a_thousandth_above_the_exact_ones(
            mut values in proptest::collection::vec((0_u32..64, any::<u64>()).prop_map(|(shift, value)| value >> shift), 1..200),
            share in 0.001_f64..=1.0,
        ) {
            let mut histogram = Histogram::default();
            for &value in &values {
                histogram.add(value);
            }
            values.sort_unstable();
            let rank = ((share * values.len() as f64).ceil() as usize).max(1);
            let exact = values[rank - 1];
            let found = histogram.percentile(share).unwrap();
            prop_assert!(found >= exact && found - exact <= exact / 1024, "{found} for {exact}");
        }
    }
}
