//! The traits between the engine and the hardware.
//!
//! [`Executor`] runs the scheduler's plans; `Backend` is what a model is written over.

mod executor;

pub use executor::{ExecError, Executor, NewSequence, Sampled, StepResult, Ticket};
