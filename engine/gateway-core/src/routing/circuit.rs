//! Whether an engine is worth a request: a circuit breaker.
//!
//! Closed, requests flow; a number of failures in a row, or ejection as an outlier, opens it. Open, none flow until its time is over. Then
//! one request at a time is a probe (half open): if it works the circuit closes, if not it opens again for twice as long, up to a bound.
//! A circuit that stayed closed for as long as it was last open forgets how often it was opened.
//!
//! Why failures in a row and not a rate: an engine that is gone fails everything, and a gateway that sees few requests would wait long for
//! a rate. An engine that fails some requests and serves others is the client's or the model's trouble more often than the engine's.

use std::time::Duration;

use crate::time::Micros;

/// When circuits open, and for how long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CircuitConfig {
    /// Failures in a row that open a circuit, 1 or more.
    pub failures_to_open: u32,
    /// How long the first opening lasts.
    pub base_open: Duration,
    /// How long an opening lasts at most.
    pub max_open: Duration,
}

/// Why a circuit is open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpenReason {
    /// Too many failures in a row.
    Failures,
    /// Much slower than its peers.
    Slow,
}

/// The state of one circuit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Circuit {
    /// Requests flow.
    Closed {
        /// Failures since the last success.
        failures: u32,
        /// How often it was opened in a row, for how long the next opening lasts.
        openings: u32,
        /// Since when.
        since: Micros,
    },
    /// No request flows.
    Open {
        /// Until when.
        until: Micros,
        /// How often it was opened in a row.
        openings: u32,
        /// Why.
        reason: OpenReason,
    },
    /// One request at a time flows.
    HalfOpen {
        /// How often it was opened in a row.
        openings: u32,
        /// Whether the request is on its way.
        is_probing: bool,
    },
}

impl Default for CircuitConfig {
    /// Three failures in a row; 5 s, doubling up to 5 min.
    fn default() -> Self {
        Self {
            failures_to_open: 3,
            base_open: Duration::from_secs(5),
            max_open: Duration::from_mins(5),
        }
    }
}

impl CircuitConfig {
    fn length(&self, openings: u32) -> Duration {
        let factor = 1_u32.checked_shl(openings.saturating_sub(1)).unwrap_or(u32::MAX);
        self.base_open.saturating_mul(factor).min(self.max_open)
    }
}

impl Circuit {
    /// Closed from now on.
    pub fn new(now: Micros) -> Self {
        Self::Closed {
            failures: 0,
            openings: 0,
            since: now,
        }
    }

    /// Whether a request may flow.
    pub fn admits(&self, now: Micros) -> bool {
        match self {
            Self::Closed { .. } => true,
            Self::Open { until, .. } => now >= *until,
            Self::HalfOpen { is_probing, .. } => !is_probing,
        }
    }

    /// A request flows.
    pub fn chosen(&mut self) {
        match self {
            Self::Closed { .. } => {}
            Self::Open { openings, .. } | Self::HalfOpen { openings, .. } => {
                *self = Self::HalfOpen {
                    openings: *openings,
                    is_probing: true,
                };
            }
        }
    }

    /// A request that flowed succeeded, at least as far as the engine is concerned.
    pub fn succeeded(&mut self, config: &CircuitConfig, now: Micros) {
        match self {
            Self::Closed {
                failures,
                openings,
                since,
            } => {
                *failures = 0;
                if now.since(*since) >= config.length(*openings) {
                    *openings = 0;
                }
            }
            Self::HalfOpen { openings, .. } => {
                *self = Self::Closed {
                    failures: 0,
                    openings: *openings,
                    since: now,
                };
            }
            // A request of the time before: the engine has to prove itself with a later one.
            Self::Open { .. } => {}
        }
    }

    /// A request that flowed failed by the engine's fault.
    pub fn failed(&mut self, config: &CircuitConfig, now: Micros) {
        match self {
            Self::Closed { failures, .. } => {
                *failures = failures.saturating_add(1);
                if *failures >= config.failures_to_open {
                    self.open(config, OpenReason::Failures, now);
                }
            }
            Self::HalfOpen { .. } => self.open(config, OpenReason::Failures, now),
            Self::Open { .. } => {}
        }
    }

    /// A request that flowed ended and says nothing about the engine, for example because its client left.
    pub fn said_nothing(&mut self) {
        if let Self::HalfOpen { is_probing, .. } = self {
            *is_probing = false;
        }
    }

    /// Opens the circuit, or opens it for longer.
    pub fn open(&mut self, config: &CircuitConfig, reason: OpenReason, now: Micros) {
        let (Self::Closed { openings, .. } | Self::Open { openings, .. } | Self::HalfOpen { openings, .. }) =
            *self;
        let openings = openings.saturating_add(1);
        *self = Self::Open {
            until: now.plus(config.length(openings)),
            openings,
            reason,
        };
    }
}
