//! Whether a failed request is tried at another engine.
//!
//! Only before its first token: afterwards the client would read two beginnings. Only within a budget: when engines refuse or delay many
//! requests, retries multiply the load. Law: over any history, retries at engines that are still in use don't exceed the reserve plus the
//! given part of requests. Requests of an engine that is out of use (its process is gone, it's about to end, or it was ejected) cost no
//! budget: what they loaded is gone with it, and they wait in the same bounded queue as all others. However, a request that has lost several
//! engines may be what kills them, so its attempts are counted; a refusal of an engine that is about to end doesn't count.
//! Requests are never sent to two engines at once (no hedging): a second prefill costs more than the wait it saves.

use super::ticket::EngineFailure;

/// How often requests are retried.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RetryConfig {
    /// Engines that one request may be sent to, 1 or more.
    pub max_attempts: u32,
    /// Retries per 1000 requests.
    pub permille: u32,
    /// Retries that are possible without any request before.
    pub reserve: u32,
}

/// A request that failed at an engine.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// What happened.
    pub failure: EngineFailure,
    /// Whether its first token had come.
    pub has_begun: bool,
    /// Engines that it has failed at, with this one and without those that only refused it because they were about to end.
    pub attempts: u32,
    /// Whether the engine gets no requests any more.
    pub is_out_of_use: bool,
}

/// What becomes of a failed request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Retry {
    /// Another engine.
    Elsewhere,
    /// The client reads an error, because the answer has begun.
    AlreadyBegun,
    /// The client reads an error, because another engine would do no better.
    NotRetryable,
    /// The client reads an error, because the request has been sent often enough.
    OutOfAttempts,
    /// The client reads an error, because too many requests fail.
    OutOfBudget,
}

/// The budget of one gateway for one service.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    config: RetryConfig,
    /// In thousandths of a retry.
    credit: u64,
}

impl Default for RetryConfig {
    /// Three engines, one retry for five requests, ten at once. (The ratio of linkerd and Finagle.)
    fn default() -> Self {
        Self {
            max_attempts: 3,
            permille: 200,
            reserve: 10,
        }
    }
}

impl RetryBudget {
    /// A budget with its reserve.
    pub fn new(config: RetryConfig) -> Self {
        Self {
            config,
            credit: Self::cap(&config),
        }
    }

    /// A new request, not a retry.
    pub fn request(&mut self) {
        let credit = self.credit.saturating_add(u64::from(self.config.permille));
        self.credit = credit.min(Self::cap(&self.config));
    }

    /// Whether a request that failed is sent to another engine. If so it's paid for.
    pub fn retry(&mut self, attempt: Attempt) -> Retry {
        if attempt.has_begun {
            return Retry::AlreadyBegun;
        }
        // An engine that answers with a failure of its own may have been led to it by the request.
        if attempt.failure == EngineFailure::Internal {
            return Retry::NotRetryable;
        }
        if attempt.attempts >= self.config.max_attempts {
            return Retry::OutOfAttempts;
        }
        if attempt.is_out_of_use {
            return Retry::Elsewhere;
        }
        match self.credit.checked_sub(1000) {
            Some(credit) => {
                self.credit = credit;
                Retry::Elsewhere
            }
            None => Retry::OutOfBudget,
        }
    }

    fn cap(config: &RetryConfig) -> u64 {
        u64::from(config.reserve) * 1000
    }
}
