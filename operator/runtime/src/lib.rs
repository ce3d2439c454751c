//! Watches the cluster, asks the core what to do, and does it.
//!
//! ```text
//! watches -> cache -> trigger -> round: gather -> core (validate, plan, status) -> write status -> apply
//! ```
//!
//! Nothing is decided here. Start at [`run()`], then `reconcile`, one round for one service.

mod apply;
mod backoff;
mod cache;
mod certificates;
mod cluster;
mod enforcement;
mod engines;
mod events;
mod explain;
mod fence;
mod gather;
mod http;
mod kinds;
mod learning;
mod lease;
mod metrics;
mod neighbours;
mod options;
mod ownership;
mod reconcile;
mod reviewers;
mod run;
mod unwatched;
mod watch;

pub use explain::{ExplainError, explain};
pub use lease::LeaseError;
pub use options::{Options, Scope};
pub use run::{RunError, run};
