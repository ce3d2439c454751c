//! What the worker thread works on and others look at when it is stuck.
//!
//! Each lock is held for moments and never while the executor is called. Whoever takes two takes them in the order of the fields.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use kvasir_engine_core::Scheduler;

use crate::journal::Journal;
use crate::watchdog::Pulse;
use crate::worker::LiveRequests;

/// See the module's documentation.
pub(crate) struct Host {
    /// Zero of the scheduler's clock.
    pub(crate) epoch: Instant,
    scheduler: Mutex<Scheduler>,
    live: Mutex<LiveRequests>,
    journal: Mutex<Journal>,
    pub(crate) pulse: Pulse,
}

impl Host {
    pub(crate) fn new(scheduler: Scheduler, journal: Journal) -> Self {
        Self {
            epoch: Instant::now(),
            scheduler: Mutex::new(scheduler),
            live: Mutex::default(),
            journal: Mutex::new(journal),
            pulse: Pulse::default(),
        }
    }

    // After a panic of the worker nobody relies on what the locks guard, except to answer requests and to look at it.

    pub(crate) fn scheduler(&self) -> MutexGuard<'_, Scheduler> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The scheduler, unless the worker thread is stuck inside of it.
    pub(crate) fn scheduler_within(&self, patience: Duration) -> Option<MutexGuard<'_, Scheduler>> {
        let begun = Instant::now();
        loop {
            match self.scheduler.try_lock() {
                Ok(scheduler) => return Some(scheduler),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= patience => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, LiveRequests> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}
