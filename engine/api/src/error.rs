//! The error object that every route answers with, and the one table from error to HTTP status.

use serde::Serialize;

/// Longest error message sent to a client, in characters (the bound vLLM 0.32 uses per validation error).
const MAX_MESSAGE_CHARS: usize = 1000;
/// Longest echo of a client's value inside a message, in characters.
const MAX_ECHO_CHARS: usize = 200;

/// What kind of failure it is; decides the HTTP status and the `type` of the error object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The body isn't JSON, isn't of the right content type, or a field has the wrong type.
    Schema,
    /// A field has the right type and an impossible value, or a value that can't be honoured.
    Value,
    /// No key, or an unknown one.
    Unauthorized,
    /// The key is good, and not for this.
    Forbidden,
    /// No such route or model.
    NotFound,
    /// The route exists, but not for this method.
    MethodNotAllowed,
    /// The client sent its request too slowly.
    RequestTimeout,
    /// The body is larger than the limit.
    TooLarge,
    /// The body is encoded in a way that isn't supported.
    UnsupportedMedia,
    /// The client has used up what it may have for now.
    RateLimited,
    /// A fault of the server.
    Internal,
    /// The queue is full: try again here.
    Overloaded,
    /// The engine can't be reached or is shutting down: try again, best elsewhere.
    Unavailable,
    /// The request ran longer than the server allows.
    Timeout,
}

impl ErrorKind {
    /// The HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            Self::Schema | Self::Value => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::TooLarge => 413,
            Self::UnsupportedMedia => 415,
            Self::RateLimited => 429,
            Self::Internal => 500,
            Self::Overloaded | Self::Unavailable => 503,
            Self::Timeout => 504,
        }
    }

    /// The `type` of the error object; the names vLLM uses where it has one.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Schema => "Bad Request",
            Self::Value => "BadRequestError",
            Self::Unauthorized => "AuthenticationError",
            Self::Forbidden => "PermissionDeniedError",
            Self::NotFound => "NotFoundError",
            Self::MethodNotAllowed => "MethodNotAllowedError",
            Self::RequestTimeout => "RequestTimeoutError",
            Self::TooLarge => "RequestTooLargeError",
            Self::UnsupportedMedia => "UnsupportedMediaTypeError",
            Self::RateLimited => "RateLimitError",
            Self::Internal => "InternalServerError",
            Self::Overloaded => "Service Unavailable",
            Self::Unavailable => "ServiceUnavailableError",
            Self::Timeout => "TimeoutError",
        }
    }

    /// The stable code for logs of what no [`ApiError::because`] says more exactly.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Schema => "malformed_request",
            Self::Value => "invalid_value",
            Self::Unauthorized => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::RequestTimeout => "slow_body",
            Self::TooLarge => "body_too_large",
            Self::UnsupportedMedia => "unsupported_encoding",
            Self::RateLimited => "limited",
            Self::Internal => "internal",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Timeout => "request_timeout",
        }
    }

    /// Whether the same request may succeed later.
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Overloaded | Self::Unavailable | Self::RateLimited | Self::RequestTimeout | Self::Timeout
        )
    }
}

/// A failed request: what the client is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    kind: ErrorKind,
    message: String,
    param: Option<String>,
    /// For logs; the client doesn't read it.
    reason: Option<&'static str>,
}

impl ApiError {
    /// An error without a parameter. The message is cut to a bounded length.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: clip(message.into(), MAX_MESSAGE_CHARS),
            param: None,
            reason: None,
        }
    }

    /// A field of the wrong type or shape; `param` is its name.
    pub fn schema(param: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Schema, message).with_param(param)
    }

    /// A field with an impossible value; parameter and value are appended to the message.
    pub fn value(param: &str, value: impl std::fmt::Display, message: &str) -> Self {
        let echo = clip(value.to_string(), MAX_ECHO_CHARS);
        Self::new(
            ErrorKind::Value,
            format!("{message} (parameter={param}, value={echo})"),
        )
        .with_param(param)
    }

    /// A field that is known but can't be honoured by this server.
    pub fn unsupported(param: &str) -> Self {
        Self::new(
            ErrorKind::Value,
            format!("{param} is not supported by this server"),
        )
        .with_param(param)
    }

    /// Names the request field at fault.
    #[must_use]
    pub fn with_param(mut self, param: &str) -> Self {
        self.param = Some(clip(param.to_owned(), MAX_ECHO_CHARS));
        self
    }

    /// Tells it in logs from others of its kind, by a stable code.
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// The stable code for logs: what it was made with, or that of its kind.
    pub fn reason(&self) -> &'static str {
        self.reason.unwrap_or(self.kind.code())
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.kind.status()
    }

    /// What the client is told.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The request field at fault, if one is.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// The wire form.
    pub fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorObject {
                message: &self.message,
                r#type: self.kind.type_name(),
                param: self.param.as_deref(),
                code: self.status(),
            },
        }
    }
}

/// `{"error": {...}}`.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: u16,
}

/// At most `max` characters of `text`, with an ellipsis where something was cut.
pub(crate) fn clip(mut text: String, max: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(max) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_object_has_the_four_keys_and_the_status_as_code() {
        let error = ApiError::value("temperature", 3.5, "temperature must be in [0, 2]");
        let json = serde_json::to_value(error.body()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"error": {
                "message": "temperature must be in [0, 2] (parameter=temperature, value=3.5)",
                "type": "BadRequestError", "param": "temperature", "code": 400,
            }})
        );
    }

    #[test]
    fn reasons_are_for_logs_alone() {
        let plain = ApiError::new(ErrorKind::Unavailable, "later");
        let exact = plain.clone().because("bodies_full");
        assert_eq!((plain.reason(), exact.reason()), ("unavailable", "bodies_full"));
        let wire = |error: &ApiError| serde_json::to_string(&error.body()).unwrap();
        assert_eq!(wire(&plain), wire(&exact));
    }

    #[test]
    fn absent_param_is_null() {
        let json = serde_json::to_value(ApiError::new(ErrorKind::NotFound, "no such route").body()).unwrap();
        assert!(json["error"]["param"].is_null());
        assert_eq!(json["error"]["code"], 404);
    }

    #[test]
    fn messages_and_echoes_are_bounded() {
        let huge = "é".repeat(1_000_000);
        let error = ApiError::value(&huge, &huge, &huge);
        assert!(error.message().chars().count() <= MAX_MESSAGE_CHARS + 1);
        assert!(error.param().unwrap().chars().count() <= MAX_ECHO_CHARS + 1);
    }
}
