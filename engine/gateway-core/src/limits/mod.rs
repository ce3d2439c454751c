//! Decides whether a tenant may have one more request, and keeps the account of what it had.
//!
//! Law: in any 60 seconds a tenant's charges, as they were settled, don't exceed its limits per minute. An account is a window of 61 slots
//! of one second, because 60 seconds touch at most 61 of them; a charge is admitted if the window's sum with it stays within the limit.
//! Why not a token bucket: a bucket lets a full minute's amount pass at once and refills meanwhile, so up to twice the limit falls into
//! one minute; and a refund into a full bucket is lost, so the account would depend on the order of settlements. Here a settlement
//! corrects the slot of its own charge, which makes the account exact after any order of charges, settlements and cancellations.
//!
//! A charge is made on an estimate before a request runs, and settled on the result however it ended: a client that left pays for what was
//! computed. Requests that never reached an engine are cancelled and cost nothing.
//!
//! Several replicas share limits through a store (see [`store`]). While it's away each enforces its share (see [`Ledger`]).
//!
//! Invariants, each a property in `tests`: no amount is negative; time only ever frees room; equal histories give equal accounts in any
//! order of settlement; a refusal's `retry_after` is exact.

mod account;
mod headers;
mod ids;
mod ledger;
pub mod script;
pub mod store;
mod window;

use std::time::Duration;

pub use headers::{rate_limit_headers, retry_after_seconds};
pub use ids::{Instance, RequestId};
pub use ledger::{Ask, Call, Charge, Ended, Handover, Ledger, Mode, Told, Totals};

/// How long a request counts as running in the store after its replica last said so. A replica that dies frees its places after this time.
pub const LEASE: Duration = Duration::from_secs(30);

/// The largest limit and the largest cost: doubles, in which the store's scripts count, are exact beyond the sum of a window of these.
pub const MAX_AMOUNT: u64 = 1 << 45;

/// What is limited per minute.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Dimension {
    /// Requests.
    Requests,
    /// Input and output tokens together.
    Tokens,
    /// Input tokens.
    InputTokens,
    /// Output tokens.
    OutputTokens,
}

/// One amount for each [`Dimension`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Amounts([u64; 4]);

/// How much a tenant may have. The default doesn't limit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Limits {
    /// Requests per minute.
    pub requests_per_minute: Option<u64>,
    /// Input and output tokens per minute.
    pub tokens_per_minute: Option<u64>,
    /// Input tokens per minute.
    pub input_tokens_per_minute: Option<u64>,
    /// Output tokens per minute.
    pub output_tokens_per_minute: Option<u64>,
    /// Requests at one time.
    pub concurrency: Option<u32>,
}

/// What one request costs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cost {
    /// Tokens of all its prompts.
    pub input_tokens: u64,
    /// Tokens of all its outputs; as an estimate the most that it may produce.
    pub output_tokens: u64,
}

/// Why there is no room for a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Exhausted {
    /// A limit per minute is used up.
    #[error("{used} of {limit} {} per minute are used and {wanted} more are wanted", dimension.words())]
    PerMinute {
        /// Which one; the one that frees up last if there are several.
        dimension: Dimension,
        /// The limit.
        limit: u64,
        /// What the window holds.
        used: u64,
        /// What the request would add.
        wanted: u64,
        /// When there will be room if nothing else happens; `None`: never, because the request alone exceeds the limit.
        retry_after: Option<Duration>,
    },
    /// Too many requests run at one time.
    #[error("at most {limit} requests run at one time: wait for one to end")]
    Concurrency {
        /// The limit.
        limit: u32,
    },
}

/// The state of one limit after a decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DimensionUsage {
    /// The limit.
    pub limit: u64,
    /// What the window holds; above the limit after a settlement above its estimate.
    pub used: u64,
    /// When the window will be empty if nothing else happens.
    pub reset: Duration,
}

/// The state of a tenant's limits per minute; `None` where there is none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage(pub [Option<DimensionUsage>; 4]);

impl Exhausted {
    /// What it tells about the limits per minute: the one that is used up, which has room again at its reset.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        if let Self::PerMinute {
            dimension,
            limit,
            used,
            retry_after,
            ..
        } = *self
        {
            usage.0[dimension as usize] = Some(DimensionUsage {
                limit,
                used,
                reset: retry_after.unwrap_or_default(),
            });
        }
        usage
    }

    /// What it is for the call of which the refused request is a part, as it stands once the call's others, which were `charged`, are taken
    /// back: their part isn't used, and the `whole` of the call is wanted. There is no room for it before `retry_after`; if requests follow
    /// that weren't tried, there may be none then either.
    #[must_use]
    pub fn of_call(self, charged: Amounts, whole: Amounts) -> Self {
        match self {
            Self::PerMinute {
                dimension,
                limit,
                used,
                retry_after,
                ..
            } => {
                let wanted = whole.get(dimension);
                Self::PerMinute {
                    dimension,
                    limit,
                    used: used.saturating_sub(charged.get(dimension)),
                    wanted,
                    retry_after: retry_after.filter(|_| wanted <= limit),
                }
            }
            Self::Concurrency { .. } => self,
        }
    }
}

impl Dimension {
    /// Every dimension, in the order of [`Amounts`] and of the store's scripts.
    pub const ALL: [Self; 4] = [
        Self::Requests,
        Self::Tokens,
        Self::InputTokens,
        Self::OutputTokens,
    ];

    /// The stable name for metrics and logs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::InputTokens => "input tokens",
            Self::OutputTokens => "output tokens",
        }
    }
}

impl Amounts {
    /// The amount of one dimension.
    pub fn get(&self, dimension: Dimension) -> u64 {
        self.0[dimension as usize]
    }

    /// All amounts in the order of [`Dimension::ALL`].
    pub fn as_array(&self) -> [u64; 4] {
        self.0
    }

    fn zip(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|i| combine(self.0[i], other.0[i])))
    }
}

impl std::iter::Sum for Amounts {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), |sum, next| sum.zip(next, u64::saturating_add))
    }
}

impl From<[u64; 4]> for Amounts {
    fn from(amounts: [u64; 4]) -> Self {
        Self(amounts)
    }
}

impl Cost {
    /// What a request of this cost adds in each dimension, each at most [`MAX_AMOUNT`].
    pub fn amounts(self) -> Amounts {
        let input = self.input_tokens.min(MAX_AMOUNT);
        let output = self.output_tokens.min(MAX_AMOUNT);
        Amounts([1, (input + output).min(MAX_AMOUNT), input, output])
    }
}

impl Limits {
    /// The limit of one dimension, at most [`MAX_AMOUNT`].
    pub fn per_minute(&self, dimension: Dimension) -> Option<u64> {
        let limit = match dimension {
            Dimension::Requests => self.requests_per_minute,
            Dimension::Tokens => self.tokens_per_minute,
            Dimension::InputTokens => self.input_tokens_per_minute,
            Dimension::OutputTokens => self.output_tokens_per_minute,
        };
        limit.map(|limit| limit.min(MAX_AMOUNT))
    }

    /// One of `replicas` equal shares, rounded down but at least 1 of what isn't 0. All shares together don't exceed the larger of the limit
    /// and the number of replicas.
    #[must_use]
    pub fn share(&self, replicas: u32) -> Self {
        let replicas = replicas.max(1);
        let of = |limit: u64| (limit / u64::from(replicas)).max(limit.min(1));
        Self {
            requests_per_minute: self.requests_per_minute.map(of),
            tokens_per_minute: self.tokens_per_minute.map(of),
            input_tokens_per_minute: self.input_tokens_per_minute.map(of),
            output_tokens_per_minute: self.output_tokens_per_minute.map(of),
            concurrency: self.concurrency.map(|limit| (limit / replicas).max(limit.min(1))),
        }
    }
}

impl Exhausted {
    /// The stable code for the audit log and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::PerMinute {
                retry_after: None, ..
            } => "request_exceeds_limit",
            Self::PerMinute { dimension, .. } => match dimension {
                Dimension::Requests => "requests_per_minute",
                Dimension::Tokens => "tokens_per_minute",
                Dimension::InputTokens => "input_tokens_per_minute",
                Dimension::OutputTokens => "output_tokens_per_minute",
            },
            Self::Concurrency { .. } => "concurrency",
        }
    }
}

#[cfg(test)]
mod tests;
