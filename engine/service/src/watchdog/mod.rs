//! Notices that no step makes progress, and does something about it (vllm's engines hang silently, see C18 and C19 of the research).
//!
//! The worker thread beats: when it takes commands, when it submits a step, and when a step has ended. With each beat goes the time in which
//! the next one is due ([`allowance`]). A thread of its own watches:
//!
//! 1. When a beat is overdue, the sequences of the steps in flight fail, with an error that says so; without a step in flight all
//!    do. A dump of the state is kept. Requests that wait are left alone: they run if the executor comes back.
//! 2. When it is overdue by the same time again, the engine is taken for broken: health fails with the reason, what is left fails, and new
//!    requests are refused.
//! 3. When a beat comes after all, the engine is healthy again, and the worker ends the sequences that were failed.
//!
//! None of it needs the worker thread or the executor. Time in which the watchdog itself didn't run (a stopped process, a paused machine)
//! doesn't count as silence.

mod deadline;
mod pulse;
mod watch;

use std::sync::Arc;
use std::time::Instant;

use kvasir_client::refusal;
use kvasir_client::types::{Error, ErrorCode};

pub use self::deadline::StallLimits;
pub(crate) use self::deadline::{Pace, allowance};
pub(crate) use self::pulse::Pulse;
use self::watch::{Action, Watch};
use crate::dump;
use crate::mailbox::Command;
use crate::shared::{Health, Shared};

/// Starts the thread. It ends with the worker.
///
/// # Errors
/// If the operating system gives no thread.
pub(crate) fn spawn(shared: Arc<Shared>) -> std::io::Result<()> {
    let tick = shared.diagnostics.stall.tick();
    std::thread::Builder::new()
        .name("kvasir-watchdog".to_owned())
        .spawn(move || {
            let mut watch = Watch::new(tick);
            let mut last = Instant::now();
            while let Some(beat) = shared.host.pulse.next(watch.last_beat(), tick) {
                let now = Instant::now();
                let action = watch.tick(&beat, now - last);
                last = now;
                match action {
                    None => {}
                    Some(Action::FailStuck) => fail_stuck(&shared, &watch),
                    Some(Action::GiveUp) => give_up(&shared, &watch),
                    Some(Action::RefuseUntaken) => refuse_untaken(&shared),
                    Some(Action::Recover) => recover(&shared),
                }
            }
        })
        .map(drop)
}

fn fail_stuck(shared: &Shared, watch: &Watch) {
    let reason = format!("the engine made no progress for {}", seconds(watch));
    tracing::error!("{reason}; the sequences of the step in flight fail");
    shared.set_health(Health::Stalled(reason.clone()));
    dump::keep(shared, &reason);
    let stuck = shared.host.journal().seqs_in_flight();
    let error = refusal(
        ErrorCode::Internal,
        format!("{reason} in the step that computes this sequence"),
    );
    let mut live = shared.host.live();
    let failed = if stuck.is_empty() {
        live.fail_all(&error)
    } else {
        live.fail(&stuck, &error)
    };
    drop(live);
    shared.note_stall(failed.len());
    for seq in failed {
        forget(shared, seq);
    }
}

fn give_up(shared: &Shared, watch: &Watch) {
    let reason = format!(
        "the engine made no progress for {}, and failing the requests that were stuck did not help",
        seconds(watch)
    );
    tracing::error!("{reason}; all requests fail until there is progress");
    let error = unavailable(&reason);
    // First, so that no request comes in behind.
    shared.set_health(Health::Broken(reason));
    let failed = shared.host.live().fail_all(&error);
    shared.note_failed(failed.len());
    for seq in failed {
        forget(shared, seq);
    }
    refuse_untaken(shared);
}

/// Answers the requests that the worker hasn't taken.
fn refuse_untaken(shared: &Shared) {
    let reason = match &*shared.health.borrow() {
        Health::Broken(reason) => reason.clone(),
        Health::Fine | Health::Stalled(_) => return,
    };
    for submission in shared.mailbox.take_submissions() {
        submission.refuse(unavailable(&reason));
    }
}

fn recover(shared: &Shared) {
    tracing::warn!("the engine makes progress again");
    shared.set_health(Health::Fine);
}

/// The scheduler still has the sequence; the worker ends it when it comes back.
fn forget(shared: &Shared, seq: kvasir_engine_core::SeqId) {
    if shared.mailbox.post(Command::Forget(seq)).is_err() {
        tracing::trace!("the engine has ended meanwhile");
    }
}

fn unavailable(reason: &str) -> Error {
    refusal(ErrorCode::Unavailable, reason)
}

fn seconds(watch: &Watch) -> String {
    format!("{:.1} s", watch.silence().as_secs_f64())
}
