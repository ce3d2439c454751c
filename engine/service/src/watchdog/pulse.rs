//! The worker's sign of life, and the watchdog's way to wait for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// See the module's documentation. A beat costs an uncontended lock; only the first one after a rest wakes a thread.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    beat: Beat,
    /// The watchdog sleeps until something changes.
    is_parked: bool,
    is_over: bool,
}

/// A sign of life.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Beat {
    /// How many there were.
    pub(super) count: u64,
    /// When the next one is due; `None` while there is no work.
    pub(super) allowance: Option<Duration>,
}

impl Pulse {
    /// There is progress, and there will be more within this time.
    pub(crate) fn beat(&self, allowance: Duration) {
        self.set(Some(allowance));
    }

    /// There is no work.
    pub(crate) fn rest(&self) {
        self.set(None);
    }

    /// The worker ends.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_one();
    }

    /// When the next sign of life is due after the last one; `None` while there is no work.
    pub(crate) fn allowance(&self) -> Option<Duration> {
        self.lock().beat.allowance
    }

    /// The last beat: after a tick while there is work, else when there is another one than the `seen`th. `None` when the worker ended.
    pub(super) fn next(&self, seen: u64, tick: Duration) -> Option<Beat> {
        let mut state = self.lock();
        if state.beat.allowance.is_some() && !state.is_over {
            state = self
                .changed
                .wait_timeout(state, tick)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        while state.beat.allowance.is_none() && state.beat.count == seen && !state.is_over {
            state.is_parked = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.is_parked = false;
        }
        (!state.is_over).then_some(state.beat)
    }

    fn set(&self, allowance: Option<Duration>) {
        let mut state = self.lock();
        state.beat.count += 1;
        state.beat.allowance = allowance;
        let wake = state.is_parked && allowance.is_some();
        drop(state);
        if wake {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_of_an_idle_worker_waits_for_work() {
        let pulse = Pulse::default();
        std::thread::scope(|scope| {
            // The tick is waited for if the work is there first.
            let next = scope.spawn(|| pulse.next(0, Duration::from_millis(1)));
            pulse.beat(Duration::from_secs(3));
            let beat = next.join().unwrap().unwrap();
            assert_eq!(
                beat,
                Beat {
                    count: 1,
                    allowance: Some(Duration::from_secs(3))
                }
            );
        });
    }

    #[test]
    fn a_watcher_is_told_once_that_the_work_is_done() {
        let pulse = Pulse::default();
        pulse.beat(Duration::from_secs(3));
        pulse.rest();
        let idle = pulse.next(1, Duration::from_hours(1)).unwrap();
        assert_eq!((idle.count, idle.allowance), (2, None));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| pulse.next(2, Duration::from_hours(1)));
            pulse.end();
            assert_eq!(next.join().unwrap(), None);
        });
    }

    #[test]
    fn an_end_is_noticed_while_there_is_work() {
        let pulse = Pulse::default();
        pulse.beat(Duration::from_secs(3));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| pulse.next(0, Duration::from_hours(1)));
            pulse.end();
            assert_eq!(next.join().unwrap(), None);
        });
    }
}
