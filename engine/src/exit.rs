//! How the process ends: one type for what went wrong, one table of exit codes.

use std::process::ExitCode;

use kvasir_config::{ConfigError, StartFault};
use kvasir_files::FileError;

/// Why a command failed; [`Failure::exit_code`] is the table.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The configuration can't be used.
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    /// The arguments contradict each other or name something that isn't there.
    #[error("{0}")]
    Usage(String),
    /// An engine can't serve its model.
    #[error("{text}")]
    Model {
        /// What it is about.
        fault: StartFault,
        /// Why, with all causes.
        text: String,
    },
    /// The command could not start, or could not do its work.
    #[error("{0}")]
    Failed(String),
    /// A recording gave other plans than the server executed.
    #[error("{0}")]
    Differs(String),
    /// Some rows have no answer, the others do.
    #[error("{0}")]
    SomeRows(String),
    /// The scheduler thread panicked; its requests were failed.
    #[error("the scheduler crashed: {0}")]
    SchedulerCrashed(String),
    /// The deadline of the shutdown passed with requests still running.
    #[error(
        "shutdown was forced after {timeout_seconds} s with {remaining} requests still running; --shutdown-timeout sets the time"
    )]
    ForcedShutdown {
        /// The time that they had.
        timeout_seconds: f64,
        /// What was cut.
        remaining: u32,
    },
    /// The time of a gateway's shutdown passed with requests still running.
    #[error(
        "shutdown was forced with {remaining} requests still running; shutdownTimeoutSeconds sets the time"
    )]
    GatewayForced {
        /// What was cut.
        remaining: u32,
    },
    /// A second signal came during the shutdown.
    #[error("ended at once by a second signal")]
    SecondSignal,
}

impl Failure {
    /// A failure with the whole chain of its causes.
    pub(crate) fn failed(error: &dyn std::error::Error) -> Self {
        Self::Failed(chain(error))
    }

    /// The exit code: 64 bad configuration, 1 failed, those of [`StartFault`], 3 another result than recorded or some rows without an answer, 70 crashed scheduler, 75 forced shutdown. The numbers above 1 are those
    /// of `sysexits.h` (EX_USAGE, EX_SOFTWARE, EX_TEMPFAIL).
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Configuration(_) | Self::Usage(_) => StartFault::Configuration.exit_code(),
            Self::Model { fault, .. } => fault.exit_code(),
            Self::Failed(_) => 1,
            Self::Differs(_) | Self::SomeRows(_) => EXIT_HELD_BACK,
            Self::SchedulerCrashed(_) => 70,
            Self::ForcedShutdown { .. } | Self::GatewayForced { .. } | Self::SecondSignal => 75,
        }
    }
}

/// The exit code of a diagnosis or comparison that found something: the command itself did its work.
pub(crate) const EXIT_HELD_BACK: u8 = 3;

impl From<FileError> for Failure {
    /// The person who named the file can name another one.
    fn from(error: FileError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> Self {
        Self::from(failure.exit_code())
    }
}

/// `a: b: c`, without a cause that its effect has already quoted.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
