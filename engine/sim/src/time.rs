//! Virtual time.

use std::fmt;

use kvasir_engine_core::Micros;

/// Nanoseconds since the start of a simulation. 64 bits hold 584 years.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct SimTime(pub u64);

/// Times beyond this, about 31 years, are refused where they enter.
pub const MAX_SECONDS: f64 = 1e9;

impl SimTime {
    /// The nearest moment. What isn't a time (negative, not a number) is the start; what is too late is the last moment there is.
    pub fn from_seconds(seconds: f64) -> Self {
        // A cast from float saturates, and takes what is no number for 0.
        Self((seconds * 1e9).round() as u64)
    }

    /// Seconds since the start.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// On the scheduler's clock.
    pub fn as_micros(self) -> Micros {
        Micros(self.0 / 1000)
    }

    /// The moment this many seconds later.
    #[must_use]
    pub fn after(self, seconds: f64) -> Self {
        Self(self.0.saturating_add(Self::from_seconds(seconds).0))
    }

    /// Whole microseconds, rounded, since an earlier moment; 0 since a later one.
    pub fn micros_since(self, earlier: Self) -> u64 {
        let nanos = self.0.saturating_sub(earlier.0);
        nanos / 1000 + u64::from(nanos % 1000 >= 500)
    }

    /// Seconds since an earlier moment; 0 since a later one.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        Self(self.0.saturating_sub(earlier.0)).as_seconds()
    }
}

/// In seconds.
impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s", self.as_seconds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_time_is_the_start_or_the_end_and_never_a_panic() {
        assert_eq!(SimTime::from_seconds(f64::NAN), SimTime(0));
        assert_eq!(SimTime::from_seconds(-1.0), SimTime(0));
        assert_eq!(SimTime::from_seconds(f64::INFINITY), SimTime(u64::MAX));
        assert_eq!(SimTime(u64::MAX).after(1.0), SimTime(u64::MAX));
        assert_eq!(SimTime(5).micros_since(SimTime(9)), 0);
    }

    #[test]
    fn microseconds_are_rounded() {
        assert_eq!(SimTime(1_499).micros_since(SimTime(0)), 1);
        assert_eq!(SimTime(1_500).micros_since(SimTime(0)), 2);
        assert_eq!(SimTime::from_seconds(0.001_234), SimTime(1_234_000));
    }
}
