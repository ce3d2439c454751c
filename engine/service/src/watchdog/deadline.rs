//! How long a step may take before it is taken for stuck. Pure: durations in, a duration out.
//!
//! A fixed deadline is wrong either way: long enough for a prompt of a hundred thousand tokens on a slow machine, it leaves a stuck decode
//! unnoticed for minutes. So the deadline is a multiple of what steps of that size took lately, within fixed bounds. Where no step of that size
//! was seen, a smaller one is scaled up in proportion: it reads the same weights for fewer tokens, so that errs on the long side.

use std::time::Duration;

/// A step may take this many times what it is expected to take: other processes, a page fault storm, a clock that is turned down.
const FACTOR: u32 = 20;

/// And this many times, whatever the ceiling says: a step that takes as long as such steps do is not stuck.
const LEAST_FACTOR: u32 = 4;

/// A measured time lasts for about this many steps of its size.
const MEMORY: u32 = 8;

/// Bounds of the time without progress that counts as a stall.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StallLimits {
    /// At least: below it a busy machine looks like a stuck one.
    pub floor: Duration,
    /// At most, where steps of the size are known to take no more than a quarter of it.
    pub ceiling: Duration,
    /// At most where they take longer, and where nothing is known of any step; at least the ceiling.
    pub patience: Duration,
}

impl Default for StallLimits {
    /// 20 seconds, and 5 minutes for the others, which is the limit that vLLM has for any step (`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`).
    fn default() -> Self {
        Self {
            floor: Duration::from_secs(20),
            ceiling: Duration::from_mins(5),
            patience: Duration::from_mins(5),
        }
    }
}

impl StallLimits {
    /// How often to look: often enough to notice within a quarter more than the floor.
    pub(super) fn tick(&self) -> Duration {
        (self.floor / 4).clamp(Duration::from_millis(1), Duration::from_millis(500))
    }
}

/// How long steps took lately, by their number of tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// Entry `i` is for steps of `2^i` to `2^(i+1) - 1` tokens: the slowest recent one.
    slowest: [Option<Duration>; 32],
}

impl Pace {
    /// A step of this many tokens took this long.
    pub(crate) fn note(&mut self, num_tokens: usize, took: Duration) {
        let slowest = &mut self.slowest[class(num_tokens)];
        let faded = slowest.map_or(Duration::ZERO, |slowest| slowest / MEMORY * (MEMORY - 1));
        *slowest = Some(faded.max(took));
    }

    /// What a step of this many tokens may be expected to take, if any step was seen.
    fn expect(&self, num_tokens: usize) -> Option<Duration> {
        let class = class(num_tokens);
        let scaled = |smaller: usize| {
            let scale = 1u32.checked_shl((class - smaller) as u32).unwrap_or(u32::MAX);
            self.slowest[smaller].map(|took| took.saturating_mul(scale))
        };
        let from_smaller = (0..=class).rev().find_map(scaled);
        from_smaller.or_else(|| self.slowest[class..].iter().find_map(|took| *took))
    }
}

fn class(num_tokens: usize) -> usize {
    (num_tokens.max(1).ilog2() as usize).min(31)
}

/// The time until the next sign of life, while steps of these sizes are in flight. Without a step the host has something to do, which the
/// floor is enough for.
pub(crate) fn allowance(
    pace: &Pace,
    limits: &StallLimits,
    mut sizes: impl Iterator<Item = usize>,
) -> Duration {
    let expected = sizes.try_fold(Duration::ZERO, |sum, size| {
        Some(sum.saturating_add(pace.expect(size)?))
    });
    let most = limits.ceiling.max(limits.patience);
    let Some(expected) = expected else {
        return most;
    };
    // A ceiling below the floor was chosen by somebody.
    let usual = expected
        .saturating_mul(FACTOR)
        .max(limits.floor)
        .min(limits.ceiling);
    usual.max(expected.saturating_mul(LEAST_FACTOR)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StallLimits = StallLimits {
        floor: Duration::from_secs(10),
        ceiling: Duration::from_mins(5),
        patience: Duration::from_mins(5),
    };

    fn allowed(pace: &Pace, sizes: &[usize]) -> Duration {
        allowance(pace, &LIMITS, sizes.iter().copied())
    }

    #[test]
    fn what_was_never_seen_may_take_the_longest() {
        assert_eq!(allowed(&Pace::default(), &[1]), LIMITS.ceiling);
    }

    #[test]
    fn a_host_without_a_step_in_flight_has_the_floor() {
        assert_eq!(allowed(&Pace::default(), &[]), LIMITS.floor);
    }

    #[test]
    fn the_deadline_follows_steps_of_the_same_size() {
        let mut pace = Pace::default();
        pace.note(1, Duration::from_millis(10));
        pace.note(2048, Duration::from_secs(3));
        assert_eq!(allowed(&pace, &[1]), LIMITS.floor);
        assert_eq!(allowed(&pace, &[2048]), Duration::from_mins(1));
        assert_eq!(allowed(&pace, &[2048, 2048]), Duration::from_mins(2));
    }

    #[test]
    fn a_first_big_prefill_gets_time_in_proportion() {
        let mut pace = Pace::default();
        pace.note(1, Duration::from_millis(10));
        assert_eq!(allowed(&pace, &[1024]), Duration::from_millis(204_800));
        assert_eq!(allowed(&pace, &[1 << 20]), LIMITS.ceiling);
    }

    #[test]
    fn a_smaller_step_than_any_seen_is_not_slower() {
        let mut pace = Pace::default();
        pace.note(2048, Duration::from_secs(3));
        assert_eq!(allowed(&pace, &[1]), Duration::from_mins(1));
    }

    #[test]
    fn one_slow_step_is_forgotten() {
        let mut pace = Pace::default();
        pace.note(1, Duration::from_secs(30));
        assert_eq!(allowed(&pace, &[1]), LIMITS.ceiling);
        for _ in 0..40 {
            pace.note(1, Duration::from_millis(10));
        }
        assert_eq!(allowed(&pace, &[1]), LIMITS.floor);
    }

    #[test]
    fn sizes_beyond_reason_are_no_panic() {
        let mut pace = Pace::default();
        pace.note(0, Duration::MAX);
        assert_eq!(allowed(&pace, &[usize::MAX, 0]), LIMITS.ceiling);
    }

    #[test]
    fn a_ceiling_below_the_floor_wins() {
        let limits = StallLimits {
            floor: Duration::from_secs(10),
            ceiling: Duration::from_secs(2),
            ..LIMITS
        };
        assert_eq!(
            allowance(&Pace::default(), &limits, [].into_iter()),
            limits.ceiling
        );
    }

    #[test]
    fn a_short_ceiling_never_fails_steps_that_take_as_long_as_they_always_do() {
        let limits = StallLimits {
            floor: Duration::from_secs(2),
            ceiling: Duration::from_secs(2),
            ..LIMITS
        };
        let mut pace = Pace::default();
        let allowed = |pace: &Pace, size| allowance(pace, &limits, [size].into_iter());
        // Nobody can tell yet how long the first prompt takes.
        assert_eq!(allowed(&pace, 2048), limits.patience);
        pace.note(1, Duration::from_millis(20));
        pace.note(2048, Duration::from_secs(3));
        assert_eq!(allowed(&pace, 1), limits.ceiling);
        assert_eq!(allowed(&pace, 2048), Duration::from_secs(12));
        assert_eq!(allowed(&pace, 8192), Duration::from_secs(48));
        pace.note(2048, Duration::from_hours(1));
        assert_eq!(allowed(&pace, 2048), limits.patience);
    }
}
