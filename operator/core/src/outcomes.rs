//! How requests ended lately, from counters that only grow and begin anew with each engine process.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

/// Most readings that are kept; older ones than the window are dropped anyway.
const MOST_READINGS: usize = 1024;

/// Requests that ended, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// All but those that clients ended.
    pub finished: u64,
    /// Those of them that failed by the engine's fault; never more.
    pub failed: u64,
}

impl Outcomes {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            finished: self.finished.saturating_add(other.finished),
            failed: self.failed.saturating_add(other.failed),
        }
    }

    /// What came since `before`; everything where the counters began anew.
    fn since(self, before: Self) -> Self {
        let begun_anew = self.finished < before.finished || self.failed < before.failed;
        let before = if begun_anew { Self::default() } else { before };
        let finished = self.finished - before.finished;
        Self {
            finished,
            failed: (self.failed - before.failed).min(finished),
        }
    }

    /// Failed requests in permille of all, at most 1000; nothing while fewer than `least` (at least one) have ended.
    pub fn failed_permille(self, least: u64) -> Option<u64> {
        (self.finished >= least.max(1)).then(|| {
            let permille = u128::from(self.failed) * 1000 / u128::from(self.finished);
            u64::try_from(permille).unwrap_or(1000).min(1000)
        })
    }
}

/// Readings of one engine's counters.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    last: Outcomes,
    /// What came between two readings, with the time of the later one, oldest first.
    steps: VecDeque<(Timestamp, Outcomes)>,
}

impl Readings {
    /// Of an engine that is known since it began to serve: its first reading counts from zero.
    pub fn from_the_beginning() -> Self {
        Self::default()
    }

    /// Of an engine that served before anybody looked: what it counted until now is of unknown age and doesn't count.
    pub fn from_now(counted: Outcomes) -> Self {
        Self {
            last: counted,
            steps: VecDeque::new(),
        }
    }

    /// Takes a reading, and forgets what is older than `window`.
    pub fn note(&mut self, counted: Outcomes, window: SignedDuration, now: Timestamp) {
        let step = counted.since(self.last);
        self.last = counted;
        if step != Outcomes::default() {
            self.steps.push_back((now, step));
        }
        let is_over = |at: Timestamp| now.duration_since(at) > window;
        while self.steps.front().is_some_and(|(at, _)| is_over(*at)) || self.steps.len() > MOST_READINGS {
            self.steps.pop_front();
        }
    }

    /// What ended within the window before the last reading.
    pub fn recent(&self) -> Outcomes {
        self.steps
            .iter()
            .fold(Outcomes::default(), |sum, (_, step)| sum.plus(*step))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: SignedDuration = SignedDuration::from_secs(60);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + seconds).unwrap()
    }

    fn outcomes(finished: u64, failed: u64) -> Outcomes {
        Outcomes { finished, failed }
    }

    #[test]
    fn what_is_older_than_the_window_does_not_count() {
        let mut readings = Readings::from_the_beginning();
        readings.note(outcomes(10, 10), WINDOW, at(0));
        readings.note(outcomes(30, 10), WINDOW, at(60));
        assert_eq!(readings.recent(), outcomes(30, 10));
        readings.note(outcomes(30, 10), WINDOW, at(61));
        assert_eq!(readings.recent(), outcomes(20, 0));
    }

    #[test]
    fn an_engine_that_began_anew_counts_from_zero() {
        let mut readings = Readings::from_the_beginning();
        readings.note(outcomes(100, 1), WINDOW, at(0));
        readings.note(outcomes(4, 2), WINDOW, at(10));
        assert_eq!(readings.recent(), outcomes(104, 3));
    }

    #[test]
    fn what_was_counted_before_anybody_looked_does_not_count() {
        let mut readings = Readings::from_now(outcomes(1_000_000, 500_000));
        readings.note(outcomes(1_000_010, 500_001), WINDOW, at(0));
        assert_eq!(readings.recent(), outcomes(10, 1));
    }

    #[test]
    fn a_share_needs_a_minimum_of_requests_and_never_exceeds_all() {
        assert_eq!(outcomes(19, 19).failed_permille(20), None);
        assert_eq!(outcomes(0, 0).failed_permille(0), None);
        assert_eq!(outcomes(20, 1).failed_permille(20), Some(50));
        assert_eq!(outcomes(u64::MAX, u64::MAX).failed_permille(1), Some(1000));
        assert_eq!(outcomes(1, 7).failed_permille(1), Some(1000));
    }

    proptest! {
        /// Whatever is read and when, the window holds exactly what came within it, and failures never exceed all.
        #[test]
        fn the_window_is_the_sum_of_what_came_within_it(
            steps in prop::collection::vec((0..40i64, 0..50u64, 0..50u64, prop::bool::weighted(0.1)), 1..60),
        ) {
            let mut readings = Readings::from_the_beginning();
            let (mut now, mut counted) = (0, outcomes(0, 0));
            let mut all = Vec::new();
            for (pause, finished, failed, restarts) in steps {
                now += pause;
                let step = outcomes(finished, failed.min(finished));
                // A process that began anew is noticed when it has counted less than the one before.
                if restarts && step.finished < counted.finished {
                    counted = outcomes(0, 0);
                }
                counted = counted.plus(step);
                all.push((now, step));
                readings.note(counted, WINDOW, at(now));
                let expected = all
                    .iter()
                    .filter(|(at, _)| now - at <= 60)
                    .fold(outcomes(0, 0), |sum, (_, step)| sum.plus(*step));
                prop_assert_eq!(readings.recent(), expected);
                prop_assert!(readings.recent().failed <= readings.recent().finished);
            }
        }
    }
}
