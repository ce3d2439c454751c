//! Making and reading the wire's error.

use crate::types::{Error, ErrorCode};

/// An error without a field at fault.
pub fn refusal(code: ErrorCode, message: impl Into<String>) -> Error {
    Error {
        code: code.into(),
        message: message.into(),
        param: String::new(),
    }
}

/// A request that can never be served because of its field `param`.
pub fn invalid(param: &str, message: impl Into<String>) -> Error {
    Error {
        code: ErrorCode::InvalidRequest.into(),
        message: message.into(),
        param: param.to_owned(),
    }
}

/// Whether the same request may succeed later or on another engine.
pub fn is_retryable(error: &Error) -> bool {
    match error.code() {
        ErrorCode::QueueFull | ErrorCode::Draining | ErrorCode::Unavailable => true,
        ErrorCode::Unspecified
        | ErrorCode::InvalidRequest
        | ErrorCode::SlowClient
        | ErrorCode::Internal
        | ErrorCode::Deadline => false,
    }
}

/// What a failed call means to its caller.
pub(crate) fn from_status(status: &tonic::Status) -> Error {
    use tonic::Code;
    let code = match status.code() {
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange | Code::NotFound => {
            ErrorCode::InvalidRequest
        }
        Code::ResourceExhausted => ErrorCode::QueueFull,
        Code::Internal | Code::DataLoss | Code::Unimplemented => ErrorCode::Internal,
        _ => ErrorCode::Unavailable,
    };
    refusal(code, status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_passing_conditions_are_retryable() {
        for code in [ErrorCode::QueueFull, ErrorCode::Draining, ErrorCode::Unavailable] {
            assert!(is_retryable(&refusal(code, "x")), "{code:?}");
        }
        for code in [
            ErrorCode::InvalidRequest,
            ErrorCode::Internal,
            ErrorCode::SlowClient,
            ErrorCode::Deadline,
            ErrorCode::Unspecified,
        ] {
            assert!(!is_retryable(&refusal(code, "x")), "{code:?}");
        }
    }

    #[test]
    fn a_code_from_a_newer_peer_reads_as_unspecified() {
        let error = Error {
            code: 4711,
            ..refusal(ErrorCode::Internal, "x")
        };
        assert_eq!(error.code(), ErrorCode::Unspecified);
        assert!(!is_retryable(&error));
    }
}
