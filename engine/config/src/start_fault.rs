//! What an engine's exit code says about why it didn't start: the engine ends with it, and whoever restarts engines reads it.

/// Why an engine ended before it served, by exit code. Whoever restarts engines decides by it what to tell and whether another try helps;
/// the last line on standard error has the details. Numbers and meanings are those of `sysexits.h`, as near as they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StartFault {
    /// Options can't be used, contradict each other or don't fit the model (EX_USAGE).
    Configuration = 64,
    /// The files can't be loaded (EX_DATAERR).
    BadFiles = 65,
    /// There is no such model or file (EX_NOINPUT).
    NotFound = 66,
    /// The source can't be reached or doesn't send the whole file (EX_UNAVAILABLE).
    Unreachable = 69,
    /// The first step failed, before anybody was served (EX_OSERR).
    SelfTest = 71,
    /// The files don't fit the disk (EX_CANTCREAT).
    NoSpace = 73,
    /// What was sent isn't what its digest or size promise (EX_PROTOCOL).
    Digest = 76,
    /// The source wants another credential (EX_NOPERM).
    Unauthorized = 77,
}

impl StartFault {
    const ALL: [Self; 8] = [
        Self::Configuration,
        Self::BadFiles,
        Self::NotFound,
        Self::Unreachable,
        Self::SelfTest,
        Self::NoSpace,
        Self::Digest,
        Self::Unauthorized,
    ];

    /// The code that a process ends with.
    pub const fn exit_code(self) -> u8 {
        self as u8
    }

    /// What `code` stands for; nothing for codes that any process may end with.
    pub fn of_exit_code(code: i32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|fault| i32::from(fault.exit_code()) == code)
    }

    /// Whether starting the same engine again ends the same way. A network or a disk may get better by itself.
    pub const fn is_permanent(self) -> bool {
        !matches!(self, Self::Unreachable | Self::NoSpace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_read_back_and_others_say_nothing() {
        for fault in StartFault::ALL {
            assert_eq!(StartFault::of_exit_code(fault.exit_code().into()), Some(fault));
        }
        // Success, any failure, a panic's, a forced shutdown's, a signal's.
        for code in [0, 1, 70, 75, 137, -1, i32::MAX] {
            assert_eq!(StartFault::of_exit_code(code), None, "{code}");
        }
    }
}
