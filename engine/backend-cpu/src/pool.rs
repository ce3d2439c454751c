//! A pool of threads that shares out the pieces of one operation at a time.
//!
//! ```text
//! caller:  job, next piece = 0 -> open the gate -> wake sleepers -> take pieces -> close the gate -> wait until it is empty
//! worker:  see a new epoch -> enter if the gate is open -> take pieces until none is left -> leave
//! ```
//!
//! Operations last microseconds, so workers spin for a while before they sleep. The caller waits only for workers that
//! entered: one that the operating system doesn't schedule (other work on the machine) costs nothing but its help.
//!
//! Invariant: the job's reference is used between `enter` and `leave` only, and `run` returns only when the gate is
//! closed and empty. So the reference never outlives the call, though its type says `'static`.
#![expect(
    unsafe_code,
    reason = "a persistent thread can't borrow from a call without extending a lifetime"
)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::{hint, io};

use kvasir_backend::BackendError;

/// The threads. The one that calls [`Pool::run`] counts as one of them.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// Tries before a thread sleeps: some 50 us, longer than the gaps between the operations of a forward pass.
const SPINS: u32 = 1000;

/// The gate lets workers in.
const OPEN: u32 = 1 << 31;

/// Runs piece (second argument) as worker (first argument).
type Work<'a> = &'a (dyn Fn(usize, usize) + Sync);

#[derive(Clone, Copy)]
struct Job {
    work: Work<'static>,
    num_pieces: usize,
}

struct Shared {
    /// `OPEN`, and the number of workers inside.
    gate: AtomicU32,
    /// Grows with every job.
    epoch: AtomicU32,
    /// The next piece that nobody took.
    next: AtomicUsize,
    stop: AtomicBool,
    /// One for each worker: it sleeps or is about to.
    sleeping: Vec<AtomicBool>,
    job: Mutex<Option<Job>>,
    caller: Mutex<Option<Thread>>,
    /// What a panicking piece said.
    panic: Mutex<Option<String>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("gate", &self.gate)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `threads`, with the caller; at least 1.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let num_workers = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            gate: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sleeping: (0..num_workers).map(|_| AtomicBool::new(false)).collect(),
            job: Mutex::new(None),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let mut pool = Self {
            shared,
            workers: Vec::with_capacity(num_workers),
        };
        for worker in 0..num_workers {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("kvasir-cpu-{}", worker + 1));
            pool.workers.push(builder.spawn(move || shared.serve(worker))?);
        }
        Ok(pool)
    }

    /// Threads, with the caller.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(worker, piece)` once for every piece in `0..num_pieces`, from any of the threads; `worker` is below
    /// [`Pool::threads`] and no two calls with the same one run at the same time.
    ///
    /// # Errors
    /// If `work` panicked; some pieces may not have run then.
    pub(crate) fn run(
        &mut self,
        operation: &'static str,
        num_pieces: usize,
        work: Work<'_>,
    ) -> Result<(), BackendError> {
        let shared = &*self.shared;
        shared.next.store(0, Ordering::Relaxed);
        // SAFETY: Only the lifetime changes. By the module's invariant nobody uses the reference after this call.
        let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let job = Job { work, num_pieces };
        if num_pieces > 1 && !self.workers.is_empty() {
            self.start(job);
            shared.take_pieces(job, 0);
            self.finish();
        } else {
            shared.take_pieces(job, 0);
        }
        match lock(&shared.panic).take() {
            None => Ok(()),
            Some(reason) => Err(BackendError::Fault { operation, reason }),
        }
    }

    fn start(&self, job: Job) {
        let shared = &*self.shared;
        *lock(&shared.job) = Some(job);
        *lock(&shared.caller) = Some(thread::current());
        shared.gate.store(OPEN, Ordering::Release);
        // Sequentially consistent with `Shared::sleep`: either it sees the new epoch or we see that it sleeps.
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (worker, sleeping) in self.workers.iter().zip(&shared.sleeping) {
            if sleeping.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }

    fn finish(&self) {
        let shared = &*self.shared;
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while shared.gate.load(Ordering::Acquire) != 0 {
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else {
                thread::park();
            }
        }
        *lock(&shared.job) = None;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // Workers catch all panics of pieces, so there is nothing to learn from the result.
            worker.join().ok();
        }
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_epoch_after(seen, worker);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if self.enter() {
                let job = *lock(&self.job);
                if let Some(job) = job {
                    self.take_pieces(job, worker + 1);
                }
                self.leave();
            }
        }
    }

    fn wait_for_epoch_after(&self, seen: u32, worker: usize) -> u32 {
        for _ in 0..SPINS {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            hint::spin_loop();
        }
        let sleeping = &self.sleeping[worker];
        sleeping.store(true, Ordering::SeqCst);
        let mut epoch = self.epoch.load(Ordering::SeqCst);
        while epoch == seen {
            thread::park();
            epoch = self.epoch.load(Ordering::SeqCst);
        }
        sleeping.store(false, Ordering::SeqCst);
        epoch
    }

    fn enter(&self) -> bool {
        let entered = self
            .gate
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| {
                (gate & OPEN != 0).then_some(gate + 1)
            });
        entered.is_ok()
    }

    /// Nothing of the job may be touched afterwards.
    fn leave(&self) {
        let last_of_a_closed_gate = 1;
        if self.gate.fetch_sub(1, Ordering::AcqRel) == last_of_a_closed_gate
            && let Some(caller) = &*lock(&self.caller)
        {
            caller.unpark();
        }
    }

    fn take_pieces(&self, job: Job, worker: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let piece = self.next.fetch_add(1, Ordering::Relaxed);
                if piece >= job.num_pieces {
                    return;
                }
                (job.work)(worker, piece);
            }
        }));
        if let Err(payload) = result {
            self.next.store(job.num_pieces, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(message(payload.as_ref()));
        }
    }
}

/// What these locks guard is overwritten before it is read, so a panic can't leave it half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a piece panicked".to_owned())
}

#[cfg(test)]
mod tests;
