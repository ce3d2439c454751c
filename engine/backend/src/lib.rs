//! The traits between the engine and the hardware.
//!
//! [`Executor`] runs the scheduler's plans; [`Backend`] is what a model is written over.

mod backend;
#[cfg(feature = "conformance")]
pub mod conformance;
mod executor;

pub use backend::{
    Activation, AttentionBatch, AttentionSeq, AttentionSpec, Backend, BackendError, KvDType, KvShape,
    RopeStyle, RopeTable, WeightView,
};
pub use executor::{ExecError, Executor, NewSequence, Sampled, StepResult, Ticket};
pub use kvasir_engine_core::BlockCopy;
pub use kvasir_weights::DType;
