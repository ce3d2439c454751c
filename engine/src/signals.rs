//! The signals that end a server: the first one asks, the second one insists. And those that ask for something else.

use kvasir_service::Engine;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// SIGTERM, SIGINT and the end of the terminal, caught from its making on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// None where nobody should notice it, and once it has come: a terminal that closes may send it twice.
    hang_up: Option<Signal>,
}

/// SIGHUP where it doesn't mean the end, caught from its making on.
pub(crate) struct ReopenSignal(Signal);

/// SIGUSR1, caught from its making on.
pub(crate) struct DumpSignal(Signal);

impl DumpSignal {
    /// Catches the signal from now on.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn catch() -> Result<Self, Failure> {
        catch(SignalKind::user_defined1()).map(Self)
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

impl ReopenSignal {
    /// Catches the signal from now on.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn catch() -> Result<Self, Failure> {
        catch(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

impl Signals {
    /// Catches the signals from now on. The end of the terminal is one of them unless the process was started to outlive it, as `nohup` does.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let hang_up = match is_hang_up_ignored() {
            Some(false) => Some(catch(SignalKind::hangup())?),
            // Catching it would undo what `nohup` did.
            Some(true) | None => None,
        };
        Ok(Self {
            hang_up,
            ..Self::catch_but_hang_up()?
        })
    }

    /// The same without the end of the terminal.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn catch_but_hang_up() -> Result<Self, Failure> {
        Ok(Self {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hang_up: None,
        })
    }

    /// Waits for the next one and tells its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = hang_up => {
                self.hang_up = None;
                "SIGHUP"
            }
        }
    }
}

fn catch(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::Failed(format!("can't catch signals: {error}")))
}

/// Whether whoever started the process has switched SIGHUP off; none where the system doesn't tell.
fn is_hang_up_ignored() -> Option<bool> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    let bit = SignalKind::hangup().as_raw_value() - 1;
    Some(mask >> bit & 1 == 1)
}
