//! Why a request has no answer, or no whole one: for the audit log, for decisions about the engine, and for the client.

use std::time::Duration;

use kvasir_api::{ApiError, ErrorKind};
use kvasir_client::types::{Error, ErrorCode};
use kvasir_edge::pipeline::engine_error;
use kvasir_gateway_core::routing::EngineFailure;
use kvasir_gateway_core::waiting::Refusal;

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It was sent away from the door.
    SentAway(Refusal),
    /// Every engine has failed it.
    AllTried,
    /// The engines of its revision have gone, and those of another one are there: it must be read again, for that one.
    Superseded,
    /// The engine refused or failed it, and it isn't tried elsewhere.
    Engine(Error),
}

/// Marks of our own errors among those of engines, which name fields of requests.
const FIRST_TOKEN: &str = "first token";
const NEXT_TOKEN: &str = "next token";

/// The engine didn't begin to answer in time.
pub(super) fn no_first_token(within: Duration) -> Error {
    Error {
        param: FIRST_TOKEN.to_owned(),
        ..kvasir_client::refusal(
            ErrorCode::Unavailable,
            format!("no first token came within {within:?}"),
        )
    }
}

/// The engine didn't go on in time.
pub(super) fn no_next_token(within: Duration) -> Error {
    Error {
        param: NEXT_TOKEN.to_owned(),
        ..kvasir_client::refusal(ErrorCode::Unavailable, format!("no token came for {within:?}"))
    }
}

/// What an error says of the engine; nothing if the request was at fault.
pub(super) fn failure_of(error: &Error) -> Option<EngineFailure> {
    match error.code() {
        ErrorCode::InvalidRequest | ErrorCode::SlowClient | ErrorCode::Deadline => None,
        ErrorCode::QueueFull => Some(EngineFailure::Overloaded),
        ErrorCode::Draining => Some(EngineFailure::ShuttingDown),
        ErrorCode::Internal | ErrorCode::Unspecified => Some(EngineFailure::Internal),
        ErrorCode::Unavailable => Some(match error.param.as_str() {
            FIRST_TOKEN => EngineFailure::FirstTokenTimeout,
            NEXT_TOKEN => EngineFailure::InterTokenTimeout,
            _ => EngineFailure::ConnectionLost,
        }),
    }
}

/// The stable code of an error for the audit log and metrics.
pub(crate) fn code_of(error: &Error) -> &'static str {
    match (failure_of(error), error.code()) {
        (Some(failure), _) => failure.code(),
        (None, ErrorCode::SlowClient) => "slow_client",
        (None, ErrorCode::Deadline) => "request_timeout",
        (None, _) => "refused_by_engine",
    }
}

impl Failed {
    /// What the client reads. Where engines are and how they failed is for the log.
    pub(crate) fn answer(&self) -> ApiError {
        match self {
            Self::SentAway(refusal) => refused(*refusal),
            Self::AllTried | Self::Superseded => ApiError::new(
                ErrorKind::Unavailable,
                "no engine is free for this request; try again later",
            ),
            Self::Engine(error) => engine_error(&for_the_client(error)),
        }
    }
}

/// An engine's error as the client reads it: addresses and what transports say are for the log.
pub(super) fn for_the_client(error: &Error) -> Error {
    let (code, message) = match failure_of(error) {
        None | Some(EngineFailure::Overloaded | EngineFailure::Internal) => return error.clone(),
        Some(EngineFailure::FirstTokenTimeout) => {
            (ErrorCode::Deadline, "the engine didn't begin to answer in time")
        }
        Some(EngineFailure::InterTokenTimeout) => (
            ErrorCode::Deadline,
            "the engine made no token for too long; try again",
        ),
        Some(_) => (ErrorCode::Unavailable, "the engine was lost; try again"),
    };
    kvasir_client::refusal(code, message)
}

/// What the client reads of a refusal at the door.
pub(crate) fn refused(refusal: Refusal) -> ApiError {
    let kind = if refusal.status() == 429 {
        ErrorKind::RateLimited
    } else {
        ErrorKind::Unavailable
    };
    let message = match refusal {
        Refusal::NoEngine => "no engine serves this model now; try again later",
        Refusal::HoldEnded => "no engine came up in time; try again later",
        Refusal::WaitEnded => "all engines were busy for too long; try again later",
        Refusal::RoomFull => "too many requests wait already; try again later",
        Refusal::TenantsPartFull => "too many of your requests wait already; try again later",
    };
    ApiError::new(kind, message)
}
