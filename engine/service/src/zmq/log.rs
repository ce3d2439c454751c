//! What is logged of connections: strangers can make any number of them, so a kind of line comes at most once in a while.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;
use super::peer::PeerError;

/// Between two warnings of one kind.
const PAUSE: Duration = Duration::from_secs(30);

/// The warnings of one socket.
#[derive(Debug, Default)]
pub(super) struct PeerLog {
    turned_away: Mutex<Pacer>,
    failed: Mutex<Pacer>,
}

impl PeerLog {
    /// A connection that somebody made has ended.
    pub(super) fn ended(&self, ended: Result<(), PeerError>) {
        match ended {
            Ok(()) => {}
            Err(PeerError::Io(error)) => tracing::debug!(%error, "a reader of KV events has left"),
            Err(PeerError::Idle) => {
                tracing::debug!("a reader of KV events asked for nothing and was sent away");
            }
            Err(error) => {
                if let Some(not_logged) = next(&self.turned_away) {
                    tracing::warn!(%error, not_logged, "a reader of KV events was turned away");
                }
            }
        }
    }

    /// The connection that was made to an endpoint has ended, or it couldn't be made.
    pub(super) fn lost(&self, endpoint: &Endpoint, ended: Result<(), PeerError>) {
        if let Err(error) = ended {
            self.warn_failed(
                &error,
                &format!("no connection to {endpoint}, which KV events are published to; it is tried again"),
            );
        }
    }

    /// The operating system gave no connection.
    pub(super) fn not_accepted(&self, error: &std::io::Error) {
        self.warn_failed(error, "can't accept a reader of KV events");
    }

    fn warn_failed(&self, error: &dyn Display, what: &str) {
        if let Some(not_logged) = next(&self.failed) {
            tracing::warn!(%error, not_logged, "{what}");
        }
    }
}

fn next(pacer: &Mutex<Pacer>) -> Option<u64> {
    let mut pacer = pacer.lock().unwrap_or_else(PoisonError::into_inner);
    pacer.next(Instant::now())
}

/// Lets one through in each pause.
#[derive(Debug, Default)]
struct Pacer {
    last: Option<Instant>,
    held_back: u64,
}

impl Pacer {
    /// How many were held back since the last one that was let through; none if this one is held back.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self
            .last
            .is_some_and(|last| now.saturating_duration_since(last) < PAUSE)
        {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gives_one_line_in_each_pause_that_counts_the_others() {
        let start = Instant::now();
        let mut pacer = Pacer::default();
        let mut logged = Vec::new();
        for millis in (0..=60_000).step_by(10) {
            logged.extend(pacer.next(start + Duration::from_millis(millis)));
        }
        assert_eq!(logged, [0, 2999, 2999]);
    }
}
