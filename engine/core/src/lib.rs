//! The pure heart of the engine: no I/O, no clock, no randomness.
//!
//! `submit` and `abort` change the queues, `schedule` fills a [`StepPlan`], `complete` takes the
//! [`StepOutcome`] back and tells what happened as [`Event`]s.

mod block;
mod config;
mod event;
mod ids;
mod invariant;
mod plan;
mod request;
pub mod scheduler;
mod sequence;

pub use config::{ConfigError, SchedulerConfig};
pub use event::{Event, FinishReason};
pub use ids::{BlockId, Micros, SeqId, StepId, TokenId};
pub use invariant::Violation;
pub use plan::{PENDING_TOKEN, SeqPlan, StepOutcome, StepPlan};
pub use request::{Request, StopConditions};
pub use scheduler::{CompleteError, Reject, Scheduler, Stats};
