//! How long to wait after the n-th failure in a row.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Pause after the first failure.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause.
pub(crate) const LONGEST: Duration = Duration::from_mins(5);
/// Pause after the first conflict: somebody else wrote, and the watch is about to say what.
const CONFLICT: Duration = Duration::from_millis(50);
/// Longest pause after conflicts.
const LONGEST_CONFLICT: Duration = Duration::from_secs(5);

/// Failures in a row, by the uid of the object.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: Mutex<BTreeMap<String, u32>>,
    seed: RandomState,
}

impl Backoff {
    /// Counts a failure; how long to wait.
    pub(crate) fn failed(&self, uid: &str, is_conflict: bool) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(uid.to_owned()).or_default();
        *count = count.saturating_add(1);
        let spread = self.seed.hash_one((uid, *count));
        let (first, longest) = if is_conflict {
            (CONFLICT, LONGEST_CONFLICT)
        } else {
            (FIRST, LONGEST)
        };
        wait(first, longest, *count, spread)
    }

    /// The object is well or gone.
    pub(crate) fn forget(&self, uid: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.remove(uid);
    }
}

/// Doubles with each failure up to `longest`; up to a quarter less by chance, so that many objects that failed together
/// don't come back together.
fn wait(first: Duration, longest: Duration, count: u32, spread: u64) -> Duration {
    let doubled = first.saturating_mul(1_u32.checked_shl(count.saturating_sub(1)).unwrap_or(u32::MAX));
    let full = doubled.min(longest);
    let less = u32::try_from(spread % 256).unwrap_or(0);
    full.saturating_sub(full * less / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_never_shrink_by_more_than_a_quarter() {
        for spread in [0, 1, 77, 255, u64::MAX] {
            let mut full = FIRST;
            for count in 1..80 {
                let pause = wait(FIRST, LONGEST, count, spread);
                assert!(pause <= full && pause >= full * 3 / 4, "{count}: {pause:?}");
                full = (full * 2).min(LONGEST);
            }
        }
    }

    #[test]
    fn success_starts_over() {
        let backoff = Backoff::default();
        for _ in 0..10 {
            backoff.failed("a", false);
        }
        assert!(backoff.failed("a", false) > Duration::from_mins(3));
        assert!(backoff.failed("b", false) <= FIRST);
        backoff.forget("a");
        assert!(backoff.failed("a", false) <= FIRST);
        assert!(backoff.failed("c", true) <= CONFLICT);
    }
}
