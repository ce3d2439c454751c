//! What is wrong with a spec, and where.

use std::fmt;

use kvasir_operator_api::Reason;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldError {
    /// JSON path of the field, beginning with `spec` or `metadata`.
    pub path: String,
    /// Reason for `Accepted=False`.
    pub reason: Reason,
    /// What is wrong and what to do.
    pub message: String,
}

impl FieldError {
    /// An error about the field at `path`.
    pub fn new(path: impl Into<String>, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            reason,
            message: message.into(),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}
