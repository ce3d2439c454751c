//! The decisions of the gateway, without a socket, a clock or a random source: who asks, what they may do, how much of it, which engine
//! answers, and who waits.
//!
//! Facts come in as values: the time, random numbers, what the TLS layer and the API server said. Decisions go out as values, each with a
//! reason whose code is stable, for the audit log. What a client may learn of a decision is less than its reason: see
//! [`Reason::answer`](auth::Reason::answer).

pub mod auth;
pub mod limits;
pub mod names;
pub mod policy;
pub mod routing;
pub mod salt;
pub mod time;
pub mod waiting;
