//! The signals that end a server: the first one asks, the second one insists. And the one that asks for a dump.

use kvasir_service::Engine;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// SIGTERM and SIGINT, caught from its making on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// SIGUSR1, caught from its making on.
pub(crate) struct DumpSignal(Signal);

impl DumpSignal {
    /// Catches the signal from now on.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn catch() -> Result<Self, Failure> {
        signal(SignalKind::user_defined1())
            .map(Self)
            .map_err(|error| Failure::Failed(format!("can't catch signals: {error}")))
    }

    /// Says whenever the signal comes that the engine, whose state is asked for, is another process. Never ends.
    pub(crate) async fn decline(&mut self) -> ! {
        loop {
            if self.0.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
            tracing::warn!(
                "SIGUSR1: there is no engine in this process whose state could be dumped; send the signal to `kvasir engine`"
            );
        }
    }

    /// Writes a dump of the engine whenever the signal comes. Never ends.
    pub(crate) async fn serve(&mut self, engine: &Engine) -> ! {
        loop {
            // It ends only with the runtime.
            if self.0.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
            match engine.write_dump("SIGUSR1") {
                Ok(path) => tracing::info!("the state of the engine is in {}", path.display()),
                Err(error) => tracing::warn!("SIGUSR1: {error}"),
            }
        }
    }
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
