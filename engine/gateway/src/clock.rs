//! The two clocks that decisions are made by.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvasir_gateway_core::time::{Micros, UnixSeconds};
use tokio::time::Instant;

/// A monotonic clock that begins when it's made. A copy is the same clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    pub(crate) fn now(self) -> Micros {
        Micros(u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// A moment of this clock as the runtime's timers take it.
    pub(crate) fn instant(self, at: Micros) -> Instant {
        self.0 + Duration::from_micros(at.0)
    }
}

/// Seconds since 1970; 0 if the clock stands before.
pub(crate) fn unix_now() -> UnixSeconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixSeconds(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
