//! A request's place at its engine, and how it ended.

use std::time::Duration;

use super::address::EngineId;
use super::outlier::FIXED_TOKENS;
use crate::time::Micros;

/// A chosen engine's part in a request. Give it back with [`Router::finish`](super::Router::finish); a dropped one counts as running for
/// ever.
#[must_use = "a ticket that is dropped counts as running for ever"]
#[derive(Debug)]
pub struct Ticket {
    pub(super) engine: EngineId,
    /// Tokens of the prompt that the engine was thought not to have cached.
    pub(super) computed_tokens: u64,
    /// Tokens that it had to compute first.
    pub(super) tokens_in_front: u64,
    /// Sequences that it makes of the prompt.
    pub(super) num_sequences: u32,
    pub(super) chosen_at: Micros,
    pub(super) begun_at: Option<Micros>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The engine did what it was asked, or refused what it may refuse.
    Completed,
    /// The client left.
    ClientLeft,
    /// The engine did not.
    Failed(EngineFailure),
}

/// What went wrong at the engine.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum EngineFailure {
    /// No connection came about in time.
    Unreachable,
    /// The connection broke.
    ConnectionLost,
    /// The first token didn't come in time.
    FirstTokenTimeout,
    /// The first token came, and then none for too long.
    InterTokenTimeout,
    /// The engine said that it failed.
    Internal,
    /// The engine's queue is full.
    Overloaded,
    /// The engine is shutting down.
    ShuttingDown,
    /// The engine's tokenizer or cache keys aren't those of the revision.
    Mismatch,
}

impl Ticket {
    pub(super) fn new(
        engine: EngineId,
        computed_tokens: u64,
        tokens_in_front: u64,
        num_sequences: u32,
        now: Micros,
    ) -> Self {
        Self {
            engine,
            computed_tokens,
            tokens_in_front,
            num_sequences,
            chosen_at: now,
            begun_at: None,
        }
    }

    /// How long the first token took, and how many tokens of work it took; `None` if it has come before.
    pub(super) fn begin(&mut self, now: Micros) -> Option<(Duration, u64)> {
        if self.begun_at.is_some() {
            return None;
        }
        self.begun_at = Some(now);
        let work = self.computed_tokens + self.tokens_in_front + FIXED_TOKENS;
        Some((now.since(self.chosen_at), work))
    }

    /// The engine.
    pub fn engine(&self) -> EngineId {
        self.engine
    }

    /// Whether the first token has come.
    pub fn has_begun(&self) -> bool {
        self.begun_at.is_some()
    }
}

impl EngineFailure {
    /// Every failure.
    pub const ALL: [Self; 8] = [
        Self::Unreachable,
        Self::ConnectionLost,
        Self::FirstTokenTimeout,
        Self::InterTokenTimeout,
        Self::Internal,
        Self::Overloaded,
        Self::ShuttingDown,
        Self::Mismatch,
    ];

    /// The stable code for metrics and logs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::ConnectionLost => "connection_lost",
            Self::FirstTokenTimeout => "first_token_timeout",
            Self::InterTokenTimeout => "inter_token_timeout",
            Self::Internal => "internal",
            Self::Overloaded => "overloaded",
            Self::ShuttingDown => "shutting_down",
            Self::Mismatch => "mismatch",
        }
    }

    /// Whether it speaks against the engine. An engine that says it's full or about to end is well.
    pub fn is_engines_fault(self) -> bool {
        !matches!(self, Self::Overloaded | Self::ShuttingDown)
    }
}
