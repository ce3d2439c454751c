//! What an engine's exit code says about why it didn't start: the table of `kvasir engine --help`, which follows `sysexits.h`.

use kvasir_operator_api::Reason;

/// Why an engine ended before it served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Its options contradict each other or the model (64).
    Configuration,
    /// The files can't be loaded (65).
    BadFiles,
    /// There is no such model (66).
    NotFound,
    /// The source can't be reached (69).
    Unreachable,
    /// Its self-test failed: the first step, before anybody is served (71).
    SelfTest,
    /// The files don't fit the volume (73).
    NoSpace,
    /// The files aren't those that the digest names (76).
    Digest,
    /// The source wants another credential (77).
    Unauthorized,
}

impl Fault {
    /// What `code` stands for; nothing for codes that any process may end with.
    pub(crate) const fn of_exit_code(code: i32) -> Option<Self> {
        Some(match code {
            64 => Self::Configuration,
            65 => Self::BadFiles,
            66 => Self::NotFound,
            69 => Self::Unreachable,
            71 => Self::SelfTest,
            73 => Self::NoSpace,
            76 => Self::Digest,
            77 => Self::Unauthorized,
            _ => return None,
        })
    }

    /// The reason for `ModelReady`; nothing where it isn't the model's fault.
    pub(crate) const fn model_reason(self) -> Option<Reason> {
        match self {
            Self::Configuration | Self::SelfTest => None,
            Self::BadFiles => Some(Reason::LoadFailed),
            Self::NotFound => Some(Reason::SourceNotFound),
            Self::Unreachable => Some(Reason::PullFailed),
            Self::NoSpace => Some(Reason::NoSpace),
            Self::Digest => Some(Reason::DigestMismatch),
            Self::Unauthorized => Some(Reason::Unauthorized),
        }
    }

    /// Starting the same revision again ends the same way. A network or a volume may get better by itself.
    pub(crate) const fn is_permanent(self) -> bool {
        !matches!(self, Self::Unreachable | Self::NoSpace)
    }
}
