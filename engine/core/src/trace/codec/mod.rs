//! Recordings as bytes: fixed little-endian fields in the order of the types, lengths before contents, and a version in front.

mod field;
mod types;

use super::Trace;
use field::{Field, Reader};

/// A change of the encoding is a new version.
const MAGIC: &[u8] = b"kvasir.trace.v3\n";

/// Why bytes are no recording.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TraceError {
    /// They don't begin like one, or like one of another version.
    #[error("this is no recording of version 3")]
    Magic,
    /// They end too early, or a length says more than there is.
    #[error("the recording is cut off at byte {at}")]
    CutOff {
        /// Where something was expected.
        at: usize,
    },
    /// A value that nothing is written as.
    #[error("byte {at} of the recording is {value}, which means nothing there")]
    Value {
        /// Where.
        at: usize,
        /// The byte.
        value: u8,
    },
    /// Something follows the end.
    #[error("{len} bytes follow the recording's end at byte {at}")]
    Trailing {
        /// The end.
        at: usize,
        /// Bytes behind it.
        len: usize,
    },
}

impl Trace {
    /// The recording as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        self.put(&mut out);
        out
    }

    /// The recording that was written as `bytes`. Memory grows with the bytes, whatever they say.
    ///
    /// # Errors
    /// Where the bytes stop making sense.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(TraceError::Magic)?;
        let mut input = Reader {
            bytes: rest,
            at: MAGIC.len(),
        };
        let trace = Self::take(&mut input)?;
        match input.bytes.len() {
            0 => Ok(trace),
            len => Err(TraceError::Trailing { at: input.at, len }),
        }
    }
}
