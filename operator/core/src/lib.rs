//! What the operator decides: from an `InferenceService` and what was observed to children, actions and a status.
//!
//! ```text
//! gather (runtime) -> validate -> plan -> apply (runtime) -> status
//! ```
//!
//! This crate is pure: no cluster, no clock, no randomness. `now` is an argument. Start at [`plan()`], then [`groups`], where
//! rollouts, scaling and recovery are decided.

pub mod accepted;
mod adopt;
pub mod build;
pub mod certificates;
pub mod child;
mod cidr;
pub mod contest;
pub mod enforcement;
pub mod explain;
mod fault;
mod field_error;
pub mod groups;
pub mod handover;
pub mod identity;
pub mod observed;
pub mod outcomes;
mod plan;
pub mod quantity;
pub mod ranks;
pub mod revision;
mod settings;
pub mod sharing;
pub mod status;
mod text;
mod validate;

pub use adopt::adopt;
pub use field_error::FieldError;
pub use plan::{Delete, Plan, Write, plan};
pub use settings::Settings;
pub use validate::{OWNED_LABEL_PREFIX, Validated, validate};
