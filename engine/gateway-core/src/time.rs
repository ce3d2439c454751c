//! The two clocks of the caller.

use std::time::Duration;

/// Time in microseconds on a monotonic clock of the caller; only differences matter.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Micros(pub u64);

impl Micros {
    /// `later` than this moment, at most the end of time.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(later.as_micros()).unwrap_or(u64::MAX)),
        )
    }

    /// How long ago `earlier` was; nothing when it's in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Seconds since 1970-01-01 UTC, by the caller's wall clock.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct UnixSeconds(pub i64);

impl UnixSeconds {
    /// `seconds` later, at most the end of time.
    #[must_use]
    pub fn plus(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds))
    }
}
