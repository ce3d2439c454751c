//! The signals that end a server: the first one asks, the second one insists.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// SIGTERM and SIGINT, caught from its making on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let catch =
            |kind| signal(kind).map_err(|error| Failure::Failed(format!("can't catch signals: {error}")));
        Ok(Self {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one and tells its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
