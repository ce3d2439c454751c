//! How often something may be told.

use std::time::{Duration, Instant};

/// Lets at most one piece of news through per interval; the first one at once. It reads no clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    interval: Duration,
    last: Option<Instant>,
}

impl Pacer {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, last: None }
    }

    /// When the next one may go; `None` is at once.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.last.map(|last| last + self.interval)
    }

    /// Whether one may go at `now`. If so, it counts as gone.
    pub(crate) fn pass(&mut self, now: Instant) -> bool {
        let passes = self.next().is_none_or(|next| next <= now);
        if passes {
            self.last = Some(now);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_window_of_a_second_sees_more_than_ten() {
        let start = Instant::now();
        let mut pacer = Pacer::new(Duration::from_millis(100));
        let passed: Vec<u64> = (0..5000)
            .filter(|&ms| pacer.pass(start + Duration::from_millis(ms)))
            .collect();
        assert_eq!(passed[0], 0);
        for window in passed.windows(11) {
            assert!(window[10] - window[0] >= 1000, "{window:?}");
        }
        assert_eq!(passed.len(), 50);
    }

    #[test]
    fn a_clock_that_stands_still_lets_one_through() {
        let now = Instant::now();
        let mut pacer = Pacer::new(Duration::from_millis(100));
        assert!(pacer.pass(now));
        assert!(!pacer.pass(now));
        assert_eq!(pacer.next(), Some(now + Duration::from_millis(100)));
    }
}
